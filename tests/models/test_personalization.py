"""How models learn on where they serve, beside float64 gradient steps."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.comparison import assert_near
from tests.methods import thorough
from tests.oracles import network
from tf_pflego.core.algorithm import Client, Weights
from tf_pflego.models.personalization import head_rule, learning_on


@pytest.fixture(name="start")
def start_fixture(tiny_model):
    weights = tiny_model.initial_weights()
    return Weights(
        weights.theta, tf.constant(np.random.default_rng(0).normal(size=(3, 6)), "float")
    )


def client_of(data, client):
    examples, labels = data.train.of(client)
    count, classes = tf.constant(len(labels)), tf.constant(data.head_classes([client], 3)[0])
    return Client(
        tf.constant(examples), tf.constant(labels), count, classes, tf.constant(0.3), tf.zeros(2)
    )


def traced(rule):
    return tf.function(rule, autograph=False, reduce_retracing=True)


def called(function, weights, client, steps, rate):
    """Returns the result with steps and rate as tensors of a graph, as an exported model has it."""
    return function(weights, client, tf.constant(steps), tf.constant(rate, tf.float32))


def descended(data, client, weights, steps, rate, on_theta):
    theta = [np.asarray(leaf, np.float64) for leaf in weights.theta]
    head = np.asarray(weights.head, np.float64)
    rows = data.num_classes[client]
    x, y = network.of_client(data.train, client)
    for _ in range(steps):
        g_theta, g_head = network.gradients(theta, head[:rows], x, y)
        if on_theta:
            theta = [w - rate * g for w, g in zip(theta, g_theta, strict=True)]
        head = np.concatenate([head[:rows] - rate * g_head, head[rows:]])
    return theta, head


@pytest.mark.parametrize("on_theta", [False, True], ids=["head", "network"])
def test_a_model_learns_on_by_gradient_steps(on_theta, start, tiny_model, tiny_clients):
    """Client 0 has two of three classes, client 1 has all."""
    function = traced(learning_on(tiny_model, None if on_theta else head_rule(tiny_model)))
    for client, steps in itertools.product((0, 1), (0, 1, 23)):
        found = called(function, start, client_of(tiny_clients, client), steps, 0.1)
        theta, head = descended(tiny_clients, client, start, steps, 0.1, on_theta)
        assert_near([*found.theta, found.head], [*theta, head], atol=1e-5)


@pytest.mark.parametrize("solver", [thorough("gd"), thorough("momentum"), "newton"])
def test_the_automatic_rate_lowers_the_loss(solver, start, tiny_model, tiny_clients):
    client = client_of(tiny_clients, 1)
    rule = traced(learning_on(tiny_model, head_rule(tiny_model, solver)))
    found = called(rule, start, client, 30, 0.0)
    before, after = (float(tiny_model.loss(weights, client)) for weights in (start, found))
    assert after < 0.7 * before
    assert all(np.array_equal(a, b) for a, b in zip(found.theta, start.theta, strict=True))


@pytest.mark.parametrize("solver", [thorough("gd"), "adam"])
def test_a_rate_that_is_far_too_large_does_not_raise_the_loss(
    solver, start, tiny_model, tiny_clients
):
    client = client_of(tiny_clients, 1)
    rule = traced(learning_on(tiny_model, head_rule(tiny_model, solver)))
    found = called(rule, start, client, 10, 1e6)
    assert float(tiny_model.loss(found, client)) <= float(tiny_model.loss(start, client))


def test_adam_without_a_rate_takes_that_of_the_run(start, tiny_model, tiny_clients):
    client = client_of(tiny_clients, 1)
    rule = traced(learning_on(tiny_model, head_rule(tiny_model, "adam", adam_rate=0.02)))
    automatic, given = (called(rule, start, client, 10, rate) for rate in (0.0, 0.02))
    np.testing.assert_array_equal(automatic.head, given.head)
    assert not np.array_equal(automatic.head, start.head)


def test_with_no_rate_a_network_stays(start, tiny_model, tiny_clients):
    rule = traced(learning_on(tiny_model, None))
    found = called(rule, start, client_of(tiny_clients, 1), 10, 0.0)
    np.testing.assert_array_equal(found.head, start.head)
