"""Rounds of every algorithm against an independent float64 oracle, weight by weight."""

import numpy as np
import pytest

from tests.oracles import averaging, pflego
from tf_pflego import algorithms
from tf_pflego.core.participation import Participation
from tf_pflego.training import Simulation

# float32 against float64 over three rounds of up to six steps on weights of order 1.
ORACLE_TOLERANCE = 1e-5
ROUNDS = 3


def float64(arrays):
    return [np.asarray(a, np.float64) for a in arrays]


def own_heads(simulation):
    """Each client's K_i rows, and that the rows of absent classes never move."""
    heads = np.asarray(simulation.store.get(range(simulation.data.num_clients)).head, np.float64)
    own = {}
    for client, classes in enumerate(simulation.data.num_classes):
        own[client] = heads[client, :classes]
        assert not heads[client, classes:, :-1].any()
        assert (heads[client, classes:, -1] == -1e9).all()
    return own


def simulation_of(name, model, clients, **config):
    return Simulation(algorithms.build(name, model, **config), clients, Participation(3, 2), "in_process", seed=11)


def assert_close(actual, expected):
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=ORACLE_TOLERANCE, rtol=0)


@pytest.mark.parametrize("scale", ["algorithm1", "exact"])
@pytest.mark.parametrize("tau", [1, 6])
def test_pflego(tiny_model, tiny_clients, scale, tau):
    config = {"local_steps": tau, "client_learning_rate": 0.3, "server_learning_rate": 0.2, "head_step_scale": scale}
    simulation = simulation_of("pflego", tiny_model, tiny_clients, server_optimizer="sgd", **config)
    theta, heads = float64(tiny_model.initial_theta), own_heads(simulation)
    for number in range(1, ROUNDS + 1):
        participants = simulation.participation.draw(simulation.seed, number)
        theta, heads = pflego.one_round(theta, heads, tiny_clients, participants, {**config, "clients_per_round": 2})
        simulation.run_round()
        assert_close(simulation.server_state.theta, theta)
        assert_close(own_heads(simulation).values(), heads.values())


def test_fedper(tiny_model, tiny_clients):
    config = {"local_steps": 6, "client_learning_rate": 0.1}
    simulation = simulation_of("fedper", tiny_model, tiny_clients, **config)
    theta, heads = float64(tiny_model.initial_theta), own_heads(simulation)
    for number in range(1, ROUNDS + 1):
        participants = simulation.participation.draw(simulation.seed, number)
        theta, heads = averaging.fedper_round(theta, heads, tiny_clients, participants, config)
        simulation.run_round()
        assert_close(simulation.server_state.theta, theta)
        assert_close(own_heads(simulation).values(), heads.values())


def test_fedavg(tiny_model, tiny_clients):
    config = {"local_steps": 6, "client_learning_rate": 0.1}
    simulation = simulation_of("fedavg", tiny_model, tiny_clients, **config)
    theta, head = float64(tiny_model.initial_theta), float64([simulation.server_state.weights.head])[0]
    for number in range(1, ROUNDS + 1):
        participants = simulation.participation.draw(simulation.seed, number)
        theta, head = averaging.fedavg_round(theta, head, tiny_clients, participants, config)
        simulation.run_round()
        assert_close(simulation.server_state.weights.theta, theta)
        assert_close([simulation.server_state.weights.head], [head])
