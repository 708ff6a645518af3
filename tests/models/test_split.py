import os

import numpy as np
import pytest
import tensorflow as tf

from tests.oracles import network
from tf_pflego import models
from tf_pflego.core.algorithm import Client, Weights
from tf_pflego.core.local_training import value_and_gradient
from tf_pflego.models import SplitModel

TOLERANCE = 1e-5


@pytest.mark.parametrize(
    ("build", "shape", "features", "weights"),
    [
        (models.mlp, (28, 28, 1), 200, 784 * 200 + 200),
        (models.cifar_cnn, (32, 32, 3), 192, 4800 + 64 + 102400 + 64 + 4096 * 384 + 384 + 384 * 192 + 192),
        (models.omniglot_cnn, (28, 28, 1), 64, 576 + 64 + 3 * (36864 + 64)),
    ],
)
def test_the_papers_networks(build, shape, features, weights):
    """Sizes of Tables 4 and 5, and the same features and gradients as the Keras model, with and without XLA."""
    body = build(shape, seed=1)
    model = SplitModel(body, 10)
    assert model.num_features == features
    assert sum(w.size for w in model.initial_theta) == weights
    x = np.random.default_rng(0).random((3, *shape)).astype(np.float32)
    theta = [tf.constant(w) for w in model.initial_theta]
    with tf.GradientTape() as tape:
        expected = body(x)
        loss = tf.reduce_sum(expected**2)
    expected_gradient = tape.gradient(loss, body.trainable_variables)
    for jit in (False, True):

        @tf.function(jit_compile=jit)
        def run(theta):
            with tf.GradientTape() as tape:
                tape.watch(theta)
                phi = model.features(theta, x)
                loss = tf.reduce_sum(phi**2)
            return phi, tape.gradient(loss, theta)

        phi, gradient = run(theta)
        np.testing.assert_allclose(phi, expected, atol=TOLERANCE)
        for a, b in zip(gradient, expected_gradient, strict=True):
            np.testing.assert_allclose(a, b, atol=TOLERANCE * float(tf.reduce_max(tf.abs(b))))
    again = SplitModel(build(shape, seed=1), 10).initial_theta
    other = SplitModel(build(shape, seed=2), 10).initial_theta
    assert all((a == b).all() for a, b in zip(model.initial_theta, again, strict=True))
    assert (model.initial_theta[0] != other[0]).any()


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


def test_loss_and_gradient_match_the_oracle(tiny_model):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 4)), rng.integers(0, 3, 6)
    head = rng.normal(size=(3, 6))
    weights = Weights([tf.constant(w) for w in tiny_model.initial_theta], tf.constant(head, tf.float32))
    client = Client(tf.constant(x, tf.float32), tf.constant(y, tf.int32), tf.constant(6), tf.constant(3), None, None)
    loss, found = value_and_gradient(lambda w: tiny_model.loss(w, client), weights)
    theta = [np.asarray(w, np.float64) for w in tiny_model.initial_theta]
    np.testing.assert_allclose(loss, network.loss(theta, head, x, y), atol=TOLERANCE)
    g_theta, g_head = network.gradients(theta, head, x, y)
    np.testing.assert_allclose(found.head, g_head, atol=TOLERANCE)
    np.testing.assert_allclose(found.theta[0], g_theta[0], atol=TOLERANCE)


def test_a_class_that_a_client_lacks_is_not_predicted_unless_the_classifier_is_shared(tiny_model):
    weights = tiny_model.initial_weights()
    weights = weights._replace(head=weights.head + tf.constant([[0.0], [0.0], [9.0]]))
    x = tf.constant(np.random.default_rng(0).normal(size=(6, 4)), tf.float32)
    own = tiny_model.predict(weights, x, tf.constant(2))
    shared = tiny_model.with_shared_classifier().predict(weights, x, tf.constant(2))
    assert np.argmax(own, axis=1).max() == 1
    assert np.argmax(shared, axis=1).max() == 2
    np.testing.assert_array_equal(own[:, :2], shared[:, :2])


def test_a_subclassed_body_serves():
    class Body(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.norm = tf.keras.layers.Dense(6, "tanh"), tf.keras.layers.LayerNormalization()

        def call(self, x):
            return tf.concat([self.norm(self.first(x)), x[:, :1]], axis=1)

    body = Body()
    x = np.random.default_rng(0).random((3, 4)).astype(np.float32)
    body(x)  # Makes its weights.
    model = SplitModel(body, 2, example_shape=(4,))
    np.testing.assert_allclose(model.features([tf.constant(w) for w in model.initial_theta], x), body(x), atol=1e-6)
    assert model.num_features == 7


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([tf.keras.layers.Dense(3), tf.keras.layers.Dropout(0.5)], "same in training and inference|not trained"),
        ([tf.keras.layers.Dense(3), tf.keras.layers.BatchNormalization()], "batch normalization|batch normalisation"),
        ([tf.keras.layers.Reshape((2, 2))], "no trainable weights"),
        ([tf.keras.layers.Dense(4), tf.keras.layers.Reshape((2, 2))], "must end in one feature vector"),
        ([tf.keras.layers.Dense(4, trainable=False), tf.keras.layers.Dense(4)], "not trained"),
    ],
)
def test_bodies_that_do_not_fit_are_refused(layers, message):
    with pytest.raises(ValueError, match=message):
        SplitModel(tf.keras.Sequential([tf.keras.Input((4,)), *layers]), 2)
