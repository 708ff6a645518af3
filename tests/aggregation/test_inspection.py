"""The audit that looks inside: it finds what is planted, and nothing in what is whole."""

import dataclasses
import hashlib
import os

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.methods import each_of, thorough
from tf_pflego.aggregation import accounting, inspection, privacy
from tf_pflego.core import seeds
from tf_pflego.core.participation import Participation

CLIENTS, EXPECTED = 60, 24
BOUND, ROUNDS = 0.3, 8
CHOSEN = Participation._chosen


@pytest.fixture(scope="module")
def clients():
    rng = np.random.default_rng(0)
    splits = (
        [(rng.normal(size=(n, 30)).astype(np.float32), np.arange(n) % 2) for n in sizes]
        for sizes in rng.integers(4, 9, (2, CLIENTS))
    )
    return pfl.from_arrays(*splits)


@pytest.fixture(scope="module")
def inspected():
    model = pfl.SplitModel(pfl.mlp((30,), seed=0, units=40), num_outputs=2)
    method = pfl.build_algorithm("pflego", model, local_steps=2, client_learning_rate=0.1)
    return inspection.Inspected(method)


def claimed(inspected, mode="binomial", mechanism="gaussian", clip_norm=BOUND):
    """Returns the method, made private, and the accountant of what is claimed of it."""
    drawn = Participation(CLIENTS, EXPECTED, mode)
    multiplier = 0.9 if clip_norm == "adaptive" else 1.1
    options = {"num_rounds": ROUNDS, "clip_norm": clip_norm, "mechanism": mechanism}
    algorithm = pfl.with_dp(inspected.algorithm, drawn, noise_multiplier=multiplier, **options)
    return algorithm, accounting.Accountant(drawn, mechanism, multiplier, 1e-5, ROUNDS)


@pytest.fixture(scope="module")
def usual(inspected):
    """The usual claim, which traces once where nothing is planted in its graph."""
    return claimed(inspected)


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch):
    monkeypatch.setattr(inspection, "ROUNDS", 1)


def found(inspected, clients, claim):
    algorithm, accountant = claim
    with pfl.Simulation(algorithm, clients, accountant.participation, "in_process", 5) as one:
        one.run_round()  # So that it does not begin with the first states.
        return list(inspection.faults(one, inspected, accountant))


@pytest.mark.parametrize(
    "claim",
    [
        (),
        thorough(("fixed", "gaussian", "adaptive")),
        thorough(("cyclic", "banded")),
        thorough(("binomial", "local")),
        thorough(("fixed", "skellam")),
    ],
)
def test_it_finds_nothing_in_what_is_as_claimed(inspected, clients, usual, claim):
    assert found(inspected, clients, claimed(inspected, *claim) if claim else usual) == []


@pytest.mark.thorough
@pytest.mark.parametrize("claim", [(), ("binomial", "gaussian", "adaptive"), ("binomial", "local")])
@pytest.mark.parametrize("method", ["pflego", "feddane"])
def test_it_finds_nothing_in_two_exchanges_of_a_round(method, claim, clients):
    """Those of FedDANE have participants of their own."""
    model = pfl.SplitModel(pfl.mlp((30,), seed=0, units=20), num_outputs=2)
    twice = {"exchanges_per_round": 2} if method == "pflego" else {}
    inside = inspection.Inspected(pfl.build_algorithm(method, model, local_steps=1, **twice))
    algorithm, accountant = claimed(inside, *claim)
    accountant = dataclasses.replace(accountant, releases_per_round=2)
    assert found(inside, clients, (algorithm, accountant)) == []


@pytest.mark.thorough
def test_it_finds_nothing_where_nobody_takes_part(inspected, clients, monkeypatch):
    monkeypatch.setattr(__name__ + ".EXPECTED", 1)
    assert found(inspected, clients, claimed(inspected, "binomial", "local")) == []


def noise(factor):
    """Noise whose deviation is multiplied by a function of how many numbers are drawn."""

    def plant(patch):
        normals = privacy.normals
        patch.setattr(privacy, "normals", lambda count, seed: factor(count) * normals(count, seed))

    return plant


def clipping(change):
    """`change(array, clipped array, bound)` in the place of each array that is clipped."""

    def plant(patch):
        clipped = privacy.clipped

        def other(result, bound, round_):
            upload, *rest = clipped(result, bound, round_)
            summed = tf.nest.map_structure(lambda leaf: leaf / round_.equal_weight, result.summed)
            whole = summed, result.averaged
            return tf.nest.map_structure(lambda *pair: change(*pair, bound), whole, upload), *rest

        patch.setattr(privacy, "clipped", other)

    return plant


def is_small(array):
    """Whether an array is a bias of the body, and no matrix."""
    return array.shape.num_elements() < 100


def leaf_by_leaf(whole, clipped, bound):
    return whole * tf.minimum(1.0, tf.math.divide_no_nan(bound, tf.norm(whole)))


def reuses(releases):
    """Noise of release k is that of release `releases(k)`, whatever sum it hides."""

    def plant(patch):
        of_secret = seeds.of_secret

        def other(secret, purpose, *keys):
            if purpose == "noise":
                keys = (releases(keys[0]),)
            return of_secret(secret, purpose, *keys)

        patch.setattr(seeds, "of_secret", other)
        patch.setattr(privacy, "seed_on", lambda seed, *hidden: seed)

    return plant


def silent_leaf(patch):
    with_noise = privacy.with_noise

    def other(nest, deviation, noise):
        noised = with_noise(nest, deviation, noise)
        return tf.nest.map_structure(lambda a, b: a if is_small(a) else b, nest, noised)

    patch.setattr(privacy, "with_noise", other)


def drawing(chosen):
    return lambda patch: patch.setattr(Participation, "_chosen", chosen)


def as_many_as_expected(self, seed, number, cohort):
    rng = seeds.generator(seed, f"participation/{cohort}", number)
    return rng.choice(self.num_clients, size=self.clients_per_round, replace=False)


def secret_of(count):
    """A secret that follows from `count` bytes of the system's generator alone."""

    def plant(patch):
        def other():
            given = hashlib.sha256(os.urandom(count)).digest() if count else bytes(range(16))
            return np.frombuffer(given[:16], np.int64).copy()

        patch.setattr(seeds, "secret", other)

    return plant


def exchange_with(**changes):
    """A private exchange with other functions, each made from the one whose place it takes."""

    def plant(patch):
        wrap = privacy.wrap

        def other(*arguments):
            private = wrap(*arguments)
            (exchange,) = private.exchanges
            new = {name: change(getattr(exchange, name)) for name, change in changes.items()}
            return dataclasses.replace(private, exchanges=(dataclasses.replace(exchange, **new),))

        patch.setattr(privacy, "wrap", other)

    return plant


def silent_without_participants(patch):
    wrap = privacy.wrap

    def other(*arguments):
        private = wrap(*arguments)
        silent = dataclasses.replace(private.release, of_nobody=None)
        return dataclasses.replace(private, release=silent)

    patch.setattr(privacy, "wrap", other)


def with_clipped_share(broadcast):
    def other(server, round_):
        message = broadcast(server, round_)
        return message._replace(wrapper=(message.wrapper[0], server.wrapper[0].share_clipped))

    return other


def without_bound(is_exempt):
    """A client's update that is not clipped if `is_exempt(client's identity)`."""

    def change(client_update):
        def other(message, state, client, round_):
            bound = tf.where(is_exempt(client.seed[1]), 1e9, message.wrapper[0])
            message = message._replace(wrapper=(bound, message.wrapper[1]))
            return client_update(message, state, client, round_)

        return other

    return change


def same_tail(patch):
    """The last numbers of the noise on the first array are the same in each round."""
    normals = privacy.normals

    def other(count, seed):
        tail = normals(50, tf.constant([1, 2], tf.int64))
        drawn = normals(count, seed)
        return tf.concat([tail, drawn[50:]], 0) if count > 1000 else drawn

    patch.setattr(privacy, "normals", other)


def counts_the_first(self, noise_multiplier, states, measures=accounting.Accountant.measures):
    return measures(self, noise_multiplier, states) | {"privacy_releases": 1}


def reused_in_another_array(patch):
    """The first numbers are the negatives of numbers of another array of the same round."""
    normals = privacy.normals

    def other(count, seed):
        drawn = normals(count, seed)
        return tf.concat([-drawn[-9:], drawn[9:]], 0) if count > 1000 else drawn

    patch.setattr(privacy, "normals", other)


def half_on_a_part(patch):
    """The deviation of thirty numbers of a large array."""
    normals = privacy.normals

    def other(count, seed):
        scale = np.ones(count)
        scale[30:60] = 0.5 if count > 1000 else 1
        return scale * normals(count, seed)

    patch.setattr(privacy, "normals", other)


def without_secret(patch):
    of_secret = seeds.of_secret

    def other(secret, purpose, *keys):
        return of_secret(0 * secret if purpose == "noise" else secret, purpose, *keys)

    patch.setattr(seeds, "of_secret", other)


# Name: (plant, what is said of it, and the bound if it is another one).
MUTANTS = {
    "three quarters of the noise": (noise(lambda count: 0.75), "times the deviation"),
    "an array without bound": (
        clipping(lambda whole, clipped, bound: whole if is_small(whole) else clipped),
        "alone moves the sum by",
    ),
    "array by array": (clipping(leaf_by_leaf), "moves the sum by"),
    "noise used twice": (reuses(lambda count: count // 2), "numbers of the noise are as large as"),
    "noise of four rounds": (
        reuses(lambda count: count % 4),
        "numbers of the noise are as large as",
    ),
    "a part of the noise is the same": (same_tail, "numbers of the noise are as large as"),
    "half of the noise on a part": (half_on_a_part, "noise on 8 neighbouring numbers of array 0"),
    "noise used in another array": (reused_in_another_array, "numbers of the noise are as large"),
    "noise of the number of the release": (without_secret, "noise does not follow from the secret"),
    "an array without noise": (silent_leaf, "has 0 times the deviation"),
    "a known secret": (secret_of(0), "is the same in two simulations"),
    "a secret of four bytes": (secret_of(4), "is not 16 bytes of the system's generator"),
    "known draws": (
        lambda patch: patch.setattr(privacy, "participation_seed", lambda server: 3),
        "do not follow from the secret",
    ),
    "silent where nobody takes part": (
        silent_without_participants,
        "nobody takes part releases nothing",
    ),
    "the clipped share is sent": (
        exchange_with(broadcast=with_clipped_share),
        "depends on uploads beside their noised sum",
    ),
    "clients from 30 on without a bound": (
        exchange_with(client_update=without_bound(lambda client: client >= 30)),
        "a client that uploads very much moves the sum by",
    ),
    "one of a few clients without a bound": (
        exchange_with(client_update=without_bound(lambda client: client % 7 == 3)),
        "all participants, each of which uploads very much moves the sum by",
    ),
    "empty counts": (
        lambda patch: patch.setattr(accounting.Accountant, "measures", counts_the_first),
        "1 sums were counted so far, and 2 released",
    ),
    "as many as expected": (drawing(as_many_as_expected), "has a deviation of 0 over"),
    "the same cohort": (
        drawing(lambda self, seed, number, *more: CHOSEN(self, seed, 1, *more)),
        "independent draws share",
    ),
    "a tenth of the share's noise": (
        noise(lambda count: 1 if count > 1 else 0.1),
        "the share that the bound follows has 0.",
        "adaptive",
    ),
}


# Mutants that leave the graph of a round as it is.
UNTRACED = {"a known secret", "a secret of four bytes", "as many as expected", "the same cohort"}


@pytest.mark.parametrize("name", each_of(MUTANTS, ("an array without bound",)))
def test_it_finds_what_is_planted(name, inspected, clients, usual, monkeypatch):
    plant, said, *bound = MUTANTS[name]
    monkeypatch.setattr(inspection, "NOISE_ROUNDS", 12 if name.startswith("half") else 6)
    plant(monkeypatch)
    claim = usual if name in UNTRACED else claimed(inspected, clip_norm=[*bound, BOUND][0])
    faults = found(inspected, clients, claim)
    assert any(said in fault for fault in faults), faults
