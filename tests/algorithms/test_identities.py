"""Identities that hold exactly in mathematics, checked to float32."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.comparison import assert_identical, assert_near
from tests.conftest import built, make_clients, of_tasks
from tests.methods import thorough
from tests.oracles import network
from tf_pflego.core.participation import Participation
from tf_pflego.simulation.simulation import Simulation

TOLERANCE = 2e-6  # float32 rounding of sums of a few terms of order 1.
RATE = 0.25


def joint_gradient(data, theta, heads):
    """The gradient of L in theta and in every W_i, float64."""
    alpha = data.train.sizes / data.train.sizes.sum()
    g_theta, g_heads = [np.zeros_like(w) for w in theta], {}
    for client in range(data.num_clients):
        g, g_heads[client] = network.gradients(
            theta, heads[client], *network.of_client(data.train, client)
        )
        g_theta = [total + alpha[client] * part for total, part in zip(g_theta, g, strict=True)]
        g_heads[client] = alpha[client] * g_heads[client]
    return g_theta, g_heads


def initial(model, data, algorithm, seed):
    simulation = Simulation(algorithm, data, Participation(3, 3), "in_process", seed)
    heads = simulation.client_states(range(data.num_clients)).head
    own = {
        k: np.asarray(heads[k, :classes], np.float64) for k, classes in enumerate(data.num_classes)
    }
    return [np.asarray(w, np.float64) for w in model.initial_theta], own


def test_pflego_with_one_step_and_all_clients_is_gradient_descent(tiny_model, tiny_clients):
    algorithm = built(
        "pflego",
        tiny_model,
        local_steps=1,
        server_learning_rate=RATE,
        server_optimizer="sgd",
        head_step_scale="exact",
    )
    theta, heads = initial(tiny_model, tiny_clients, algorithm, seed=5)
    g_theta, g_heads = joint_gradient(tiny_clients, theta, heads)
    simulation = Simulation(algorithm, tiny_clients, Participation(3, 3), "in_process", seed=5)
    simulation.run_round()
    for w, start, g in zip(simulation.server_state.theta, theta, g_theta, strict=True):
        np.testing.assert_allclose(w, start - RATE * g, atol=TOLERANCE)
    for client, classes in enumerate(tiny_clients.num_classes):
        moved = simulation.client_states([client]).head[0, :classes]
        np.testing.assert_allclose(moved, heads[client] - RATE * g_heads[client], atol=TOLERANCE)


@pytest.mark.parametrize("r", [thorough(1), 2, thorough(3)])
@of_tasks("classification", "regression", "multi_label")
def test_proposition_1_the_mean_over_all_subsets_is_the_gradient(tiny_model, tiny_clients, r):
    """Proposition 1: with tau = 1 the step of theta and all heads is an unbiased gradient of L."""
    algorithm = built(
        "pflego",
        tiny_model,
        local_steps=1,
        server_learning_rate=1.0,
        server_optimizer="sgd",
        head_step_scale="exact",
    )
    theta, heads = initial(tiny_model, tiny_clients, algorithm, seed=5)
    g_theta, g_heads = joint_gradient(tiny_clients, theta, heads)
    subsets = list(itertools.combinations(range(3), r))
    mean_theta = [np.zeros_like(w) for w in theta]
    mean_heads = {k: np.zeros_like(w) for k, w in heads.items()}
    for subset in subsets:
        chosen = Chosen(3, r, clients_per_round_range=subset)
        simulation = Simulation(algorithm, tiny_clients, chosen, "in_process", seed=5)
        simulation.run_round()
        for total, w, start in zip(mean_theta, simulation.server_state.theta, theta, strict=True):
            total += (start - np.asarray(w, np.float64)) / len(subsets)
        for client, classes in enumerate(tiny_clients.num_classes):
            moved = simulation.client_states([client]).head[0, :classes]
            mean_heads[client] += (heads[client] - moved) / len(subsets)
    assert_near(mean_theta, g_theta, atol=TOLERANCE)
    for client in range(3):
        np.testing.assert_allclose(mean_heads[client], g_heads[client], atol=TOLERANCE)


class Chosen(Participation):
    """A participation whose participants are chosen instead of drawn."""

    def draw(self, seed, round_number, cohort="participants"):
        return np.asarray(self.clients_per_round_range, np.int64)


@pytest.mark.parametrize(("num_clients", "r", "rate"), [(4, 2, 0.3), thorough(5, 3, 0.6)])
def test_with_drop_outs_the_mean_over_all_that_may_happen_is_the_gradient(
    num_clients, r, rate, tiny_model
):
    """Whoever is drawn drops out with probability p: with I / (r (1 - p)) the step is unbiased.

    All subsets of r clients are equally likely, and within each all patterns of drop-outs have
    their probabilities; one of them leaves nobody, and moves nothing.
    """
    sizes = (3, 7, 5, 4, 6)[:num_clients]
    data = make_clients(sizes, sizes, (2, 3, 2, 3, 2)[:num_clients])
    algorithm = built(
        "pflego",
        tiny_model,
        local_steps=1,
        server_learning_rate=1.0,
        server_optimizer="sgd",
        head_step_scale="exact",
    )
    drawn = Chosen(num_clients, r, dropout_rate=rate)
    simulation = Simulation(algorithm, data, drawn, "in_process", seed=5)
    everybody = range(num_clients)
    start = simulation.server_state
    states = simulation.client_states(everybody)
    theta = [np.asarray(w, np.float64) for w in start.theta]
    heads = {
        k: np.asarray(states.head[k, :classes], np.float64)
        for k, classes in enumerate(data.num_classes)
    }
    g_theta, g_heads = joint_gradient(data, theta, heads)
    mean_theta = [np.zeros_like(w) for w in theta]
    mean_heads, total = {k: np.zeros_like(w) for k, w in heads.items()}, 0.0
    subsets = list(itertools.combinations(everybody, r))
    for subset in subsets:
        for reports in itertools.product((True, False), repeat=r):
            share = np.prod([1 - rate if one else rate for one in reports]) / len(subsets)
            survivors = tuple(itertools.compress(subset, reports))
            # The federation, and with it the scale, stays that of the draws.
            simulation.participation = dataclasses.replace(drawn, clients_per_round_range=survivors)
            simulation.server_state = start
            simulation.set_client_states(everybody, states)
            assert simulation.run_round()["participants"] == len(survivors)
            total += share
            for mean, w, before in zip(
                mean_theta, simulation.server_state.theta, theta, strict=True
            ):
                mean += share * (before - np.asarray(w, np.float64))
            moved = simulation.client_states(everybody).head
            for client, classes in enumerate(data.num_classes):
                mean_heads[client] += share * (heads[client] - moved[client, :classes])
            if not survivors:
                assert_identical(simulation.server_state.theta, theta)
    assert total == pytest.approx(1)
    assert_near(mean_theta, g_theta, atol=TOLERANCE)
    for client in everybody:
        np.testing.assert_allclose(mean_heads[client], g_heads[client], atol=TOLERANCE)


def server_states(name, model, data, rounds=3, **config):
    """The server's weights after each round, as flat lists of arrays."""
    simulation = Simulation(
        built(name, model, local_steps=4, **config),
        data,
        Participation(3, 2),
        "in_process",
    )
    states = []
    for _ in range(rounds):
        simulation.run_round()
        states.append([np.asarray(w).copy() for w in tf.nest.flatten(simulation.server_state)])
    return states


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "config"),
    [("fedprox", {"proximal_weight": 0.0}), ("ditto", {"proximal_weight": 3.0})],
)
def test_fedprox_without_its_term_and_what_ditto_shares_are_fedavg(
    tiny_model, tiny_clients, name, config
):
    shared = {"client_learning_rate": RATE}
    expected = server_states("fedavg", tiny_model, tiny_clients, **shared)
    for a, b in zip(
        server_states(name, tiny_model, tiny_clients, **shared, **config), expected, strict=True
    ):
        assert_near(a, b, atol=TOLERANCE)


@pytest.mark.thorough
def test_dittos_generic_model_serves_like_fedavgs(tiny_model, tiny_clients):
    """Both models that Ditto can serve are evaluated, each under its name."""
    records = []
    for name, config in (("ditto", {"proximal_weight": 3.0}), ("fedavg", {})):
        algorithm = built(name, tiny_model, local_steps=4, client_learning_rate=RATE, **config)
        simulation = Simulation(algorithm, tiny_clients, Participation(3, 2), "in_process")
        simulation.run_round()
        records.append(simulation.run_round(evaluate=True))
    ditto, fedavg = records
    assert ditto["generic/train_loss"] == pytest.approx(fedavg["train_loss"], abs=TOLERANCE)
    assert ditto["train_loss"] != pytest.approx(fedavg["train_loss"], abs=TOLERANCE)
    for mean in ("client_mean", "example_mean"):
        assert ditto[f"generic/test_accuracy/{mean}"] == fedavg[f"test_accuracy/{mean}"]


def test_fedrep_without_body_steps_leaves_theta(tiny_model, tiny_clients):
    for state in server_states(
        "fedrep", tiny_model, tiny_clients, client_learning_rate=RATE, body_steps=0
    ):
        assert_near(state, tiny_model.initial_theta, atol=TOLERANCE)


@pytest.mark.thorough
def test_feddane_with_everybody_in_its_first_cohort_and_one_client_is_fedprox(tiny_model):
    """With one client the mean gradient is its own, and the correction is 0."""

    data = make_clients((5,), (2,), (3,))
    states = []
    for name in ("feddane", "fedprox"):
        algorithm = built(
            name, tiny_model, local_steps=4, client_learning_rate=RATE, proximal_weight=0.5
        )
        simulation = Simulation(algorithm, data, Participation(1, 1), "in_process")
        simulation.run_round()
        states.append(tf.nest.flatten(simulation.server_state.weights))
    assert_near(*states, atol=TOLERANCE)
