"""Parts of a body's graph that are replaced: batch normalisation, and the gradient of pooling."""

import numpy as np
import pytest
import tensorflow as tf

from tests.comparison import assert_near
from tests.methods import thorough
from tests.models.body import bodies
from tf_pflego.models.body import graphs, normalization
from tf_pflego.models.body.body import Body

pytestmark = pytest.mark.grappler


def of_fused(data_format, training, share, gradient):
    """Returns a function of the fused operation, or of its gradient by x, scale and offset."""

    how = {"epsilon": 0.01, "data_format": data_format, "is_training": training}

    def forward(x, scale, offset, mean, variance):
        given = {"x": x, "scale": scale, "offset": offset, "mean": mean, "variance": variance}
        return tf.raw_ops.FusedBatchNormV3(**given, exponential_avg_factor=share, **how)

    def backward(x, scale, offset, mean, variance):
        y, _, _, *reserved = forward(x, scale, offset, mean, variance)
        if not training:
            reserved[:2] = mean, variance
        given = {f"reserve_space_{k}": one for k, one in enumerate(reserved, 1)}
        given |= {"y_backprop": tf.sin(y), "x": x, "scale": scale}
        return tf.raw_ops.FusedBatchNormGradV3(**given, **how)

    return backward if gradient else forward


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("share", [1.0, thorough(0.25)])
def test_plain_normalization_computes_what_the_fused_does(data_format, training, share, gradient):
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=(4, 3, 2, 5)), tf.float32)
    vectors = tf.constant(rng.uniform(0.5, 2, (4, 5)), tf.float32)
    scale, offset, mean, variance = tf.unstack(vectors)
    if training and share == 1.0:
        mean = variance = tf.zeros([0])
    expected = of_fused("NHWC", training, share, gradient)(x, scale, offset, mean, variance)[:3]
    if data_format == "NCHW":
        x = tf.transpose(x, [0, 3, 1, 2])
    arguments = (x, scale, offset, mean, variance)
    traced = tf.function(lambda *a: of_fused(data_format, training, share, gradient)(*a)[:3])
    traced = traced.get_concrete_function(*arguments)
    graph_def = traced.graph.as_graph_def()
    graphs.replace_by_calls(graph_def, normalization.BUILDERS)
    graphs.register_functions(graph_def)
    assert not [n for n in graphs.nodes_and_called(graph_def) if "FusedBatchNorm" in n.op]

    @tf.function
    def plain(*arguments):
        names = [tensor.name for tensor in traced.inputs]
        given = dict(zip(names, arguments, strict=True))
        return graphs.call(graph_def, given, [tensor.name for tensor in traced.outputs])

    first, *others = plain(*arguments)
    if data_format == "NCHW":
        first = tf.transpose(first, [0, 2, 3, 1])
    assert_near((first, *others), expected, rtol=bodies.TOLERANCE, atol=bodies.TOLERANCE)


def test_gradient_of_max_pooling_is_in_a_function_with_its_pooling():
    """Elsewhere TensorFlow may take a kernel for it that is ten times slower."""
    model = bodies.BODIES["max pooling"][1]()
    body = Body(model)
    x = tf.ones([3, *bodies.IMAGE])  # Every window has equal entries only.
    bodies.assert_same(bodies.of_body(body, bodies.theta_of(body), x), bodies.of_keras(model, x))
    graph_def = body._training.parts.backward
    assert not [node for node in graph_def.node if node.op == "MaxPoolGrad"]
    own = [f for f in graph_def.library.function if f.attr["_noinline"].b]
    for function in own:
        pooling = [node.op for node in function.node_def if "MaxPool" in node.op]
        assert pooling == ["MaxPool", "MaxPoolGrad"]
    assert len(own) == 2  # The two poolings have different windows.


def rectified_and_pooled(more_than_pooled):
    """Returns a network whose only ReLU is pooled, and, if asked to, read by another layer too."""
    inputs = tf.keras.Input(bodies.IMAGE)
    rectified = bodies.layers.Conv2D(4, 3, activation="relu")(inputs)
    outputs = [bodies.layers.GlobalAveragePooling2D()(bodies.layers.MaxPooling2D(3, 2)(rectified))]
    if more_than_pooled:
        outputs.append(bodies.layers.GlobalAveragePooling2D()(rectified))
    return tf.keras.Model(inputs, bodies.layers.Concatenate()([*outputs, outputs[0]]))


@pytest.mark.parametrize("more_than_pooled", [False, True])
def test_gradients_of_a_pooled_relu_and_its_bias_are_taken_from_what_was_pooled(more_than_pooled):
    """Unless what the ReLU gives goes elsewhere too."""
    model = rectified_and_pooled(more_than_pooled)
    body = Body(model)
    nodes = {node.name: node for node in body._training.parts.backward.node}
    pooling = [name for name, node in nodes.items() if node.op == "PartitionedCall"]
    readers = {node.op for node in nodes.values() if set(pooling) & set(node.input)}
    assert readers == ({"AddN"} if more_than_pooled else {"Conv2DBackpropFilter"})
    x = bodies.examples_for(body, bodies.IMAGE)
    for images in (x, tf.ones_like(x)):  # In the latter every window has equal entries only.
        bodies.assert_same(
            bodies.of_body(body, bodies.theta_of(body), images), bodies.of_keras(model, images)
        )
