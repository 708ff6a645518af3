"""Identities that hold exactly in mathematics, checked to float32."""

import dataclasses
import itertools

import numpy as np
import pytest

from tests.comparison import assert_identical, assert_near
from tests.conftest import built, make_clients
from tests.methods import by_task, thorough
from tests.oracles import network
from tf_pflego.core.participation import Participation
from tf_pflego.simulation.simulation import Simulation

TOLERANCE = 2e-6  # float32 rounding of sums of a few terms of order 1.


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


class Chosen(Participation):
    """A participation whose participants are chosen instead of drawn."""

    def draw(self, seed, round_number, cohort="participants"):
        return np.asarray(self.clients_per_round_range, np.int64)


@by_task("r", {"2": 2, "1": 1, "3": 3}, "classification", "regression", "multi_label")
def test_proposition_1_the_mean_over_all_subsets_is_the_gradient(tiny_model, tiny_clients, r):
    """With tau = 1 the step of theta and all heads is an unbiased gradient of L.

    Where all clients take part, it is a step of gradient descent.
    """
    assert_mean_is_the_gradient(tiny_model, tiny_clients, r)


@pytest.mark.parametrize(("num_clients", "r", "rate"), [(4, 2, 0.3), thorough(5, 3, 0.6)])
def test_with_drop_outs_the_mean_over_all_that_may_happen_is_the_gradient(
    num_clients, r, rate, tiny_model
):
    """Whoever is drawn drops out with probability p: with I / (r (1 - p)) the step is unbiased."""
    sizes = (3, 7, 5, 4, 6)[:num_clients]
    data = make_clients(sizes, sizes, (2, 3, 2, 3, 2)[:num_clients])
    assert_mean_is_the_gradient(tiny_model, data, r, rate)


def assert_mean_is_the_gradient(model, data, r, rate=0.0):
    """All subsets of r clients are equally likely.

    Within each all patterns of drop-outs have their probabilities; one of them leaves nobody, and
    moves nothing.
    """
    one_step = {"local_steps": 1, "head_step_scale": "exact"}
    sgd = {"server_learning_rate": 1.0, "server_optimizer": "sgd"}
    drawn = Chosen(data.num_clients, r, dropout_rate=rate)
    algorithm = built("pflego", model, **one_step, **sgd)
    simulation = Simulation(algorithm, data, drawn, "in_process", seed=5)
    everybody = range(data.num_clients)
    start, states = simulation.server_state, simulation.client_states(everybody)
    theta = [np.asarray(w, np.float64) for w in start.theta]
    heads = {k: np.float64(states.head[k, :count]) for k, count in enumerate(data.num_classes)}
    g_theta, g_heads = joint_gradient(data, theta, heads)
    mean_theta = [np.zeros_like(w) for w in theta]
    mean_heads, total = {k: np.zeros_like(w) for k, w in heads.items()}, 0.0
    subsets = list(itertools.combinations(everybody, r))
    for subset in subsets:
        for reports in itertools.product((True, False) if rate else (True,), repeat=r):
            share = np.prod([1 - rate if one else rate for one in reports]) / len(subsets)
            survivors = tuple(itertools.compress(subset, reports))
            # The federation, and with it the scale, stays that of the draws.
            simulation.participation = dataclasses.replace(drawn, clients_per_round_range=survivors)
            simulation.server_state = start
            simulation.set_client_states(everybody, states)
            assert simulation.run_round()["participants"] == len(survivors)
            total += share
            after = simulation.server_state.theta
            for mean, w, before in zip(mean_theta, after, theta, strict=True):
                mean += share * (before - np.asarray(w, np.float64))
            moved = simulation.client_states(everybody).head
            for client, classes in enumerate(data.num_classes):
                mean_heads[client] += share * (heads[client] - moved[client, :classes])
            if not survivors:
                assert_identical(simulation.server_state.theta, theta)
    assert total == pytest.approx(1)
    assert_near(mean_theta, g_theta, atol=TOLERANCE)
    assert_near(mean_heads.values(), g_heads.values(), atol=TOLERANCE)
