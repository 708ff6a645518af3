"""Copies of a Keras model with other weights, from the configurations of its layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf


class Cloning:
    """Copies a model from its configuration, when a copy is asked for.

    The weights that are not trainable keep their values from now, except `statistics`.
    """

    def __init__(self, model: tf.keras.Model, example: tf.TensorSpec, statistics: Sequence[Any]):
        self.model = model
        self._example = example
        lambdas = tf.keras.layers.Lambda
        self._lambda_layers = [one.name for one in _layers(model) if isinstance(one, lambdas)]
        trainable = {id(weight) for weight in model.trainable_variables}
        self._theta = [id(weight) for weight in (*model.trainable_variables, *statistics)]
        self._constants = {
            id(weight): np.array(weight) for weight in model.weights if id(weight) not in trainable
        }

    def __call__(self, theta: Sequence[Any]) -> tf.keras.Model:
        """Returns a copy with the trainable weights `theta`, in the order of the model's.

        After them theta may have the statistics of live batch normalisation.
        """
        source = self.model
        values = self._constants | dict(zip(self._theta, map(np.asarray, theta), strict=False))
        # Keras finds the classes of standard layers itself.
        classes = {type(layer).__name__: type(layer) for layer in _layers(source)}
        try:
            with tf.keras.utils.custom_object_scope(classes):
                copy = tf.keras.models.clone_model(source)
            copy(tf.zeros([1, *self._example.shape[1:]], self._example.dtype), training=False)
            for layer, its_copy in zip(_layers(source), _layers(copy), strict=True):
                its_copy.trainable = layer.trainable  # The order of the weights depends on it.
            copy.set_weights([values[id(weight)] for weight in source.weights])
        except Exception as error:
            # The user's classes, or Keras about them, can raise any kind of error.
            self.refuse_lambda_layers("a copy that Keras makes")
            raise ValueError(
                "`body` must consist of layers that Keras can make again from their "
                f"configuration; {source.name} is not ({type(error).__name__}: "
                f"{str(error)[:300]}). Give each of your classes a `get_config` that returns the "
                "arguments of its `__init__`."
            ) from error
        return copy

    def refuse_lambda_layers(self, what: str) -> None:
        """Raises ValueError if there are Lambda layers; `what` names the copy."""
        if self._lambda_layers:
            raise ValueError(
                f"`body` must have no Lambda layer for {what}, since Keras rebuilds none without "
                f"a permission to run its code; {', '.join(self._lambda_layers)} is one. Write it "
                "as a layer of your own class with a `get_config`, or export with "
                "`format='savedmodel'`."
            )


def _layers(model):
    """Returns the model and all layers in it, however deep, each before its own."""
    return list(model._flatten_layers())
