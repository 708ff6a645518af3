"""Weights of a body that stay with each client, against float64 oracles and outside of a run.

The tiny network has a dense layer with a shared kernel and, of each client, a bias.
"""

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.algorithms.mini_batches import (
    assert_close,
    draw,
    flat,
    personal_model,
    rounds_of,
    simulation_of,
    train,
    weighted_mean,
)
from tests.conftest import make_clients
from tests.engines.agreement import ENGINES, assert_agreement
from tests.methods import thorough
from tests.oracles import network
from tf_pflego import algorithms

RATES = {"local_steps": 4, "client_learning_rate": 0.3, "server_learning_rate": 0.2}


def own_weights(simulation, client):
    """[bias, W_i with its rows alone] of a client, float64."""
    state = simulation.client_states([client])
    head = getattr(state, "head", None)
    (bias,) = state if head is None else state.personal
    rows = simulation.data.num_classes[client]
    return [np.float64(bias[0]), *([] if head is None else [np.float64(head[0, :rows])])]


@pytest.mark.parametrize("scale", ["algorithm1", thorough("exact")])
def test_a_round_of_pflego(tiny_clients, scale):
    model, data = personal_model("bias"), tiny_clients
    asked = RATES | {"head_step_scale": scale, "server_optimizer": "sgd"}
    simulation = simulation_of("pflego", model, data, **asked)
    own = {client: own_weights(simulation, client) for client in range(3)}
    kernel, sizes = flat(simulation.server_state.theta)[0], data.train.sizes
    for _, participants in rounds_of(simulation):
        total = 0
        for client in participants:
            bias, head = own[client]
            x, y = network.of_client(data.train, client)
            alpha, rho = sizes[client] / sizes.sum(), RATES["server_learning_rate"] * 3 / 2
            for rate in [RATES["client_learning_rate"]] * 3 + [rho]:
                (g_kernel, g_bias), g_head = network.gradients([kernel, bias], head, x, y)
                rate *= alpha if scale == "exact" and rate == rho else 1
                bias, head = bias - rate * g_bias, head - rate * g_head
            own[client], total = [bias, head], total + alpha * g_kernel
        kernel = kernel - rho * total
        simulation.run_round()
        assert_close(simulation.server_state.theta, [kernel])
        for client, expected in own.items():
            assert_close(own_weights(simulation, client), expected)


def test_steps_that_raise_the_loss_are_dropped(tiny_clients):
    """Those of a rate that is too large; the last step alone is left."""
    runs = [
        simulation_of("pflego", personal_model("bias"), tiny_clients, **RATES | asked)
        for asked in ({"client_learning_rate": 1e6}, {"local_steps": 1})
    ]
    for simulation in runs:
        simulation.run_round()
    assert_close(*(own_weights(one, 1) for one in runs))


def of_head(body):
    return lambda head, x, y: [network.gradients(body, *head, x, y)[1]]


def of_body(head):
    return lambda body, x, y: network.gradients(body, head, x, y)[0]


@pytest.mark.parametrize(
    ("method", "asked"),
    [
        ("fedper", {}),
        thorough("fedavg", {"fine_tuning_steps": 0}),
        thorough("fedrep", {"head_epochs": 1}),
    ],
)
def test_rounds_that_average(tiny_clients, method, asked):
    """FedRep trains the head first, and kernel and bias after it."""
    model, data = personal_model("bias"), tiny_clients
    simulation = simulation_of(method, model, data, **asked)
    shared = flat(simulation.server_state.weights)
    own = {client: own_weights(simulation, client) for client in range(3)}

    for number, participants in rounds_of(simulation):
        trained = {}
        for client in participants:
            weights, drawn = [shared[0], *own[client], *shared[1:]], draw(data, client, number)
            if method == "fedrep":
                *body, head = weights
                first = draw(data, client, number, stream=1, local_epochs=1)
                (head,) = train([head], first, of_head(body))
                weights = [*train(body, drawn, of_body(head)), head]
            else:
                weights = train(weights, drawn)
            trained[client] = [weights[0], *weights[2:]] if method == "fedavg" else [weights[0]]
            own[client] = weights[1 : len(own[client]) + 1]
        shared = weighted_mean(list(trained.values()), data, participants)
        simulation.run_round()
        assert_close(flat(simulation.server_state.weights), shared)
        for client, expected in own.items():
            assert_close(own_weights(simulation, client), expected)


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ENGINES[1:], indirect=True)
def test_it_trains_alike_on_all_engines(engine, tiny_clients):
    algorithm = algorithms.build("pflego", personal_model("bias"), **RATES)
    assert_agreement(algorithm, tiny_clients, engine)


@pytest.fixture(scope="module")
def trained(tiny_clients):
    simulation = simulation_of("pflego", personal_model("bias"), tiny_clients, **RATES)
    simulation.run(3)
    return simulation


@pytest.mark.thorough
def test_it_is_served_exported_and_learns_on(trained, tiny_clients, tmp_path):
    """On-device training moves the client's own weights, and no others."""
    x, y = tiny_clients.train.of(1)
    of_run = trained.served_weights(1)
    assert not np.array_equal(of_run.theta[1], trained.served_weights(0).theta[1])
    pfl.export_clients(trained, [1], tmp_path / "models")
    loaded = tf.saved_model.load(str(tmp_path / "models" / "client_1"))
    z = network.forward(flat(of_run)[:-1], flat(of_run)[-1], x)[2]
    expected = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(loaded.predict(tf.constant(x))["probabilities"], expected, atol=1e-5)
    learn = loaded.signatures["personalize"]
    steps = {"steps": tf.constant(1), "learning_rate": tf.constant(0.1)}
    learn(examples=tf.constant(x), labels=tf.constant(y), **steps)
    kernel, bias, head = flat(of_run)
    (_, g_bias), g_head = network.gradients([kernel, bias], head, x.astype(np.float64), y)
    with_step = [kernel, bias - 0.1 * g_bias], head - 0.1 * g_head
    z = network.forward(*with_step, x)[2]
    expected = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(loaded.predict(tf.constant(x))["probabilities"], expected, atol=1e-5)


def test_new_clients_train_what_is_theirs(trained):
    new = pfl.NewClients(trained, make_clients(), steps=5, learning_rate=0.1)
    (kernel,), first = trained.server_state.theta, trained.algorithm.model.initial_theta[1]
    for client in new.learnt():
        assert np.array_equal(client.weights.theta[0], kernel)
        assert not np.array_equal(client.weights.theta[1], first)


def test_what_does_not_go_with_it_is_refused(trained, tmp_path):
    with pytest.raises(ValueError, match="one body for all clients"):
        pfl.export_bundle(trained, "all", tmp_path / "bundle")
    with pytest.raises(ValueError, match="`learning_rate` must be a number"):
        pfl.NewClients(trained, make_clients())
    with pytest.raises(ValueError, match="Take the clients one by one"):
        trained.personalize()
    model = personal_model("bias")
    with pytest.raises(ValueError, match="`personal` must be empty for scaffold"):
        algorithms.build("scaffold", model)
    for of_head in ({"head_solver": "newton"}, {"client_learning_rate": "auto"}):
        with pytest.raises(ValueError, match="`head_solver` must be gd, momentum or adam, with"):
            algorithms.build("pflego", model, **of_head)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("bias, lora_*", r"'lora_\*' matches none of bias, dense, kernel"),
        ("*", r"`personal` must leave a shared weight in the body"),
    ],
)
def test_names_are_checked(names, message):
    body = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(3, name="dense")])
    with pytest.raises(ValueError, match=message):
        pfl.SplitModel(body, 2, personal=names)


def test_a_layer_in_a_layer_is_chosen_with_it():
    layers = tf.keras.layers
    adapter = tf.keras.Sequential(
        [tf.keras.Input((5,)), layers.Dense(2), layers.Dense(5)], name="adapter"
    )
    body = tf.keras.Sequential([tf.keras.Input((4,)), layers.Dense(5), adapter])
    assert (
        pfl.SplitModel(body, 2, personal="adapt*").parts.is_personal == (False,) * 2 + (True,) * 4
    )
