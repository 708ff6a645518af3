"""The audit that looks inside: it finds what is planted, and nothing in what is whole."""

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.methods import each_of, thorough
from tf_pflego.aggregation import accounting, inspection, privacy
from tf_pflego.core import participation, seeds
from tf_pflego.core.participation import Participation

CLIENTS, EXPECTED = 60, 24
BOUND, ROUNDS = 0.3, 8


def clients_of(count, rng):
    sizes = rng.integers(4, 9, (2, count))
    return pfl.from_arrays(
        *(
            [(rng.normal(size=(n, 30)).astype(np.float32), np.arange(n) % 2) for n in of_split]
            for of_split in sizes
        )
    )


@pytest.fixture(scope="module")
def clients():
    return clients_of(CLIENTS, np.random.default_rng(0))


@pytest.fixture(scope="module")
def inspected():
    model = pfl.SplitModel(pfl.mlp((30,), seed=0, units=40), num_outputs=2)
    method = pfl.build_algorithm("pflego", model, local_steps=2, client_learning_rate=0.1)
    return inspection.Inspected(method)


def found(inspected, clients, mode="binomial", mechanism="gaussian", clip_norm=BOUND):
    drawn = Participation(CLIENTS, EXPECTED, mode)
    multiplier = 0.9 if clip_norm == "adaptive" else 1.1
    algorithm = pfl.private(
        inspected.algorithm,
        drawn,
        num_rounds=ROUNDS,
        noise_multiplier=multiplier,
        clip_norm=clip_norm,
        mechanism=mechanism,
    )
    claim = accounting.Accountant(drawn, mechanism, multiplier, 1e-5, ROUNDS)
    with pfl.Simulation(algorithm, clients, drawn, "in_process", 5) as simulation:
        simulation.run_round()  # So that it does not begin with the first states.
        return list(inspection.faults(simulation, inspected, claim))


@pytest.mark.parametrize(
    ("mode", "mechanism", "clip_norm"),
    [
        ("binomial", "gaussian", BOUND),
        thorough("fixed", "gaussian", "adaptive"),
        thorough("cyclic", "banded", BOUND),
        thorough("binomial", "local", BOUND),
        thorough("fixed", "skellam", BOUND),
    ],
)
def test_it_finds_nothing_in_what_is_as_claimed(inspected, clients, mode, mechanism, clip_norm):
    assert found(inspected, clients, mode, mechanism, clip_norm) == []


def times(factor):
    """Noise of another deviation."""

    def plant(patch):
        normals = privacy.normals
        patch.setattr(privacy, "normals", lambda count, seed: factor * normals(count, seed))

    return plant


def clipping(change):
    """`change(upload, clipped upload, bound)` in the place of what is clipped."""

    def plant(patch):
        clipped = privacy.clipped

        def other(result, bound, round_):
            upload, is_below, finite = clipped(result, bound, round_)
            whole = as_vectors(result, round_)
            return change(whole, upload, bound), is_below, finite

        patch.setattr(privacy, "clipped", other)

    return plant


def as_vectors(result, round_):
    return (
        tf.nest.map_structure(lambda leaf: leaf / round_.equal_weight, result.summed),
        result.averaged,
    )


def leaf_off(whole, upload, bound):
    """The smallest array is not clipped."""
    leaves = tf.nest.flatten(upload)
    smallest = min(range(len(leaves)), key=lambda k: leaves[k].shape.num_elements())
    leaves[smallest] = tf.nest.flatten(whole)[smallest]
    return tf.nest.pack_sequence_as(upload, leaves)


def leaf_by_leaf(whole, upload, bound):
    return tf.nest.map_structure(
        lambda leaf: leaf * tf.minimum(1.0, tf.math.divide_no_nan(bound, tf.norm(leaf))), whole
    )


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
        leaves = zip(
            tf.nest.flatten(nest), tf.nest.flatten(with_noise(nest, deviation, noise)), strict=True
        )
        return tf.nest.pack_sequence_as(
            nest, [new if old.shape.num_elements() > 100 else old for old, new in leaves]
        )

    patch.setattr(privacy, "with_noise", other)


def drawing(change):
    def plant(patch):
        chosen = participation.Participation._chosen
        patch.setattr(
            participation.Participation,
            "_chosen",
            lambda self, seed, number, cohort, spare: change(
                chosen, self, seed, number, cohort, spare
            ),
        )

    return plant


def as_many_as_expected(chosen, self, seed, number, cohort, spare):
    rng = seeds.generator(seed, f"participation/{cohort}", number)
    return rng.choice(self.num_clients, size=self.clients_per_round, replace=False)


def known_secret(patch):
    patch.setattr(seeds, "secret", lambda: np.array([1, 2]))


def silent_share(patch):
    normals = privacy.normals
    patch.setattr(privacy, "normals", lambda count, seed: (count > 1) * normals(count, seed))


# Name: (plant, what is said of it, whether the bound is adaptive).
MUTANTS = {
    "three quarters of the noise": (times(0.75), "times the deviation that is claimed", False),
    "twice the bound": (
        clipping(lambda whole, upload, bound: tf.nest.map_structure(lambda u: 2 * u, upload)),
        "moves the sum by 0.6",
        False,
    ),
    "an array without bound": (clipping(leaf_off), "alone moves the sum by", False),
    "array by array": (clipping(leaf_by_leaf), "moves the sum by", False),
    "noise used twice": (reuses(lambda count: count // 2), "is correlated by 1.0", False),
    "an array without noise": (silent_leaf, "has 0 times the deviation", False),
    "a known secret": (known_secret, "is the same in two simulations", False),
    "as many as expected": (drawing(as_many_as_expected), "has a deviation of 0 over", False),
    "the same cohort": (
        drawing(lambda chosen, self, seed, number, *more: chosen(self, seed, 1, *more)),
        "independent draws share",
        False,
    ),
    "a share without noise": (silent_share, "has next to no noise", True),
}


@pytest.mark.parametrize("name", each_of(MUTANTS, ("an array without bound",)))
def test_it_finds_what_is_planted(name, inspected, clients, monkeypatch):
    plant, said, adaptive = MUTANTS[name]
    plant(monkeypatch)
    faults = found(inspected, clients, clip_norm="adaptive" if adaptive else BOUND)
    assert any(said in fault for fault in faults), faults
