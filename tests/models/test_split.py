import os

import numpy as np
import pytest
import tensorflow as tf

from tests.oracles import network
from tf_pflego.core.algorithm import Client, Weights
from tf_pflego.models import SplitModel

TOLERANCE = 1e-5


@pytest.mark.parametrize("examples", [1, 6, 7])
@pytest.mark.parametrize("in_block", [1, 3, 100])
def test_blocks_give_the_same_features_and_gradients(tiny_model, examples, in_block):
    blocks = tiny_model.in_blocks(in_block * tiny_model.activation_bytes_per_example)
    x = tf.constant(np.random.default_rng(0).normal(size=(examples, 4)), tf.float32)
    theta = [tf.constant(w) for w in tiny_model.initial_theta]
    results = []
    for model in (tiny_model, blocks):

        @tf.function
        def run(theta, model=model):
            with tf.GradientTape() as tape:
                tape.watch(theta)
                phi = model.features(theta, x)
                loss = tf.reduce_sum(phi**2)
            return phi, tape.gradient(loss, theta)

        results.append(run(theta))
    for a, b in zip(*map(tf.nest.flatten, results), strict=True):
        np.testing.assert_allclose(a, b, atol=TOLERANCE)


def test_blocks_are_chosen_where_the_activations_do_not_fit(tiny_model):
    largest = 2**30 // tiny_model.activation_bytes_per_example
    assert tiny_model.within(1.0, largest, 1) is tiny_model
    assert tiny_model.within(1.0, largest + 1, 1) is not tiny_model
    if os.cpu_count() > 1:
        assert tiny_model.within(1.0, largest, 2) is not tiny_model


def test_loss_and_gradient_match_the_oracle_with_padding(tiny_model):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 4)), rng.integers(0, 3, 6)
    head = rng.normal(size=(3, 6))
    weights = Weights([tf.constant(w) for w in tiny_model.initial_theta], tf.constant(head, tf.float32))
    padded = Client(
        tf.constant(np.vstack([x, np.ones((2, 4))]), tf.float32),
        tf.constant([*y, 0, 0], tf.int32),
        tf.constant([1 / 6] * 6 + [0] * 2, tf.float32),
        *[None] * 4,
    )
    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = tiny_model.loss(weights, padded)
    gradient = tape.gradient(loss, weights)
    theta = [np.asarray(w, np.float64) for w in tiny_model.initial_theta]
    np.testing.assert_allclose(loss, network.loss(theta, head, x, y), atol=TOLERANCE)
    g_theta, g_head = network.gradients(theta, head, x, y)
    np.testing.assert_allclose(gradient.head, g_head, atol=TOLERANCE)
    np.testing.assert_allclose(gradient.theta[0], g_theta[0], atol=TOLERANCE)


def test_integer_examples_pass_through():
    tokens = tf.keras.Input((7,), dtype="int32")
    embedded = tf.keras.layers.Embedding(11, 3)(tokens)
    body = tf.keras.Model(tokens, tf.keras.layers.GlobalMaxPooling1D()(embedded))
    model = SplitModel(body, 2)
    x = tf.constant(np.random.default_rng(0).integers(0, 11, (5, 7)), tf.int32)
    theta = [tf.constant(w) for w in model.initial_theta]
    np.testing.assert_array_equal(model.features(theta, x), body(x))
    in_blocks = model.in_blocks(2 * model.activation_bytes_per_example)
    np.testing.assert_array_equal(in_blocks.features(theta, x), body(x))
