import os

import numpy as np
import pytest
import tensorflow as tf

from tests.comparison import assert_near
from tests.methods import thorough
from tests.models.body.bodies import (
    TOKEN_SERIES,
    examples_for,
    layers,
    sequential,
    theta_of,
    tokens,
)
from tf_pflego.core.local_training import gradient, value_and_gradient
from tf_pflego.models import SplitModel
from tf_pflego.models.body import graphs
from tf_pflego.simulation.client_models import lone_client

TOLERANCE = 1e-5


def client_with(examples, labels=None, classes=(0, 1)):
    labels = tf.zeros(tf.shape(examples)[:1], tf.int32) if labels is None else labels
    examples = examples if tf.is_tensor(examples) else tf.constant(examples, tf.float32)
    return lone_client(examples, labels, tf.constant(classes))


@pytest.mark.parametrize("in_block", [thorough(1), 3, thorough(100)])
def test_blocks_give_the_same_features_loss_and_gradients(tiny_model, in_block):
    rng = np.random.default_rng(0)
    head = tf.constant(rng.normal(size=(3, 6)), tf.float32)
    weights = tiny_model.initial_weights()._replace(head=head)

    def traced(model):
        @tf.function(input_signature=[tf.TensorSpec([None, 4]), tf.TensorSpec([None], tf.int32)])
        def run(x, labels):
            client = client_with(x, labels, (0, 1, -1))
            with tf.GradientTape() as tape:
                tape.watch(weights.theta)
                phi = model.features(weights.theta, client)
                squares = tf.reduce_sum(phi**2)
            of_loss = value_and_gradient(lambda w: 3.0 * model.loss(w, client), weights)
            return phi, tape.gradient(squares, weights.theta), of_loss

        return run

    blocks = tiny_model._in_blocks(in_block * tiny_model.activation_bytes_per_example)
    plain, in_blocks = traced(tiny_model), traced(blocks)
    for examples in (1, 6, 7):
        data = np.float32(rng.normal(size=(examples, 4))), np.int32(rng.integers(0, 2, examples))
        data = tuple(map(tf.constant, data))
        results = plain(*data), in_blocks(*data)
        assert_near(*map(tf.nest.flatten, results), atol=TOLERANCE)


@pytest.mark.parametrize("keep", [False, True])
def test_pulling_back_in_blocks_gives_the_same_gradient(conv_model, keep):
    model, rng = conv_model, np.random.default_rng(0)
    theta = theta_of(model)
    body = model.body.clone(theta)
    shapes = tf.TensorSpec([None, *model.example_shape]), tf.TensorSpec([None, model.num_features])

    def traced(model):
        @tf.function(input_signature=shapes)
        def run(x, upstream):
            features, pull_back = model.features_and_pull_back(theta, client_with(x))
            return features, *pull_back(upstream)

        return run

    size = model.activation_bytes_per_example
    passed = {count: traced(model._in_blocks(count * size, keep=keep)) for count in (1, 3, 100)}
    for examples, in_block in ((1, 1), (6, 3), (7, 3), (7, 100)):
        # Rounded, so that windows of the pooling hold their maximum more than once.
        x = tf.constant(rng.normal(size=(examples, *model.example_shape)).round(), tf.float32)
        upstream = tf.constant(rng.normal(size=(examples, model.num_features)), tf.float32)
        with tf.GradientTape() as tape:
            phi = body(x)
        expected = [phi, *tape.gradient(phi, body.trainable_variables, upstream)]
        assert_near(passed[in_block](x, upstream), expected, atol=TOLERANCE)
        features, pull_back = model.features_and_pull_back(theta, client_with(x))
        assert_near([features, *pull_back(upstream)], expected, atol=TOLERANCE)


@pytest.fixture(scope="module")
def conv_model():
    first = layers.Conv2D(3, 3, padding="same", activation="relu")
    second = layers.Conv2D(2, 3, activation="relu")
    return SplitModel(
        sequential((6, 6, 1), first, layers.MaxPooling2D(), second, layers.Flatten()), 2
    )


@pytest.mark.parametrize(("keep", "passes"), [(True, 1), (False, 2)])
def test_blocks_that_are_kept_pass_forward_once(conv_model, keep, passes):
    def calls_with_convolutions(model):
        def run(theta, x):
            features, pull_back = model.features_and_pull_back(theta, client_with(x))
            return features, pull_back(features)

        theta = theta_of(model)
        traced = tf.function(run).get_concrete_function(theta, tf.TensorSpec([None, 6, 6, 1]))
        graph_def = traced.graph.as_graph_def()
        convolving = {
            function.signature.name
            for function in graph_def.library.function
            if any(node.op == "Conv2D" for node in function.node_def)
        }
        nodes = graphs.nodes_and_called(graph_def)
        return sum(node.attr["f"].func.name in convolving for node in nodes)

    assert calls_with_convolutions(conv_model) == 1
    assert calls_with_convolutions(conv_model._in_blocks(keep=keep)) == passes
    of_a_loop = SplitModel(sequential((5, 3), layers.SimpleRNN(4)), 2)
    assert of_a_loop.body.saved_bytes() == np.inf  # It is never kept.


def test_loss_in_blocks_passes_each_block_backward_once(tiny_model):
    rng = np.random.default_rng(0)
    client = client_with(rng.normal(size=(6, 4)), classes=range(3))

    def products(model):
        traced = tf.function(lambda w: gradient(lambda w: model.loss(w, client), w))
        graph_def = traced.get_concrete_function(model.initial_weights()).graph.as_graph_def()
        return sum(node.op == "MatMul" for node in graphs.nodes_and_called(graph_def))

    assert products(tiny_model._in_blocks()) == products(tiny_model) > 0


def test_blocks_are_chosen_where_the_activations_do_not_fit(tiny_model):
    largest = 2**30 // tiny_model.activation_bytes_per_example
    assert tiny_model.within(1.0, largest, 1) is tiny_model
    assert tiny_model.within(1.0, largest + 1, 1) is not tiny_model
    assert tiny_model.within(1.0, largest + 1, 1)._keeps
    # The backward pass needs the four inputs and the five features of each example.
    assert tiny_model.within(1.0, 2**30 // (4 * 9), 1)._keeps
    assert not tiny_model.within(1.0, 2**30 // (4 * 9) + 1, 1)._keeps
    if os.cpu_count() > 1:
        assert tiny_model.within(1.0, largest, 2) is not tiny_model


def test_a_class_that_a_client_lacks_is_not_predicted_unless_the_classifier_is_shared(tiny_model):
    weights = tiny_model.initial_weights()
    weights = weights._replace(head=weights.head + tf.constant([[0.0], [0.0], [9.0]]))
    x = tf.constant(np.random.default_rng(0).normal(size=(6, 4)), tf.float32)
    classes, sharing = tf.constant([4, 7, -1]), tiny_model.with_shared_classifier()
    own = tiny_model.predict(weights, x, classes)
    shared = sharing.predict(weights, x, classes)
    masked = sharing.with_class_mask().predict(weights, x, classes)
    assert np.argmax(own, axis=1).max() == 1
    assert np.argmax(shared, axis=1).max() == 2
    np.testing.assert_array_equal(own[:, :2], shared[:, :2])
    np.testing.assert_array_equal(own, masked)


def test_integer_examples_pass_through():
    body = tokens(layers.GlobalMaxPooling1D())
    model = SplitModel(body, 2)
    x, theta = examples_for(model, TOKEN_SERIES), theta_of(model)
    np.testing.assert_array_equal(model.features(theta, client_with(x)), body(x))
    in_blocks = model._in_blocks(2 * model.activation_bytes_per_example)
    np.testing.assert_array_equal(in_blocks.features(theta, client_with(x)), body(x))
