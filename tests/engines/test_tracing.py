import collections
import copy
import dataclasses
import weakref

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.test_contract import build
from tests.comparison import assert_identical
from tests.conftest import make_clients
from tests.methods import thorough
from tests.resources import collecting
from tf_pflego.core.participation import Participation
from tf_pflego.engines.tracing import Traced
from tf_pflego.simulation.simulation import Simulation


def counted(any_number=()):
    """A traced function that counts its traces."""
    traces = []

    def total(first, second):
        traces.append(1)
        return tf.reduce_sum(first["a"]) + tf.reduce_sum(second)

    return Traced(total, any_number), traces


@pytest.mark.parametrize(("any_number", "count"), [((), 2), ((0,), 1)])
def test_it_is_traced_once_for_one_shape_and_once_more_for_all(any_number, count):
    """And once if an argument is known to be of any number."""
    run, traces = counted(any_number)
    for size in (2, 2, 5, 0, 7):
        assert float(run({"a": np.ones(size, np.float32)}, tf.ones([3]))) == size + 3
    assert len(traces) == count


def test_what_is_wrong_for_another_reason_is_said():
    run, traces = counted()
    run({"a": np.ones(2, np.float32)}, tf.ones([3]))
    with pytest.raises((TypeError, ValueError)):
        run({"a": tf.constant(["a", "b"])}, tf.ones([3]))
    assert len(traces) == 1


def counting(algorithm):
    """A method whose functions count how often they are traced."""
    traces = collections.Counter()

    def counted(name, function):
        def run(*arguments):
            traces[name] += 1
            return function(*arguments)

        return run

    def with_counts(one, place, *names):
        functions = {name: getattr(one, name) for name in names}
        changes = {name: counted((name, place), f) for name, f in functions.items() if f}
        return dataclasses.replace(one, **changes)

    of_round = "client_update", "server_update", "client_messages"
    exchanges = tuple(with_counts(one, k, *of_round) for k, one in enumerate(algorithm.exchanges))
    served = {name: with_counts(one, name, "predict") for name, one in algorithm.served.items()}
    algorithm = dataclasses.replace(algorithm, exchanges=exchanges, served=served)
    return with_counts(algorithm, "", "init_client"), traces


def run_and_end(algorithm, clients, engine):
    """Does all that is traced, and returns the end."""
    with Simulation(algorithm, clients, Participation(3, 2), engine, seed=6) as simulation:
        simulation.run(3)
        predictions = simulation.predict()
        leaves = (simulation.server_state, simulation.client_states(range(3)), predictions)
        return [np.asarray(leaf) for leaf in tf.nest.flatten(leaves)]


@pytest.mark.parametrize(
    ("name", "engine", "functions"), [("pflego", "in_process", 4), thorough("everything", "tff", 8)]
)
def test_a_second_simulation_of_a_method_traces_nothing(
    name, engine, functions, tiny_model, tiny_clients
):
    """Even on other clients, if their examples are alike.

    In process, where it takes little, it is seen to end as with a method of its own.
    """
    algorithm, traces = counting(build(name, tiny_model))
    run_and_end(algorithm, tiny_clients, engine)
    once = dict(traces)
    assert len(once) == functions
    others = make_clients((4, 6, 9), (3, 2, 2), (2, 3, 2), seed=1)
    end = run_and_end(algorithm, others, engine)
    assert traces == once
    if engine == "in_process":
        assert_identical(end, run_and_end(build(name, tiny_model), others, engine))


@pytest.mark.thorough
def test_what_is_traced_ends_with_its_method_and_is_not_sent(tiny_model, tiny_clients):
    with collecting() as collect:
        algorithm, _ = counting(build("pflego", tiny_model))
        run_and_end(algorithm, tiny_clients, "in_process")
        kept = weakref.ref(vars(algorithm)["_traces"])
        assert not vars(copy.deepcopy(kept()))["_kept"]
        del algorithm
        collect()
        assert kept() is None
