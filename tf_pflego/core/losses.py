"""The losses of the known tasks, and of a user's own, with their derivatives by the logits.

They are functions of modules, so that models and methods can be pickled.
"""

from __future__ import annotations

import functools
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
    """A `Loss` that is a sum over the outputs of an example, of functions that can be pickled."""

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
        """Returns a function to the second derivatives along a direction; see `Loss`."""
        second = self.second(logits, targets)
        return lambda direction: second * direction


def _half_square(z, y):
    return tf.square(z - y) / 2


def _error(z, y):
    return z - y


def _one(z, y):
    return tf.ones_like(z)


def _logistic(z, y):
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=z)


def _logistic_slope(z, y):
    return tf.sigmoid(z) - y


def _logistic_second(z, y):
    return tf.sigmoid(z) * tf.sigmoid(-z)


def _poisson(z, y):
    return tf.exp(z) - y * z


def _poisson_slope(z, y):
    return tf.exp(z) - y


def _poisson_second(z, y):
    return tf.exp(z)


def _huber(delta, z, y):
    size = tf.abs(z - y)
    return tf.where(size < delta, tf.square(size) / 2, delta * (size - delta / 2))


def _huber_slope(delta, z, y):
    return tf.clip_by_value(z - y, -delta, delta)


def _huber_second(delta, z, y):
    return tf.cast(tf.abs(z - y) < delta, tf.float32)


def huber(delta: float) -> Elementwise:
    """Returns Huber's loss, which is linear in errors from `delta` on."""
    value, slope, second = (
        functools.partial(one, delta) for one in (_huber, _huber_slope, _huber_second)
    )
    return Elementwise(value, slope, second, 1.0)


SQUARED = Elementwise(_half_square, _error, _one, 1.0, is_quadratic=True)
LOGISTIC = Elementwise(_logistic, _logistic_slope, _logistic_second, 0.25)
POISSON = Elementwise(_poisson, _poisson_slope, _poisson_second, None)


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


def _softmax_slope(logits, targets):
    return _softmax(logits) - targets


SOFTMAX = Loss(_softmax_loss, _softmax_slope, _softmax_curve, 0.5)


def differentiated(loss: Callable) -> Loss:
    """Returns a user's loss with derivatives that TensorFlow makes."""
    values, slope, curve = (functools.partial(one, loss) for one in (_values_of, _slope, _curve))
    return Loss(values, slope, curve, None)


def _values_of(loss, logits, labels):
    return loss(tf.transpose(logits), labels)


def _slope(loss, logits, labels):
    with tf.GradientTape() as tape:
        tape.watch(logits)
        total = tf.reduce_sum(_values_of(loss, logits, labels))
    return tape.gradient(total, logits)


def _curve(loss, logits, labels):
    def along(direction):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            rise = tf.reduce_sum(_slope(loss, logits, labels) * direction)
        second = tape.gradient(rise, logits)
        return tf.zeros_like(logits) if second is None else second

    return along
