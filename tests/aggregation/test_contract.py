"""What every algorithm keeps, algorithms keep whose uploads go through a wrapper."""

import functools

import numpy as np
import pytest

import tf_pflego as pfl
from tests.algorithms import test_contract as contract
from tests.algorithms.test_contract import (  # noqa: F401, for they are tests of this file too
    build,
    simulation_of,
    test_a_round_that_is_broken_off_has_moved_nothing,
    test_absentees_are_untouched,
    test_functions_are_pure,
    test_the_seed_repeats_a_run_whoever_is_looked_at_in_between,
    whole_state,
)
from tests.comparison import assert_identical
from tests.conftest import INPUTS
from tests.methods import each_of
from tf_pflego import models
from tf_pflego.aggregation import wrapping
from tf_pflego.aggregation.compression import compressed
from tf_pflego.core.participation import Participation

# (algorithm, participation) -> algorithm, by name.
WRAPPERS = {
    "quantized": lambda algorithm, participation: compressed(algorithm, bits=4),
    "top_k": lambda algorithm, participation: compressed(algorithm, "top_k", share=0.3),
    "private": lambda algorithm, participation: pfl.private(
        algorithm, participation, num_rounds=50, noise_multiplier=1.0, clip_norm=0.5
    ),
    "secure": lambda algorithm, participation: pfl.secure(algorithm, clip_norm=1.0),
    "median": lambda algorithm, participation: pfl.robust(algorithm, "median"),
}
# Their servers see the uploads of single clients, so that no wrapper takes them.
REFUSED = ("fedamp", "fedfomo", "fedpac", "pgfed", "pgfed_ce", "pgfedmo")
# One that sums, one with two exchanges, and one that averages and keeps a network at each client.
METHODS = ("pflego", "feddane", "ditto")
CASES = [
    *("pflego, private", "pflego, secure", "pflego, top_k"),
    *("feddane, quantized", "feddane, private", "feddane, median"),
    *("ditto, quantized", "ditto, secure", "ditto, median"),
]


@functools.cache
def model():
    """One whose body has an array that is compressed, and one that is too small for that."""
    return models.SplitModel(models.mlp((INPUTS,), seed=3, units=16), num_outputs=3, seed=3)


@pytest.fixture(scope="module", autouse=True)
def known_secrets():
    """Lets two runs draw the same noise, which is else drawn from the system's secret source."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wrapping, "secret_seed", lambda: np.array([3, 4]))
        yield


@pytest.fixture(
    scope="module", params=each_of(CASES, ("pflego, private", "feddane, median", "ditto, secure"))
)
def case(request, tiny_clients):
    """As in the file that the tests are from, without what that file's toys are for."""
    method, wrapper = request.param.split(", ")
    participation = Participation(tiny_clients.num_clients, 2)
    algorithm = WRAPPERS[wrapper](build(method, model()), participation)
    return algorithm, tiny_clients, simulation_of(algorithm, tiny_clients)


@pytest.mark.parametrize(
    "case",
    each_of([case for case in CASES if "pflego" in case], ("pflego, private",)),
    indirect=True,
)
def test_a_clients_model_predicts_what_the_run_does(case):
    contract.test_a_clients_model_predicts_what_the_run_does(case)


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


@pytest.mark.parametrize("method", each_of(REFUSED, ("pgfed",)))
def test_a_method_whose_server_sees_single_uploads_is_refused(method, tiny_clients):
    for wrap in WRAPPERS.values():
        with pytest.raises(ValueError, match=f"the server of {method} must see of each client"):
            wrap(build(method, model()), Participation(tiny_clients.num_clients, 2))


def test_a_method_that_uploads_nothing_is_refused(tiny_clients):
    for wrap in WRAPPERS.values():
        with pytest.raises(ValueError, match="got local, which uploads nothing"):
            wrap(build("local", model()), Participation(tiny_clients.num_clients, 2))


@pytest.mark.parametrize("method", each_of(METHODS, ("pflego",)))
def test_a_wrapper_that_does_nothing_changes_no_bit(method, tiny_clients):
    plain, states = build(method, model()), []
    for algorithm in (plain, wrapping.wrapped(plain, wrapping.Wrapper())):
        simulation = simulation_of(algorithm, tiny_clients)
        for _ in range(3):
            simulation.run_round()
        states.append(whole_state(simulation))
    assert_identical(*states)
