"""What every algorithm keeps, algorithms keep whose uploads go through a wrapper."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.algorithms import test_contract as contract
from tests.algorithms.test_contract import (  # noqa: F401, for they are tests of this file too
    build,
    simulation_of,
    test_a_round_is_pure_and_leaves_absentees_as_they_are,
    test_a_round_that_is_broken_off_has_moved_nothing,
    test_the_seed_repeats_a_run_whoever_is_looked_at_in_between,
    whole_state,
)
from tests.comparison import assert_identical, assert_near
from tests.conftest import INPUTS, make_clients
from tests.engines.agreement import ENGINES, assert_agreement
from tests.methods import each_of, named_in, thorough
from tests.simulation.test_not_finite import exploding_clients
from tf_pflego import algorithms, models
from tf_pflego.aggregation import wrapping
from tf_pflego.aggregation.accounting import Accountant
from tf_pflego.aggregation.compression import with_compression
from tf_pflego.core import nests, seeds
from tf_pflego.core.algorithm import Algorithm, ClientResult, Exchange, Served
from tf_pflego.core.participation import Participation

# (algorithm, participation) -> algorithm, by name.
WRAPPERS = {
    "quantized": lambda algorithm, participation: with_compression(algorithm, bits=4),
    "top_k": lambda algorithm, participation: with_compression(algorithm, "top_k", share=0.3),
    "private": lambda algorithm, participation: pfl.with_dp(
        algorithm, participation, num_rounds=50, noise_multiplier=1.0, clip_norm=0.5
    ),
    "secure": lambda algorithm, participation: pfl.with_secure_aggregation(
        algorithm, clip_norm=1.0
    ),
    "median": lambda algorithm, participation: pfl.with_robust_aggregation(algorithm, "median"),
}
ATTACKED = WRAPPERS | {"attacked": lambda algorithm, _: pfl.with_attackers(algorithm, "noise", 0.5)}
# Their servers see uploads of single clients, of which one is named, so that no wrapper takes them.
REFUSED = named_in("docs/aggregation.md", "which are all but", "the servers of those")


@functools.cache
def toy():
    """A method whose clients sum and average noise, their examples and their states, twice a round.

    It serves each client with a head of its own.
    """
    of_all = model().with_shared_classifier()

    def client_update(message, state, client, round_):
        own = tf.reduce_mean(client.examples) + tf.random.stateless_normal([], client.seed) + state
        summed = tf.nest.map_structure(lambda w: client.client_weight * own * w, message)
        averaged = tf.nest.map_structure(lambda w: tf.sin(own + w), message)
        return ClientResult(message, state + own, summed=summed, averaged=averaged)

    def server_update(server, uploads, round_):
        moves = nests.scale(round_.participation_scale, uploads.summed), uploads.averaged
        return nests.subtract(server, nests.scale(0.1, nests.add(*moves)))

    def own(server, client):
        return server._replace(head=0.1 * (server.head + client))

    first, second = (
        Exchange(lambda server, round_: server, client_update, server_update) for _ in range(2)
    )
    return Algorithm(
        name="toy",
        model=of_all,
        init_server=lambda federation: of_all.initial_weights(),
        init_client=lambda server, seed, classes: tf.random.stateless_normal([], seed),
        exchanges=(first, second),
        served={"personalized": Served(own, of_all.predict)},
    )


@functools.cache
def model():
    """One whose body has an array that is compressed, and one that is too small for that."""
    return models.SplitModel(models.mlp((INPUTS,), seed=3, units=16), num_outputs=3, seed=3)


@pytest.fixture(scope="module", autouse=True)
def known_secrets():
    """Lets two runs draw the same noise, which is else drawn from the system's secret source.

    How private they are, which takes long to compute, is no matter here.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seeds, "secret", lambda: np.array([3, 4]))
        patch.setattr(Accountant, "epsilon", lambda *_, **__: 1.0)
        yield


# Wrappers that can be nested, and those that are outermost.
WRAPPED = {
    "nested": ("quantized", "top_k", "median"),
    "private": ("private",),
    "secure": ("secure",),
}


@pytest.fixture(scope="module", params=each_of(WRAPPED, ("nested", "private")))
def case(request, tiny_clients):
    """As in the file that the tests are from, without what that file's toys are for."""
    algorithm, participation = toy(), Participation(3, 2)
    for name in WRAPPED[request.param]:
        algorithm = WRAPPERS[name](algorithm, participation)
    return algorithm, tiny_clients, simulation_of(algorithm, tiny_clients)


@pytest.mark.parametrize("case", ["nested"], indirect=True)
def test_a_clients_model_predicts_what_the_run_does(case):
    contract.test_a_clients_model_predicts_what_the_run_does(case)


ENGINES_AGREE = {
    # Wrappers that draw, keep a state and see each upload are nested, since it takes long to start
    # an engine.
    "nested": lambda model: pfl.with_robust_aggregation(
        with_compression(
            with_compression(pfl.with_attackers(build("fedavg", model), "label_flip", 0.4, seed=1)),
            "top_k",
            share=0.5,
        ),
        "geometric_median",
    ),
    "secure": lambda model: pfl.with_secure_aggregation(
        build("fedavg", model), bits=32, clip_norm=9
    ),
}


@pytest.mark.parametrize("engine", ENGINES[1:], indirect=True)
@pytest.mark.parametrize("made", ENGINES_AGREE)
def test_engines_agree(made, engine, tiny_clients):
    """In rounds of 0 to 3 participants."""
    assert_agreement(ENGINES_AGREE[made](model()), tiny_clients, engine)


def test_a_restored_run_goes_on_to_the_same_bits(case, tmp_path):
    algorithm, clients, simulation = case
    simulation.run_round()
    simulation.save(tmp_path)
    restored = simulation_of(algorithm, clients)
    restored.restore(tmp_path)
    assert_identical(whole_state(restored), whole_state(simulation))
    for one in (simulation, restored):
        one.run_round()
        one.run_round()
    assert_identical(whole_state(restored), whole_state(simulation))


@pytest.mark.parametrize("method", each_of(algorithms.REGISTRY, ("pgfed", "local")))
def test_a_method_whose_server_sees_single_uploads_is_refused_and_no_other(method, tiny_clients):
    """`local`, which uploads nothing, is refused too."""
    said = "got local, which uploads nothing"
    if method != "local":
        said = rf"the server of {method} must see the uploads of single clients: [\w/]+ of shape"
    for wrap in ATTACKED.values() if method == "pgfed" else [WRAPPERS["median"]]:
        try:
            wrap(build(method, model()), Participation(tiny_clients.num_clients, 2))
        except ValueError as error:
            assert re.search(said, str(error)) and method in {*REFUSED, "local"}, error
        else:
            assert method not in {*REFUSED, "local"}


def test_pages_agree_on_whose_servers_see_single_uploads():
    assert named_in("SECURITY.md", "server's state, which with some", "last uploaded") == REFUSED
    assert named_in("docs/tff.md", "* The server of PGFed", "sees what single") == REFUSED


@pytest.mark.parametrize("inner", ["private", "secure"])
def test_nothing_goes_around_privacy_and_secure_sums(inner, tiny_clients):
    participation = Participation(tiny_clients.num_clients, 2)
    outermost = WRAPPERS[inner](toy(), participation)
    for wrap in ATTACKED.values():
        with pytest.raises(ValueError, match="must be neither private nor with secure sums before"):
            wrap(outermost, participation)


# (how far weights may be, how the toy is wrapped).
SAME = {
    "nothing": (0, lambda plain: wrapping.wrapped(plain, wrapping.Wrapper())),
    "all numbers": (0, lambda plain: with_compression(plain, "top_k", share=1)),
    "a far bound": (
        1e-5,
        lambda plain: pfl.with_robust_aggregation(plain, "norm_bound", clip_norm=1e6),
    ),
    "no share": (
        1e-5,
        lambda plain: pfl.with_robust_aggregation(plain, "trimmed_mean", trimmed_share=0),
    ),
    "many bits": (2e-5, lambda plain: pfl.with_secure_aggregation(plain, bits=32, clip_norm=300)),
}


@pytest.mark.parametrize("name", each_of(SAME, ("many bits",)))
def test_a_wrapper_that_leaves_out_nothing_changes_nothing(name):
    """Clients are of one size, since a robust sum counts each alike."""
    tolerance, wrap = SAME[name]
    states = []
    for algorithm in (toy(), wrap(toy())):
        simulation = simulation_of(algorithm, make_clients((4, 4, 4)))
        for _ in range(3):
            simulation.run_round()
        state = simulation.server_state
        states.append(tf.nest.flatten(getattr(state, "method", state)))
    assert_near(*states, atol=tolerance)


@pytest.mark.parametrize("name", [thorough("top_k"), "secure"])
def test_who_is_not_finite_is_left_out(name):
    clients, everybody = exploding_clients(model()), Participation(4, 4)
    algorithm = WRAPPERS[name](build("pflego", model()), everybody)
    simulation = simulation_of(algorithm, clients, participation=everybody)
    record = simulation.run_round()
    assert (record["participants"], record["not_finite_clients"]) == (3, [1])
    moved = simulation.server_state.method.theta[0] - model().initial_theta[0]
    assert 0 < np.abs(moved).max() < 1


# (function, arguments, what is said)
REFUSALS = [
    (with_compression, {"compression": "zip"},
     "`compression` must be one of quantized, masked, top_k; got 'zip'"),
    (with_compression, {"bits": 0}, "`bits` must be at least 1; got 0. Raise `bits`"),
    (with_compression, {"compression": "top_k", "share": 0.0},
     "`share` must be above 0; got 0.0. Raise"),
    (pfl.with_robust_aggregation, {"robust_sum": "krum"},
     "`robust_sum` must be one of norm_bound, median"),
    (pfl.with_robust_aggregation, {"robust_sum": "norm_bound"},
     "`clip_norm` must be a finite number; got None"),
    (pfl.with_robust_aggregation, {"robust_sum": "median", "trimmed_share": 0.5},
     "`trimmed_share` must be below 0"),
    (pfl.with_attackers, {"attack": "krum", "attackers": 0.2},
     "`attack` must be one of sign_flip, label_flip, noise; got 'krum'"),
    *((pfl.with_secure_aggregation, {"clip_norm": 1.0} | wrong, f"`{next(iter(wrong))}` must be")
      for wrong in ({"bits": 33}, {"bits": 1}, {"clip_norm": 0}, {"clip_norm": "adaptive"})),
]  # fmt: skip


@pytest.mark.parametrize(("wrap", "arguments", "message"), REFUSALS)
def test_wrong_arguments_are_refused(wrap, arguments, message):
    with pytest.raises(ValueError, match=message):
        wrap(toy(), **arguments)
