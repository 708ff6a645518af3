"""Layers that differ between training and inference: batch normalisation and dropout.

While a body is traced for training, these replace Keras' own computation, and only a function of
theta, the examples and a seed remains. Batch normalisation uses the mean and the variance of the
batch and changes no variable. Dropout samples its mask from the seed of the client.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

# A part of the names of operations that draw a mask from the client's seed.
OF_SEED = "dropout_by_seed"


class Live:
    """The live layers of a Keras model, as they were called in its trace for training.

    Attributes:
      seed: The placeholder [2] int32 of the client's seed, or None without dropout.
      statistics: The variables of the means and variances of batch normalisation.
      moments: For each of them the batch's value.
      normalizing: The ids of the variables of scales and offsets.
      dropouts: The layers of dropout, called in training or not.
      drawing: Those that have sampled masks.
    """

    def __init__(self, model: tf.keras.Model):
        layers = tf.keras.layers
        every = list(model._flatten_layers())
        self._normalizations = [
            layer
            for layer in every
            if isinstance(layer, layers.BatchNormalization)
            and layer.trainable
            and not getattr(layer, "renorm", False)
        ]
        self._spatial = layers.SpatialDropout1D, layers.SpatialDropout2D, layers.SpatialDropout3D
        self.dropouts = [one for one in every if isinstance(one, layers.Dropout) and one.rate]
        self.seed: Any = None
        self.statistics: list[Any] = []
        self.moments: list[tf.Tensor] = []
        self.normalizing: set[int] = set()
        self.drawing: list[Any] = []

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Lets the layers compute as in training, in the graph that is being built."""
        seed, self._masks = tf.compat.v1.placeholder(tf.int32, [2]), 0
        moments: dict[Any, list[tf.Tensor]] = {}
        with contextlib.ExitStack() as replaced:
            for layer in self._normalizations:
                replaced.enter_context(_calling(layer, self._normalized, moments))
            for layer in self.dropouts:
                replaced.enter_context(_calling(layer, self._dropped, seed))
            yield
        self.seed = seed if self._masks else None
        called = [layer for layer in self._normalizations if id(layer) in moments]
        self.moments = [moment for layer in called for moment in moments[id(layer)]]
        self.statistics = [v for one in called for v in (one.moving_mean, one.moving_variance)]
        self.normalizing = {id(w) for layer in called for w in layer.trainable_variables}

    def _normalized(self, layer, inputs, moments):
        channels = {a % inputs.shape.rank for a in tf.nest.flatten(layer.axis)}
        axes = [axis for axis in range(inputs.shape.rank) if axis not in channels]
        mean, variance = tf.nn.moments(inputs, axes, keepdims=True)
        moments[id(layer)] = [tf.reshape(m, layer.moving_mean.shape) for m in (mean, variance)]

        def along(weight):
            return None if weight is None else tf.reshape(weight, mean.shape)

        offset, scale = (along(getattr(layer, name, None)) for name in ("beta", "gamma"))
        return tf.nn.batch_normalization(inputs, mean, variance, offset, scale, layer.epsilon)

    def _dropped(self, layer, inputs, seed):
        shape = tf.shape(inputs)
        if isinstance(layer, self._spatial):
            shape = layer._get_noise_shape(inputs)
        elif layer.noise_shape is not None:
            sizes = enumerate(layer.noise_shape)
            shape = [shape[axis] if size is None else size for axis, size in sizes]
        self._masks += 1
        self.drawing.append(layer)
        with tf.name_scope(OF_SEED):
            seed = tf.random.experimental.stateless_fold_in(seed, self._masks)
            kept = tf.random.stateless_uniform(shape, seed) >= layer.rate
            return inputs * tf.cast(kept, inputs.dtype) / (1 - layer.rate)


@contextlib.contextmanager
def _calling(layer, function, *arguments):
    """Lets a layer that is called in training call another function instead."""
    call = layer.call

    @tf.autograph.experimental.do_not_convert
    def replacement(inputs, training=None, **others):
        if training is None or not training:
            return call(inputs, training=training, **others)
        return function(layer, inputs, *arguments)

    object.__setattr__(layer, "call", replacement)
    try:
        yield
    finally:
        object.__delattr__(layer, "call")
