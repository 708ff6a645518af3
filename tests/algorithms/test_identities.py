"""Identities that hold exactly in mathematics, and methods that do the same by other settings.

They are checked to float32. More of methods at a limit of their settings follows from the oracles
of their rounds.
"""

import dataclasses
import inspect
import itertools
import re

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.mini_batches import ROUNDS, flat, personal_model, simulation_of
from tests.comparison import assert_identical, assert_near
from tests.conftest import built, make_clients
from tests.methods import by_task, each_of
from tests.oracles import network
from tf_pflego import algorithms
from tf_pflego.core.algorithm import Weights
from tf_pflego.core.participation import Participation
from tf_pflego.simulation.simulation import Simulation

# float32 rounding of sums of a few terms of order 1, or over three rounds where the terms of sums
# come in another order.
TOLERANCE = 2e-6


def joint_gradient(data, parts, theta, own):
    """The gradient of L in the shared theta and in what each client has, [*personal, W_i]."""
    alpha = data.train.sizes / data.train.sizes.sum()
    g_theta, g_own = [np.zeros_like(w) for w in theta], {}
    for client in range(data.num_clients):
        body = parts.joined(Weights(theta, own[client][-1]), own[client][:-1])
        of_body, of_head = network.gradients(*body, *network.of_client(data.train, client))
        of_shared, of_personal = parts.split(Weights(of_body, of_head))
        pairs = zip(g_theta, of_shared.theta, strict=True)
        g_theta = [total + alpha[client] * part for total, part in pairs]
        g_own[client] = [alpha[client] * part for part in (*of_personal, of_head)]
    return g_theta, g_own


class Chosen(Participation):
    """A participation whose participants are chosen instead of drawn."""

    def draw(self, seed, round_number, cohort="participants"):
        return np.asarray(self.clients_per_round_range, np.int64)


@by_task("r", {"2": 2, "3": 3}, "classification", "regression", "multi_label")
def test_proposition_1_the_mean_over_all_subsets_is_the_gradient(tiny_model, tiny_clients, r):
    """With tau = 1 the step of theta and all heads is an unbiased gradient of L.

    Where all clients take part, it is a step of gradient descent.
    """
    assert_mean_is_the_gradient(tiny_model, tiny_clients, r)


def test_with_drop_outs_the_mean_over_all_that_may_happen_is_the_gradient(tiny_model):
    """Whoever is drawn drops out with probability p: with I / (r (1 - p)) the step is unbiased."""
    data = make_clients((3, 7, 5, 4), (3, 7, 5, 4), (2, 3, 2, 3))
    assert_mean_is_the_gradient(tiny_model, data, 2, 0.3)


def test_the_mean_is_the_gradient_if_weights_of_the_body_are_personal(tiny_clients):
    """Each client has biases of its own below the head, and all share the kernel."""
    assert_mean_is_the_gradient(personal_model("bias"), tiny_clients, 2)


def assert_mean_is_the_gradient(model, data, r, rate=0.0):
    """All subsets of r clients are equally likely.

    Within each all patterns of drop-outs have their probabilities; one of them leaves nobody, and
    moves nothing.
    """
    one_step = {"local_steps": 1, "head_step_scale": "exact"}
    sgd = {"server_learning_rate": 1.0, "server_optimizer": "sgd"}
    drawn = Chosen(data.num_clients, r, client_dropout=rate)
    algorithm = built("pflego", model, **one_step, **sgd)
    simulation = Simulation(algorithm, data, drawn, "in_process", seed=5)
    everybody = range(data.num_clients)
    start, states = simulation.server_state, simulation.client_states(everybody)
    theta, own = [np.asarray(w, np.float64) for w in start.theta], own_weights(states, data)
    g_theta, g_own = joint_gradient(data, model.parts, theta, own)
    mean_theta, total = [np.zeros_like(w) for w in theta], 0.0
    mean_own = {k: [np.zeros_like(w) for w in one] for k, one in own.items()}
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
            moved = own_weights(simulation.client_states(everybody), data)
            for client, means in mean_own.items():
                for mean, before, after in zip(means, own[client], moved[client], strict=True):
                    mean += share * (before - after)
            if not survivors:
                assert_identical(simulation.server_state.theta, theta)
    assert total == pytest.approx(1)
    assert_near(mean_theta, g_theta, atol=TOLERANCE)
    for client, means in mean_own.items():
        assert_near(means, g_own[client], atol=TOLERANCE)


def own_weights(states, data):
    """What each client of PFLEGO has, [*personal, W_i] with its rows alone, float64."""
    return {
        k: [*(np.float64(leaf[k]) for leaf in states.personal), np.float64(states.head[k, :count])]
        for k, count in enumerate(data.num_classes)
    }


def largest_difference(first, second):
    first, second = tf.nest.flatten(first), tf.nest.flatten(second)
    return max(np.abs(np.subtract(a, b)).max() for a, b in zip(first, second, strict=True))


def test_fedbn_without_batch_normalisation_is_fedavg(tiny_model, tiny_clients):
    pair = [simulation_of(name, tiny_model, tiny_clients) for name in ("fedbn", "fedavg")]
    for simulation in pair:
        simulation.run_round()
    assert_identical(*(flat(simulation.server_state.weights) for simulation in pair))


ONE_BATCH = {"batch_size": 100, "local_epochs": 3}
FULL_BATCH = {"batch_size": 0, "local_steps": 3}
STEPS_OR_EPOCHS = {
    "fedavg": ({}, {}),
    "fedrep": ({"head_epochs": 2}, {"local_steps": 5, "body_steps": 3}),
    "fedbabu": ({"fine_tuning_steps": 2}, {"fine_tuning_steps": 2}),
}


@pytest.mark.parametrize("name", each_of(STEPS_OR_EPOCHS, ("fedavg",)))
def test_an_epoch_of_one_batch_is_a_full_batch_step(tiny_model, tiny_clients, name):
    """The same for all that the server and the clients keep, and for what clients are served."""
    of_epochs, of_steps = STEPS_OR_EPOCHS[name]
    found, expected = (
        simulation_of(name, tiny_model, tiny_clients, **config)
        for config in (ONE_BATCH | of_epochs, FULL_BATCH | of_steps)
    )
    for _ in range(ROUNDS):
        found.run_round()
        expected.run_round()
        assert largest_difference(found.server_state, expected.server_state) <= TOLERANCE
    kept, wanted = found.client_states(range(3)), expected.client_states(range(3))
    assert not kept or largest_difference(kept, wanted) <= TOLERANCE
    losses = found.evaluate().train_loss, expected.evaluate().train_loss
    np.testing.assert_allclose(*losses, atol=TOLERANCE)


def asks_in_its_file(name):
    config, make = algorithms.REGISTRY[name]
    text = inspect.getsource(inspect.getmodule(make))
    asks = re.search(r"config\.(client_learning_)?rate\b", text)
    return hasattr(config, "client_learning_rate_decay") and asks is not None


# A method for each common way to ask for the rate of a round, and those with a way of their own.
ASKING = ["fedavg", "fedper", "ditto", *filter(asks_in_its_file, algorithms.REGISTRY)]


@pytest.mark.parametrize("name", each_of(ASKING, ("fedavg",)))
def test_a_rate_that_falls_by_half_is_half_the_rate_a_round_later(tiny_model, tiny_clients, name):
    """The rate of the steps on the personal model of pFedMe falls likewise."""
    rates = {"client_learning_rate": 0.1}
    rates |= {"personal_learning_rate": 0.1} if name == "pfedme" else {}
    falling, half = (
        simulation_of(name, tiny_model, tiny_clients, Participation(3, 2), **config)
        for config in (rates | {"client_learning_rate_decay": 0.5}, dict.fromkeys(rates, 0.05))
    )
    falling.run_round()
    half.server_state, half.round_number = falling.server_state, 1
    states = falling.client_states(range(3))
    for one in (falling, half):
        one.set_client_states(range(3), states)  # First states would follow the server's.
        one.run_round()
    states = [[one.server_state, one.client_states(range(3))] for one in (falling, half)]
    assert_identical(*map(tf.nest.flatten, states))
