"""Local training of a whole model: what FedAvg, FedPer and their kin do between the two messages of a round."""

from collections.abc import Callable

import tensorflow as tf

from tf_pflego.core.algorithm import Client, Weights


def gradient_descent(loss: Callable[[Weights, Client], tf.Tensor], weights: Weights, client: Client, steps: int, rate: float):
    """Returns the weights after full-batch gradient steps on theta and head at once.

    Args:
      loss: (weights, client) -> [] the client's mean loss.
      weights: Where to start.
      client: Whose examples to use.
      steps: tau.
      rate: beta.
    """

    def step(k, weights):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            value = loss(weights, client)
        gradient = tape.gradient(value, weights)
        return k + 1, tf.nest.map_structure(lambda w, g: w - rate * g, weights, gradient)

    _, weights = tf.while_loop(lambda k, _: k < steps, step, (tf.constant(0), weights), maximum_iterations=steps)
    return weights


def weighted_mean(weighted_sum, weight_sum: tf.Tensor):
    """Returns sum(w_i x_i) / sum(w_i), the participants' mean, from the two sums."""
    return tf.nest.map_structure(lambda total: total / weight_sum, weighted_sum)
