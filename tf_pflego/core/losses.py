"""The losses of the known tasks, and of a user's own, with their derivatives by the logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf


class Loss(NamedTuple):
    """The loss of logits [K, n], outputs first, as `HeadObjective` has them, and its derivatives.

    `Task.targets` makes the targets from labels.
    """

    values: Callable[[Any, Any], tf.Tensor]  # (logits, targets) -> [n]
    slope: Callable[[Any, Any], tf.Tensor]  # (logits, targets) -> [K, n], the first derivatives
    # (logits, targets) -> a function from a direction [K, n] to the second derivatives along it
    curve: Callable[[Any, Any], Callable[[tf.Tensor], tf.Tensor]]
    bound: float | None  # of the second derivatives, or None if there is none
    is_quadratic: bool = False  # whether the slope is logits less targets


class Elementwise(NamedTuple):
    """A `Loss` that is a sum over the outputs of an example, by functions of each output."""

    each: Callable[[Any, Any], tf.Tensor]  # (logits, targets) -> of each output
    slope: Callable[[Any, Any], tf.Tensor]
    second: Callable[[Any, Any], tf.Tensor]
    bound: float | None
    is_quadratic: bool = False

    def outputs_last(self, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Returns [n], the losses of logits [n, K]."""
        return tf.reduce_sum(self.each(logits, tf.cast(labels, tf.float32)), axis=1)

    def values(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Returns [n], the losses of logits [K, n]."""
        return tf.reduce_sum(self.each(logits, targets), axis=0)

    def curve(self, logits: tf.Tensor, targets: tf.Tensor) -> Callable[[tf.Tensor], tf.Tensor]:
        """Returns a function to the second derivatives along a direction (see `Loss`)."""
        second = self.second(logits, targets)
        return lambda direction: second * direction


SQUARED = Elementwise(
    lambda z, y: tf.square(z - y) / 2,
    lambda z, y: z - y,
    lambda z, y: tf.ones_like(z),
    bound=1.0,
    is_quadratic=True,
)
LOGISTIC = Elementwise(
    lambda z, y: tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=z),
    lambda z, y: tf.sigmoid(z) - y,
    lambda z, y: tf.sigmoid(z) * tf.sigmoid(-z),
    bound=0.25,
)
POISSON = Elementwise(
    lambda z, y: tf.exp(z) - y * z,
    lambda z, y: tf.exp(z) - y,
    lambda z, y: tf.exp(z),
    bound=None,
)


def huber(delta: float) -> Elementwise:
    """Returns Huber's loss, which is linear in errors from `delta` on."""

    def each(z, y):
        size = tf.abs(z - y)
        return tf.where(size < delta, tf.square(size) / 2, delta * (size - delta / 2))

    return Elementwise(
        each,
        lambda z, y: tf.clip_by_value(z - y, -delta, delta),
        lambda z, y: tf.cast(tf.abs(z - y) < delta, tf.float32),
        bound=1.0,
    )


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns [n], the loss of classification for logits [n, K]."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def _softmax(logits):
    """Returns [K, n], classes first; TensorFlow has no fast softmax for this order."""
    exponentials = tf.exp(logits - tf.reduce_max(logits, axis=0))
    return exponentials / tf.reduce_sum(exponentials, axis=0)


def _softmax_curve(logits, targets):
    probabilities = _softmax(logits)

    def along(direction):
        weighted = probabilities * direction
        return weighted - probabilities * tf.reduce_sum(weighted, axis=0)

    return along


def _softmax_loss(logits, targets):
    # As `tf.reduce_logsumexp` of finite numbers, for which XLA has all operations.
    largest = tf.stop_gradient(tf.reduce_max(logits, axis=0))
    total = tf.reduce_sum(tf.exp(logits - largest), axis=0)
    return tf.math.log(total) + largest - tf.reduce_sum(targets * logits, axis=0)


SOFTMAX = Loss(
    _softmax_loss, lambda logits, targets: _softmax(logits) - targets, _softmax_curve, 0.5
)


def differentiated(loss: Callable) -> Loss:
    """Returns a user's loss with derivatives that TensorFlow makes."""

    def values(logits, labels):
        return loss(tf.transpose(logits), labels)

    def slope(logits, labels):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            total = tf.reduce_sum(values(logits, labels))
        return tape.gradient(total, logits)

    def curve(logits, labels):
        def along(direction):
            with tf.GradientTape() as tape:
                tape.watch(logits)
                rise = tf.reduce_sum(slope(logits, labels) * direction)
            second = tape.gradient(rise, logits)
            return tf.zeros_like(logits) if second is None else second

        return along

    return Loss(values, slope, curve, None)
