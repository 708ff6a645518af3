"""How models learn on where they serve, beside float64 gradient steps."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.comparison import assert_identical, assert_near
from tests.oracles import network
from tf_pflego.core.algorithm import Client, Weights
from tf_pflego.models.personalization import HeadRule, learning_on


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
    function = traced(learning_on(tiny_model, None if on_theta else HeadRule(tiny_model)))
    for client, steps in itertools.product((0, 1), (0, 1, 23)):
        found = called(function, start, client_of(tiny_clients, client), steps, 0.1)
        theta, head = descended(tiny_clients, client, start, steps, 0.1, on_theta)
        assert_near([*found.theta, found.head], [*theta, head], atol=1e-5)


def on_the_head(model, *solver, **how):
    return traced(learning_on(model, HeadRule(model, *solver, **how)))


def test_no_rate_raises_the_loss_of_a_head(start, tiny_model, tiny_clients):
    """The automatic one lowers it, and one that is far too large does not raise it."""
    client = client_of(tiny_clients, 1)
    for solver, steps, rate, share in (("newton", 30, 0.0, 0.7), ("adam", 10, 1e6, 1.0)):
        found = called(on_the_head(tiny_model, solver), start, client, steps, rate)
        before, after = (float(tiny_model.loss(weights, client)) for weights in (start, found))
        assert after <= share * before
        assert_identical(found.theta, start.theta)


def test_without_a_rate_adam_takes_that_of_the_run_and_a_network_stays(
    start, tiny_model, tiny_clients
):
    client, rule = client_of(tiny_clients, 1), on_the_head(tiny_model, "adam", adam_rate=0.02)
    automatic, given = (called(rule, start, client, 10, rate) for rate in (0.0, 0.02))
    np.testing.assert_array_equal(automatic.head, given.head)
    assert not np.array_equal(automatic.head, start.head)
    found = called(traced(learning_on(tiny_model, None)), start, client, 10, 0.0)
    np.testing.assert_array_equal(found.head, start.head)
