"""Local training: what clients do between the two messages of a round where more than the head is trained."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def gradient(loss: Callable[[Any], tf.Tensor], weights: Any) -> Any:
    """Returns the gradient of `loss` at `weights`, a nest of tensors, as the same nest."""
    with tf.GradientTape() as tape:
        tape.watch(weights)
        value = loss(weights)
    return tape.gradient(value, weights)


def gradient_descent(loss: Callable[[Any], tf.Tensor], weights: Any, steps: int, rate: float, momentum: float = 0.0) -> Any:
    """Returns the weights after gradient steps on all of them at once.

    Args:
      loss: weights -> [] the client's loss.
      weights: Where to start, a nest of tensors.
      steps: tau; none returns the weights as they are.
      rate: beta.
      momentum: m; a step moves by -beta v, where v <- m v + gradient starts from 0.
    """
    if steps == 0:
        return weights

    def step(k, weights, velocity):
        velocity = tf.nest.map_structure(lambda v, g: momentum * v + g, velocity, gradient(loss, weights))
        return k + 1, tf.nest.map_structure(lambda w, v: w - rate * v, weights, velocity), velocity

    def plain_step(k, weights):
        return k + 1, tf.nest.map_structure(lambda w, g: w - rate * g, weights, gradient(loss, weights))

    start = (tf.constant(0), weights)
    if momentum:
        start, step_once = (*start, tf.nest.map_structure(tf.zeros_like, weights)), step
    else:
        step_once = plain_step
    return tf.while_loop(lambda k, *_: k < steps, step_once, start, maximum_iterations=steps)[1]


def squared_distance(weights: Any, center: Any) -> tf.Tensor:
    """Returns [] the sum of squared differences of two nests of tensors."""
    differences = tf.nest.map_structure(lambda w, c: tf.reduce_sum(tf.square(w - c)), weights, center)
    return tf.add_n(tf.nest.flatten(differences))
