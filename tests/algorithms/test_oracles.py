"""Rounds on all examples of a client against independent float64 oracles, weight by weight.

Those on mini-batches are in `test_mini_batches`. A method that can do both does the same with one
batch of all examples, as `test_identities` shows, and has its oracle there.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.mini_batches import (
    ROUNDS,
    SEED,
    assert_close,
    flat,
    heads_of,
    rounds_of,
    simulation_of,
)
from tests.comparison import assert_near
from tests.conftest import of_tasks
from tests.methods import by_task, thorough
from tests.oracles import network, pflego
from tf_pflego.algorithms.fedavg import FedAvgConfig
from tf_pflego.core import seeds
from tf_pflego.core.algorithm import Algorithm, ClientResult
from tf_pflego.core.participation import Participation
from tf_pflego.simulation.simulation import Simulation

pytestmark = pytest.mark.grappler


def assert_rounds(simulation, one_round, configs):
    """Runs rounds after which theta and all heads must be the oracle's, by the config of each."""
    theta, heads = flat(simulation.server_state.theta), dict(enumerate(heads_of(simulation)))
    for config, (_, participants) in zip(configs, rounds_of(simulation), strict=True):
        config = {"head_step_scale": "algorithm1", "clients_per_round": 2} | config
        theta, heads = one_round(theta, heads, simulation.data, participants, config)
        simulation.run_round()
        assert_close(simulation.server_state.theta, theta)
        assert_close(heads_of(simulation), heads.values())


@pytest.mark.parametrize(
    ("scale", "rate"), [("algorithm1", 0.3), ("exact", 0.3), thorough("exact", "auto")]
)
def test_pflego(tiny_model, tiny_clients, scale, rate):
    """An automatic beta is rho I/r here, since the curvature of these tiny losses is small."""
    config = {"local_steps": 6, "client_learning_rate": 0.3}
    config |= {"server_learning_rate": 0.2, "head_step_scale": scale}
    asked = config | {"client_learning_rate": rate}
    simulation = simulation_of("pflego", tiny_model, tiny_clients, server_optimizer="sgd", **asked)
    assert_rounds(simulation, pflego.one_round, [config] * ROUNDS)


@of_tasks("regression")
@pytest.mark.parametrize("penalty", [thorough(0.0), 0.3])
def test_pflego_whose_heads_are_solved_exactly(tiny_model, tiny_clients, penalty):
    """A participant's head is its ridge regression, also after the last step: its gradient is 0."""
    asked = {"head_solver": "exact", "head_penalty": penalty, "server_optimizer": "sgd"}
    rate = {"server_learning_rate": 0.2}
    simulation = simulation_of("pflego", tiny_model, tiny_clients, **asked, **rate)
    theta, heads = flat(simulation.server_state.theta), dict(enumerate(heads_of(simulation)))
    for _, participants in rounds_of(simulation):
        for client in participants:
            x, y = network.of_client(tiny_clients.train, client)
            heads[client] = network.ridge(network.forward(theta, heads[client], x)[1], y, penalty)
        config = {"local_steps": 1, "head_step_scale": "exact", "clients_per_round": 2} | rate
        config["client_learning_rate"] = 0.0  # No head takes a step but the last.
        theta, _ = pflego.one_round(theta, heads, tiny_clients, participants, config)
        simulation.run_round()
        assert_close(simulation.server_state.theta, theta)
        # Without a penalty, and with fewer examples than features, weights are of order 10.
        assert_near(heads_of(simulation), heads.values(), atol=1e-5, rtol=1e-5)


# Of the server's rate in rounds 1, 2 and 3 of 3.
SHARES = {"late_linear": (1, 1, 1 / 2), "cosine": (1, 3 / 4, 1 / 4)}
SCHEDULES = {"pflego": ("pflego", "late_linear"), "fedrecon": ("fedrecon", "cosine")}


@by_task("name,schedule", SCHEDULES, "classification", "regression")
def test_a_schedule_of_the_servers_rate(tiny_model, tiny_clients, name, schedule):
    """It holds for theta and for the last step of a head, and not for the steps before."""
    config = {"local_steps": 5, "client_learning_rate": 0.3, "server_learning_rate": 0.2}
    asked = {"server_optimizer": "sgd", "server_schedule": schedule, "schedule_rounds": ROUNDS}
    simulation = simulation_of(name, tiny_model, tiny_clients, **config, **asked)
    one_round = {"pflego": pflego.one_round, "fedrecon": pflego.fedrecon_round}[name]
    configs = [config | {"server_learning_rate": 0.2 * share} for share in SHARES[schedule]]
    assert_rounds(simulation, one_round, configs)


def drawn_heads(model, clients, seed, purpose, *keys):
    """The K_i rows of the new head that each client would draw."""
    drawn = {}
    for client, count in enumerate(clients.num_classes):
        (own,) = seeds.client_seeds(seed, purpose, [client], *keys)
        (classes,) = clients.head_classes([client], model.num_classes)
        drawn[client] = flat([model.uniform_head(own, classes)])[0][:count]
    return drawn


def test_fedrecon_with_heads_anew(tiny_model, tiny_clients):
    """Heads start from new draws in each round."""
    config = {"local_steps": 5, "client_learning_rate": 0.3, "server_learning_rate": 0.2}
    asked = config | {"server_optimizer": "sgd", "head_start": "anew"}
    simulation = simulation_of("fedrecon", tiny_model, tiny_clients, **asked)
    assert simulation.client_states(range(3)) == ()
    theta = flat(tiny_model.initial_theta)
    known = {**config, "clients_per_round": 2}
    for number, participants in rounds_of(simulation):
        heads = drawn_heads(tiny_model, tiny_clients, SEED, "client", number, 0)
        theta, heads = pflego.fedrecon_round(theta, heads, tiny_clients, participants, known)
        simulation.run_round()
        assert_close(simulation.server_state.theta, theta)


@pytest.mark.parametrize("name", ["fedavg", thorough("pgfed")])
def test_the_server_takes_a_step_of_adam_towards_the_mean(tiny_model, tiny_clients, name):
    """FedAdam, with tau = 1e-3 and a cosine over three rounds."""
    plain = simulation_of(name, tiny_model, tiny_clients)
    adam = {"server_optimizer": "adam", "server_learning_rate": 0.02}
    adam |= {"server_schedule": "cosine", "schedule_rounds": ROUNDS}
    simulation = simulation_of(name, tiny_model, tiny_clients, **adam)
    weights = flat(simulation.server_state.weights)
    m, v = ([np.zeros_like(w) for w in weights] for _ in range(2))
    for t, share in enumerate(SHARES["cosine"], start=1):
        # The mean is that of the plain method from the same weights.
        states = simulation.client_states(range(3))
        plain.server_state = simulation.server_state._replace(optimizer=())
        plain.set_client_states(range(3), states)
        plain.run_round()
        mean = flat(plain.server_state.weights)
        simulation.run_round()
        for k, (w, new) in enumerate(zip(weights, mean, strict=True)):
            m[k] = 0.9 * m[k] + 0.1 * (w - new)
            v[k] = 0.999 * v[k] + 0.001 * (w - new) ** 2
            # Epsilon is beside the root without its correction, as in Keras.
            rate = 0.02 * share * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            weights[k] = w - rate * m[k] / (np.sqrt(v[k]) + 1e-3)
        assert_close(flat(simulation.server_state.weights), weights)


@pytest.mark.parametrize("optimizer, rate", [("sgd", 1.0), ("adam", 0.01)])
def test_the_rate_of_a_server_that_averages_follows_its_optimizer(optimizer, rate):
    """The other oracles here show that the default, sgd of rate 1, takes the mean."""
    assert FedAvgConfig() == FedAvgConfig(server_optimizer="sgd", server_learning_rate=1.0)
    config = FedAvgConfig(server_optimizer=optimizer)
    assert config.server_learning_rate == rate
    assert dataclasses.replace(config, server_learning_rate=0.5).server_learning_rate == 0.5


@pytest.mark.parametrize("uniform", [False, True])
def test_the_server_gets_the_sum_and_the_mean_by_alpha(tiny_model, tiny_clients, uniform):
    def client_update(message, state, client, round_):
        number = tf.cast(client.num_examples, tf.float32)
        return ClientResult((), summed=number, averaged={"number": number})

    def server_update(server, uploads, round_):
        return uploads.summed, uploads.averaged["number"], uploads.count

    method = Algorithm.with_one_exchange(
        "sums",
        tiny_model,
        init_server=lambda federation: (tf.zeros([]), tf.zeros([]), tf.zeros([])),
        broadcast=lambda server, round_: (),
        client_update=client_update,
        server_update=server_update,
        served={"generic": lambda server, client: tiny_model.initial_weights()},
    )
    clients = dataclasses.replace(tiny_clients, uniform_weights=uniform)
    with Simulation(method, clients, Participation(3, 3), "in_process", seed=1) as simulation:
        record = simulation.run_round()
        sizes = tiny_clients.train.sizes
        weights = np.ones(3) if uniform else sizes
        expected = sizes.sum(), np.average(sizes, weights=weights), 3
        np.testing.assert_allclose([float(x) for x in simulation.server_state], expected, rtol=1e-6)
    assert record["bytes_up"] == 3 * (4 + 4 + 4)  # The number twice, and alpha_i.
