"""Identities that hold exactly in mathematics, checked to float32."""

import itertools

import numpy as np
import pytest

from tests.oracles import network
from tf_pflego import algorithms, engines
from tf_pflego.core import seeds
from tf_pflego.core.algorithm import Round
from tf_pflego.core.participation import Participation
from tf_pflego.data.mapped import MappedData
from tf_pflego.training import Simulation

TOLERANCE = 2e-6  # float32 rounding of sums of a few terms of order 1.
RATE = 0.25


def joint_gradient(data, theta, heads):
    """The gradient of L in theta and in every W_i, float64."""
    alpha = data.train.sizes / data.train.sizes.sum()
    g_theta, g_heads = [np.zeros_like(w) for w in theta], {}
    for client in range(data.num_clients):
        g, g_heads[client] = network.gradients(theta, heads[client], *network.of_client(data.train, client))
        g_theta = [total + alpha[client] * part for total, part in zip(g_theta, g, strict=True)]
        g_heads[client] = alpha[client] * g_heads[client]
    return g_theta, g_heads


def initial(model, data, algorithm, seed):
    from tf_pflego.core.state_store import ClientStateStore

    heads = ClientStateStore(algorithm, data.num_classes, seed).get(range(data.num_clients)).head
    own = {k: np.asarray(heads[k, :classes], np.float64) for k, classes in enumerate(data.num_classes)}
    return [np.asarray(w, np.float64) for w in model.initial_theta], own


def test_pflego_with_one_step_and_all_clients_is_gradient_descent(tiny_model, tiny_clients):
    algorithm = algorithms.build(
        "pflego", tiny_model, local_steps=1, server_learning_rate=RATE, server_optimizer="sgd", head_step_scale="exact"
    )
    theta, heads = initial(tiny_model, tiny_clients, algorithm, seed=5)
    g_theta, g_heads = joint_gradient(tiny_clients, theta, heads)
    simulation = Simulation(algorithm, tiny_clients, Participation(3, 3), "in_process", seed=5)
    simulation.run_round()
    for w, start, g in zip(simulation.server_state.theta, theta, g_theta, strict=True):
        np.testing.assert_allclose(w, start - RATE * g, atol=TOLERANCE)
    for client, classes in enumerate(tiny_clients.num_classes):
        moved = simulation.store.get([client]).head[0, :classes]
        np.testing.assert_allclose(moved, heads[client] - RATE * g_heads[client], atol=TOLERANCE)


@pytest.mark.parametrize("r", [1, 2, 3])
def test_proposition_1_the_mean_over_all_subsets_is_the_gradient(tiny_model, tiny_clients, r):
    """With tau = 1 the whole step, of theta and of every head, is an unbiased gradient of L; see Proposition 1."""
    algorithm = algorithms.build(
        "pflego", tiny_model, local_steps=1, server_learning_rate=1.0, server_optimizer="sgd", head_step_scale="exact"
    )
    theta, heads = initial(tiny_model, tiny_clients, algorithm, seed=5)
    g_theta, g_heads = joint_gradient(tiny_clients, theta, heads)
    subsets = list(itertools.combinations(range(3), r))
    mean_theta = [np.zeros_like(w) for w in theta]
    mean_heads = {k: np.zeros_like(w) for k, w in heads.items()}
    for subset in subsets:
        simulation = Simulation(algorithm, tiny_clients, Participation(3, r), "in_process", seed=5)
        step(simulation, subset)
        for total, w, start in zip(mean_theta, simulation.server_state.theta, theta, strict=True):
            total += (start - np.asarray(w, np.float64)) / len(subsets)
        for client, classes in enumerate(tiny_clients.num_classes):
            moved = simulation.store.get([client]).head[0, :classes]
            mean_heads[client] += (heads[client] - moved) / len(subsets)
    for estimate, g in zip(mean_theta, g_theta, strict=True):
        np.testing.assert_allclose(estimate, g, atol=TOLERANCE)
    for client in range(3):
        np.testing.assert_allclose(mean_heads[client], g_heads[client], atol=TOLERANCE)


def step(simulation, subset):
    """A round of chosen participants."""
    ids = np.asarray(subset)
    (exchange,) = simulation.algorithm.exchanges
    round_ = Round(np.int32(1), np.float32(simulation.participation.scale))
    participants = engines.Participants(ids, seeds.client_seeds(0, "client", ids, 1), simulation.store.get(ids), ())
    engine = engines.build("in_process", simulation.algorithm, MappedData(simulation.data), len(ids))
    message = exchange.broadcast(simulation.server_state, round_)
    outcome = engine.run_exchange(exchange, message, participants, round_, evaluate=False)
    simulation.server_state = exchange.server_update(simulation.server_state, outcome.summed, outcome.kept, ids, round_)
    simulation.store.put(ids, outcome.states)


def test_fedavg_of_one_client_is_its_local_training(tiny_model):
    from tests.conftest import make_clients
    from tests.oracles.averaging import local_steps

    data = make_clients((5,), (2,), (3,))
    config = {"local_steps": 4, "client_learning_rate": 0.2}
    simulation = Simulation(algorithms.build("fedavg", tiny_model, **config), data, Participation(1, 1), "in_process")
    start = [np.asarray(w, np.float64) for w in simulation.server_state.weights.theta]
    head = np.asarray(simulation.server_state.weights.head, np.float64)
    theta, head = local_steps(start, head, *network.of_client(data.train, 0), config)
    simulation.run_round()
    np.testing.assert_allclose(simulation.server_state.weights.head, head, atol=TOLERANCE)
    np.testing.assert_allclose(simulation.server_state.weights.theta[0], theta[0], atol=TOLERANCE)
