"""Any Keras model serves as a body; those that cannot are in `test_refused`."""

import weakref

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.comparison import assert_identical, assert_near
from tests.conftest import make_clients
from tests.engines.agreement import assert_agreement
from tests.methods import each_of, thorough
from tests.models.body import bodies
from tests.resources import collecting
from tf_pflego import models
from tf_pflego.models.body import graphs
from tf_pflego.models.body.body import Body

pytestmark = pytest.mark.grappler


def operations(body):
    parts = body._training.parts
    both = (parts.forward, parts.backward)
    return {node.op for graph_def in both for node in graphs.nodes_and_called(graph_def)}


@pytest.mark.lines("tff", "current")
@pytest.mark.parametrize("name", each_of(bodies.BODIES, ("frozen backbone", "max pooling")))
def test_features_and_gradient_are_those_of_the_model(name):
    shape, build = bodies.BODIES[name]
    model = build()
    body = Body(model, shape)
    x, theta = bodies.examples_for(body, shape), bodies.theta_of(body)
    expected, traced = bodies.of_keras(model, x), tf.function(bodies.of_body)
    bodies.assert_same(traced(body, theta, x), expected)
    assert body.num_features == expected[0].shape[1] and body.example_shape == shape
    for value, variable in zip(body.initial_theta, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(value, np.asarray(variable))
    for kind in ("FusedBatchNorm", "Resource", "Variable"):
        assert not {op for op in operations(body) if kind in op}
    for variable, weight in zip(model.trainable_variables, theta, strict=True):
        variable.assign(weight + 0.1)
    moved = [weight + 0.1 for weight in theta]
    bodies.assert_same(traced(body, moved, x), bodies.of_keras(model, x))


@pytest.mark.parametrize(
    ("build", "shape", "features", "weights"),
    [
        (models.mlp, (28, 28, 1), 200, 784 * 200 + 200),
        thorough(models.cifar_cnn, (32, 32, 3), 192, 76 * 64 + 1601 * 64 + 4097 * 384 + 385 * 192),
        (models.omniglot_cnn, (28, 28, 1), 64, 576 + 64 + 3 * (36864 + 64)),
    ],
)
def test_the_papers_networks(build, shape, features, weights):
    """Sizes of Tables 4 and 5; features and gradients are the model's, those of XLA are near.

    They are so bit by bit, but for biases: they are summed after the pooling, in another order.
    """
    model = build(shape, seed=1)
    body = Body(model)
    assert body.num_features == features and body.example_dtype == tf.float32
    assert sum(w.size for w in body.initial_theta) == weights
    x, theta = bodies.examples_for(body, shape, 3), bodies.theta_of(body)
    expected = bodies.of_keras(model, x)
    actual = tf.function(bodies.of_body)(body, theta, x)
    (features_of_body, gradient), (features_of_model, expected_gradient) = actual, expected
    assert_identical([features_of_body], [features_of_model])
    kernels, biases = slice(0, None, 2), slice(1, None, 2)
    assert_identical(gradient[kernels], expected_gradient[kernels])
    assert_near(gradient[biases], expected_gradient[biases], rtol=1e-4, atol=1e-3)
    bodies.assert_same(tf.function(bodies.of_body, jit_compile=True)(body, theta, x), expected)


def test_weights_that_are_not_trained_are_constants():
    model = bodies.on_top_of(bodies.frozen(bodies.convolutional_backbone()))
    body = Body(model)
    assert [w.shape for w in body.initial_theta] == [(6, 5), (5,)]
    x, theta = bodies.examples_for(body, bodies.IMAGE), bodies.theta_of(body)
    before = body(theta, x)
    model.layers[0].set_weights([w + 1 for w in model.layers[0].get_weights()])
    np.testing.assert_array_equal(body(theta, x), before)


def test_the_bytes_of_an_example_are_those_of_all_layers():
    model = bodies.sequential((4,), bodies.layers.Dense(5, "relu"), bodies.layers.Dense(3))
    # The input; per layer the product, the sum with the bias, and the activation if there is one.
    assert Body(model).bytes_per_example == 4 * (4 + 5 + 5 + 5 + 3 + 3)
    time_first = bodies.called(TimeFirst(), 5, 3)
    assert Body(time_first, (5, 3)).bytes_per_example >= 4 * (5 * 3 + 5 * 3)


@pytest.mark.parametrize("layer", ["Flatten", thorough("LSTM")])
def test_a_body_outlives_its_model_and_goes_when_nobody_needs_it(layer):
    with collecting() as collect:
        body = Body(
            bodies.tokens(bodies.layers.Flatten() if layer == "Flatten" else bodies.layers.LSTM(4))
        )
        collect()
        features, _ = bodies.of_body(
            body, bodies.theta_of(body), bodies.examples_for(body, bodies.TOKEN_SERIES)
        )
        assert features.shape == (6, body.num_features)
        needed = weakref.ref(body)
        del body
        collect()
        assert needed() is None


class TimeFirst(tf.keras.Model):
    """The examples do not come first in all that it computes."""

    def __init__(self):
        super().__init__()
        self.dense = bodies.layers.Dense(2)

    def call(self, x):
        return self.dense(tf.transpose(x, [1, 0, 2])[-1])


def test_the_model_is_left_as_it_was_and_serves_on():
    model = bodies.called(bodies.NestedFunction(), 4)
    model.dense.trainable = True
    calls, weights = model.calls, model.get_weights()
    attributes = {name: value for name, value in vars(model).items() if name != "calls"}
    with collecting() as collect:
        body = Body(model, (4,))
        theta = bodies.theta_of(body)
        for count in (1, 2, 3):
            bodies.of_body(body, theta, tf.ones([count, 4]))
        assert model.calls == calls + 1  # Traced once, whatever is done with the body.
        assert {key: value for key, value in vars(model).items() if key != "calls"} == attributes
        assert_identical(model.get_weights(), weights)
        x = tf.random.normal([3, 4], seed=0)
        features = body(theta, x)
        del body
        collect()
    # The model's own functions are not forgotten together with the body.
    np.testing.assert_array_equal(model(x), features)


@pytest.mark.thorough
def test_ten_participants_train_side_by_side_with_layer_normalization():
    """With TensorFlow 2.14 the fused operation ends the process, if the clients' sizes differ."""
    body = bodies.sequential(
        (4,), bodies.layers.Dense(5, "relu"), bodies.layers.LayerNormalization()
    )
    algorithm = pfl.build_algorithm("pflego", pfl.SplitModel(body, 2), local_steps=3)
    clients = make_clients(range(3, 13), (2,) * 10, (2,) * 10)
    with pfl.Simulation(algorithm, clients, pfl.Participation(10, 10), "in_process") as simulation:
        for _ in range(30):  # Within five rounds, it was two of three processes that ended.
            simulation.run_round()
        assert all(np.isfinite(w).all() for w in simulation.server_state.theta)


@pytest.mark.thorough
@pytest.mark.lines("tff")
@pytest.mark.parametrize("name", ["LSTM of tokens", "frozen backbone"])
def test_bodies_train_alike_on_both_engines(name):
    shape, build = bodies.BODIES[name]
    model = pfl.SplitModel(build(), 2, example_shape=shape)
    examples = bodies.examples_for(model, shape, 12).numpy().reshape(3, 4, *shape)
    pairs = [(own, np.arange(4) % 2) for own in examples]
    algorithm = pfl.build_algorithm("pflego", model, local_steps=2)
    assert_agreement(algorithm, pfl.from_arrays(pairs, pairs), "tff")


def test_examples_of_another_dtype_are_refused():
    body = Body(bodies.tokens(bodies.layers.Flatten()))
    with pytest.raises(TypeError, match=r"`examples` must be int32.*got float32"):
        body(bodies.theta_of(body), tf.zeros([2, *bodies.TOKEN_SERIES]))
