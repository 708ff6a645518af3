"""Fused batch normalisation as plain operations.

Keras 2 computes layer normalisation with the fused operation too. With the oneDNN library of
TensorFlow 2.14 that operation corrupts memory when the iterations of a loop run side by side, as
the participants of a round do in process.
"""

import tensorflow as tf

from tf_pflego.models.body import graphs


def _forward(node):
    """Returns the FunctionDef of a fused batch normalisation."""
    data_format, training, epsilon = _settings(node)
    share, num_outputs = node.attr["exponential_avg_factor"].f, _num_outputs(node)
    axes, _ = _axes_and_shape(data_format)

    @tf.function
    def plain(x, scale, offset, mean, variance):
        normalized = _normalize(x, scale, offset, mean, variance, data_format, training, epsilon)
        if training:
            batch_mean, batch_variance = tf.nn.moments(x, axes)
            count = tf.cast(tf.size(x) / tf.size(batch_mean), tf.float32)
            unbiased = batch_variance * count / tf.maximum(count - 1.0, 1.0)
            if share == 1.0:  # The old averages may be empty then.
                mean, variance = batch_mean, unbiased
            else:
                mean = (1.0 - share) * mean + share * batch_mean
                variance = (1.0 - share) * variance + share * unbiased
        mean, variance = tf.identity(mean), tf.identity(variance)
        # `_backward` does not read what is reserved for it here; only the shapes matter.
        reserved = (mean, variance, tf.zeros([0]))[: num_outputs - 3]
        return normalized, mean, variance, *reserved

    vector = tf.TensorSpec([None])
    image = tf.TensorSpec([None] * len(data_format))
    return plain.get_concrete_function(image, *[vector] * 4).function_def


def _backward(node):
    """Returns the FunctionDef of the gradient of a fused batch normalisation."""
    data_format, training, epsilon = _settings(node)
    num_outputs, num_inputs = _num_outputs(node), len(graphs.data_inputs(node))

    @tf.function
    def plain(normalized_gradient, x, scale, mean, variance, *reserved):
        offset = tf.zeros_like(scale)
        with tf.GradientTape() as tape:
            tape.watch((x, scale, offset))
            arguments = (x, scale, offset, mean, variance)
            normalized = _normalize(*arguments, data_format, training, epsilon)
        gradients = tape.gradient(normalized, (x, scale, offset), normalized_gradient)
        return *gradients, *[tf.zeros([0])] * (num_outputs - 3)

    image, vector = tf.TensorSpec([None] * len(data_format)), tf.TensorSpec([None])
    return plain.get_concrete_function(image, image, *[vector] * (num_inputs - 2)).function_def


def _settings(node):
    """Returns the layout of a node's images, and its `is_training` and `epsilon`."""
    return node.attr["data_format"].s.decode(), node.attr["is_training"].b, node.attr["epsilon"].f


def _num_outputs(node):
    return len(graphs.definition_of(node.op).output_arg)


def _normalize(x, scale, offset, mean, variance, data_format, training, epsilon):
    """Returns x normalised over all axes but its channels, with its own statistics or the given."""
    axes, shape = _axes_and_shape(data_format)
    if training:
        mean, variance = tf.nn.moments(x, axes)
    inverse_deviation = tf.math.rsqrt(variance + epsilon)
    mean, offset = tf.reshape(mean, shape), tf.reshape(offset, shape)
    return (x - mean) * tf.reshape(inverse_deviation * scale, shape) + offset


def _axes_and_shape(data_format):
    """Returns the axes of the statistics, and the shape that aligns them with x."""
    channels = data_format.index("C")
    axes = [axis for axis in range(len(data_format)) if axis != channels]
    return axes, [-1 if axis == channels else 1 for axis in range(len(data_format))]


# By operation, what makes the function that takes the place of a node; see `graphs`.
BUILDERS = dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _forward) | (
    dict.fromkeys(("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3"), _backward)
)
