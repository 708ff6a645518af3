"""Models of methods that train more than a body and linear heads: parts between the two.

The method serves a `SplitModel` with a body that consists of its model's body and the part. Clients
still predict with a body and a linear head, which are tested, exported and trained on-device like
all others. Differences between clients are among the part's weights.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_pflego.models.split_model import SplitModel

EPSILON = 1e-5  # of layer normalisation


def extended(model: SplitModel, part: tf.keras.Model) -> SplitModel:
    """Returns a model with a part after the body, for heads on its output.

    Its theta is the theta of the model's body, and then the weights of the part.

    Args:
      model: The model of the method.
      part: A Keras model from features, [n, M] or [n, T, M], to others. If its layers are Keras'
        own, a client's file needs no other code. Only the shapes of its weights count: the method
        has the values.

    Raises:
      ValueError: Keras cannot make the body again from its configuration.
    """
    body = model.body.extended(part)
    changes: dict[str, Any] = {"theta_names": body.theta_names}
    if hasattr(model, "initial_theta"):  # See `SplitModel._without_start`.
        changes["initial_theta"] = body.initial_theta
    return model._on_body(body, **changes)


def normalized(values: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
    """Returns a layer normalisation with `EPSILON` over the last axis."""
    mean, variance = tf.nn.moments(values, axes=[-1], keepdims=True)
    return (values - mean) * tf.math.rsqrt(variance + EPSILON) * scale + offset


def splitting(positions: tuple[int, ...], size: int) -> tf.keras.Model:
    """Returns the part of FedCP: features h become (r h, (1 - r) h), [2 M] (see `fedcp`).

    Its weights are kernel [M, 2 M] and bias of the dense layer, and scale and offset [2 M].
    """
    layers = tf.keras.layers
    features = tf.keras.Input([*positions, size])
    outputs = layers.Dense(2 * size, kernel_initializer="zeros")(features)
    outputs = layers.ReLU()(layers.LayerNormalization(epsilon=EPSILON)(outputs))
    shares = layers.Softmax(axis=-2)(layers.Reshape([*positions, 2, size])(outputs))
    parts = layers.Multiply()([shares, layers.Reshape([*positions, 1, size])(features)])
    return tf.keras.Model(features, layers.Reshape([*positions, 2 * size])(parts))


def affine(positions: tuple[int, ...], size: int) -> tf.keras.Model:
    """Returns the part of GPFL: features h become ReLU(scale h + shift); both weights are [M]."""
    features = tf.keras.Input([*positions, size])
    layer = tf.keras.layers.EinsumDense("...m,m->...m", size, "relu", bias_axes="m")
    return tf.keras.Model(features, layer(features))
