"""The contract, put to every registered algorithm; and that it bears what later algorithms need."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.everything import build_everything
from tf_pflego import algorithms
from tf_pflego.core.algorithm import num_bytes
from tf_pflego.core.participation import Participation
from tf_pflego.training import Simulation

NAMES = sorted(algorithms.REGISTRY)


def simulation_of(algorithm, clients, engine="in_process", seed=2, participation=None):
    return Simulation(algorithm, clients, participation or Participation(3, 2), engine, seed)


def leaves(structure):
    return [np.asarray(leaf).copy() for leaf in tf.nest.flatten(structure)]


def everyone(simulation):
    return leaves(simulation.client_states(range(simulation.data.num_clients)))


def assert_identical(first, second):
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module", params=[*NAMES, "everything"])
def algorithm(request, tiny_model):
    if request.param == "everything":
        return build_everything(tiny_model)
    return algorithms.build(request.param, tiny_model, local_steps=3)


def test_absentees_are_untouched(algorithm, tiny_clients):
    simulation = simulation_of(algorithm, tiny_clients)
    before = everyone(simulation)
    simulation.run_round()
    drawn = {i for exchange in algorithm.exchanges for i in simulation.participation.draw(2, 1, exchange.cohort)}
    absent = sorted(set(range(3)) - drawn)
    for a, b in zip(before, everyone(simulation), strict=True):
        np.testing.assert_array_equal(a[absent], b[absent])


def test_functions_are_pure(algorithm, tiny_clients):
    """A round from the same state, in the same objects, gives the same bits and leaves its inputs alone."""
    simulation = simulation_of(algorithm, tiny_clients)
    simulation.run_round()
    server, clients = simulation.server_state, simulation.client_states(range(3))
    kept = leaves((server, clients))
    simulation.run_round()
    first = leaves(simulation.server_state) + everyone(simulation)
    assert_identical(leaves((server, clients)), kept)
    simulation.server_state, simulation.round_number = server, 1
    simulation.set_client_states(range(3), clients)
    simulation.run_round()
    assert_identical(leaves(simulation.server_state) + everyone(simulation), first)


def test_seed_repeats_the_run_and_another_does_not(algorithm, tiny_clients):
    def final(seed):
        simulation = simulation_of(algorithm, tiny_clients, seed=seed)
        simulation.run_round()
        simulation.run_round()
        return leaves(simulation.server_state) + everyone(simulation)

    assert_identical(final(4), final(4))
    assert any((a != b).any() for a, b in zip(final(4), final(5), strict=True))


def test_when_a_client_is_looked_at_changes_nothing(algorithm, tiny_clients):
    early, late = simulation_of(algorithm, tiny_clients), simulation_of(algorithm, tiny_clients)
    early.evaluate()
    early.run_round()
    late.run_round()
    assert_identical(everyone(early), everyone(late))


def test_round_with_nobody_changes_nothing_and_is_recorded(algorithm, tiny_clients):
    participation = Participation(3, 1, "range", (0, 1))
    empty = next(n for n in range(1, 100) if not any(len(participation.draw(2, n, e.cohort)) for e in algorithm.exchanges))
    simulation = simulation_of(algorithm, tiny_clients, participation=participation)
    simulation.round_number = empty - 1
    before = leaves(simulation.server_state) + everyone(simulation)
    record = simulation.run_round(evaluate=True)
    assert record["round"] == empty
    assert record["participants"] == record["bytes_down"] == record["bytes_up"] == 0
    assert "participant_test_accuracy/client_mean" not in record
    assert "test_accuracy/client_mean" in record
    assert_identical(leaves(simulation.server_state) + everyone(simulation), before)


def test_bytes_of_a_round_follow_from_the_messages(tiny_model, tiny_clients):
    theta = 4 * sum(w.size for w in tiny_model.initial_theta)
    head = 4 * 3 * 6
    for name, down, up in (("pflego", theta, theta), ("fedper", theta, theta + 4), ("fedavg", theta + head, theta + head + 4)):
        record = simulation_of(algorithms.build(name, tiny_model), tiny_clients).run_round()
        assert (record["bytes_down"], record["bytes_up"]) == (2 * down, 2 * up), name


def test_configurations_name_what_they_refuse():
    for config, _ in algorithms.REGISTRY.values():
        with pytest.raises(ValueError, match=r"`local_steps` must be at least 1; got 0"):
            config(local_steps=0)
        with pytest.raises(ValueError, match=r"`client_learning_rate` must be above 0; got -1"):
            config(client_learning_rate=-1.0)
        with pytest.raises(ValueError, match=r"`client_learning_rate` must be a finite number.*; got nan"):
            config(client_learning_rate=float("nan"))
        with pytest.raises(dataclasses.FrozenInstanceError):
            config().local_steps = 3
    with pytest.raises(ValueError, match=r"must be one of pflego, .*; got 'pflegoo'"):
        algorithms.build("pflegoo", None)


def test_num_bytes():
    assert num_bytes({"a": tf.zeros([2, 3]), "b": (tf.zeros([], tf.int64), np.zeros(5, np.int8))}) == 24 + 8 + 5
