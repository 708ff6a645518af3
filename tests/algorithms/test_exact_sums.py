"""Sums of exact gradients need no repair: neither for Muon's steps nor for factors of matrices.

docs/method_note.md states the figures.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.mini_batches import assert_close, combine, flat, heads_of
from tests.conftest import FEATURES, INPUTS, build_method
from tests.methods import thorough
from tests.oracles import averaging, network
from tf_pflego import models
from tf_pflego.core.participation import Participation
from tf_pflego.data import ClientData, ClientSplit
from tf_pflego.data.partitions.partition import starts
from tf_pflego.simulation.simulation import Simulation

layers = tf.keras.layers
# The scale of examples and labels. A step of Muon does not depend on it, and a step on the head is
# proportional to its square: heads stay as they are, and losses are convex in the body's matrix.
UNIT = 1e-3
# The matrices that are best for three clients: two agree.
BEST = np.array([[[0.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]], [[1.8, -2.4], [2.4, 1.8]]])


@pytest.fixture(scope="module")
def least_squares():
    """A model phi = x A, with A [2, 2], and clients i with the least squared error at BEST[i]."""
    body = tf.keras.Sequential([tf.keras.Input((2,)), layers.Dense(2, use_bias=False)])
    body.set_weights([np.array([[1.0, 0.5], [-0.3, 0.8]], np.float32)])
    model = models.SplitModel(body, 2, seed=1, task="regression")
    head = model.initial_weights().head.numpy()
    # With each example its opposite, so that biases stay at 0.
    x = UNIT * np.concatenate([np.eye(2), -np.eye(2)]).astype(np.float32)
    labels = np.concatenate([x @ best @ head[:, :2].T for best in BEST]).astype(np.float32)
    split = ClientSplit(np.concatenate([x] * 3), labels, np.array([0, 4, 8, 12]))
    return model, ClientData(split, split, np.full(3, 2), task="regression")


def slope(model, a):
    """The norm of the gradient of the mean loss in A, in units of UNIT squared."""
    head = model.initial_weights().head.numpy()[:, :2].astype(float)
    return np.linalg.norm((np.asarray(a, float) - BEST.mean(axis=0)) @ head.T @ head / 2)


def matrix_after(rounds, name, model, clients, participants=3, **settings):
    """A after some rounds of clients whose heads are alike at first and stay so."""
    method = build_method(name, model, **settings)
    simulation = Simulation(method, clients, Participation(3, participants), "in_process", 0)
    first = model.initial_weights().head.numpy()
    if name == "pflego":
        states = simulation.client_states(range(3))
        simulation.set_client_states(range(3), states._replace(head=np.stack([first] * 3)))
    for _ in range(rounds):
        simulation.run_round()
    server = simulation.server_state
    if name == "pflego":
        (a,), heads = server.theta, simulation.client_states(range(3)).head
    else:
        (a,), heads = server.weights
    np.testing.assert_allclose(heads, np.broadcast_to(first, heads.shape), atol=1e-4)
    return a


MUON_AT_SERVER = {"server_optimizer": "muon", "server_schedule": "cosine", "local_steps": 1}


@pytest.mark.thorough
@pytest.mark.parametrize("halvings", [0, thorough(1)])
def test_averaged_steps_of_muon_end_where_clients_disagree_and_exact_sums_do_not(
    least_squares, halvings
):
    """Also after twice the rounds of half the rate."""
    rounds, rate = 100 * 2**halvings, 0.05 / 2**halvings
    local = {"batch_size": 0, "local_epochs": 5, "client_learning_rate": rate}
    local["client_learning_rate_decay"] = 0.96 ** (1 / 2**halvings)
    model, _ = least_squares
    assert slope(model, model.initial_theta[0]) == pytest.approx(1.06, abs=0.005)
    stays = matrix_after(rounds, "fedmuon", *least_squares, control_variates=False, **local)
    np.testing.assert_allclose(stays, BEST[0], atol=2e-3)
    assert slope(model, stays) == pytest.approx(0.966, abs=1e-3)
    assert slope(model, matrix_after(rounds, "fedmuon", *least_squares, **local)) < 1e-3
    server = MUON_AT_SERVER | {"server_learning_rate": rate, "schedule_rounds": 2 * rounds}
    assert slope(model, matrix_after(2 * rounds, "pflego", *least_squares, **server)) < 1e-3


@pytest.mark.thorough
@pytest.mark.parametrize(("rounds", "rate"), [(600, 0.05), thorough(800, 0.0125)])
def test_with_one_client_in_a_round_only_variates_lead_muon_to_the_end(least_squares, rounds, rate):
    """The sum is an unbiased gradient, but a step of Muon is not linear in it."""
    server = MUON_AT_SERVER | {"server_learning_rate": rate, "schedule_rounds": rounds}
    model, _ = least_squares
    stays = matrix_after(rounds, "pflego", *least_squares, participants=1, **server)
    assert 0.17 < slope(model, stays) < 0.19
    local = {"batch_size": 0, "local_epochs": 5, "client_learning_rate": 0.05}
    local["client_learning_rate_decay"] = 0.98
    ends = matrix_after(300, "fedmuon", *least_squares, participants=1, **local)
    assert slope(model, ends) < 1e-3


@functools.cache
def adapted():
    """A model with two trained factors, and the frozen kernel to which their product is added."""
    rng = np.random.default_rng(2)
    layer = layers.Dense(FEATURES, use_bias=False)
    body = tf.keras.Sequential([tf.keras.Input((INPUTS,)), layer])
    layer.enable_lora(2)
    for factor in (layer.lora_kernel_a, layer.lora_kernel_b):
        factor.assign(rng.normal(size=factor.shape))
    return models.SplitModel(body, 3, seed=3), np.array(layer._kernel, np.float64)


def of_one(clients, k):
    """A federation of only one of the clients."""
    splits = []
    for split in (clients.train, clients.test):
        x, y = network.of_client(split, k)
        splits.append(ClientSplit(x.astype(np.float32), y.astype(np.int32), starts([len(y)])))
    return ClientData(*splits, clients.num_classes[k : k + 1])


def with_lora(test):
    """Keras has LoRA from version 3."""
    has = hasattr(layers.Dense, "enable_lora")
    skipped = pytest.mark.skipif(not has, reason="needs LoRA of Keras 3")
    return pytest.mark.lines("current")(skipped(test))


@with_lora
def test_averaged_factors_of_lora_are_not_the_factors_of_averaged_products(tiny_clients):
    """After 20 steps they differ by 4.5 percent of the move of the averaged products."""
    model, _ = adapted()
    local = {"batch_size": 0, "local_steps": 20, "client_learning_rate": 0.1}
    fedavg = build_method("fedavg", model, **local)

    def after_a_round(clients):
        everybody = Participation(clients.num_clients, clients.num_clients)
        simulation = Simulation(fedavg, clients, everybody, "in_process", 0)
        simulation.run_round()
        return flat(simulation.server_state.weights)[:2]

    sizes = tiny_clients.train.sizes
    of_each = [after_a_round(of_one(tiny_clients, k)) for k in range(3)]
    a, b = after_a_round(tiny_clients)
    assert_close([a, b], averaging.mean(of_each, sizes))
    products = np.average([np.matmul(*factors) for factors in of_each], axis=0, weights=sizes)
    move = products - np.matmul(*flat(model.initial_theta))
    error = np.linalg.norm(products - a @ b) / np.linalg.norm(move)
    assert error == pytest.approx(0.045, abs=5e-4)


@with_lora
def test_a_step_on_factors_by_summed_gradients_is_the_step_on_the_joint_loss(tiny_clients):
    """Against its numerical derivatives in float64, in the factors and in all heads."""
    model, kernel = adapted()
    server = {"server_optimizer": "sgd", "server_learning_rate": 0.1, "head_step_scale": "exact"}
    method = build_method("pflego", model, local_steps=1, **server)
    simulation = Simulation(method, tiny_clients, Participation(3, 3), "in_process", 0)
    shares = tiny_clients.train.sizes / tiny_clients.train.sizes.sum()
    for _ in range(2):
        factors, heads = flat(simulation.server_state.theta), heads_of(simulation)

        def joint(weights):
            a, b, *heads = weights
            losses = []
            for k, head in enumerate(heads):
                x, y = network.of_client(tiny_clients.train, k)
                z = np.hstack([x @ (kernel + a @ b), np.ones((len(x), 1))]) @ head.T
                losses.append(network.losses(z, y)[0].mean())
            return shares @ losses

        slopes = network.numerical_gradient(joint, [*factors, *heads])
        expected = combine([*factors, *heads], -0.1, slopes)
        simulation.run_round()
        assert_close(flat(simulation.server_state.theta) + heads_of(simulation), expected)
