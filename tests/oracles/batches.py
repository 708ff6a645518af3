"""The mini-batches that a client draws, and steps on them, in float64 NumPy."""

import numpy as np
import tensorflow as tf

from tests.oracles import network
from tf_pflego.core import seeds
from tf_pflego.core.shuffles import shuffled


def round_seed(seed, client, round_number, exchange=0):
    """The client's seed in an exchange of a round of a run with `seed`."""
    return seeds.client_seeds(seed, "client", [client], round_number, exchange)[0]


def deal(x, y, client_seed, epochs, batch_size, stream=0, drop_last=False):
    """Yields (examples, labels) of each batch of a client that trains on these examples.

    With `drop_last`, an epoch leaves out its last batch if that is not full and not its only one.
    """
    fold_in = tf.random.experimental.stateless_fold_in
    stop = len(y)
    if drop_last and batch_size < len(y):
        stop -= len(y) % batch_size
    for epoch in range(epochs):
        order = shuffled(tf.constant(len(y)), fold_in(fold_in(client_seed, stream), epoch)).numpy()
        for start in range(0, stop, batch_size):
            rows = order[start : start + batch_size]
            yield x[rows], y[rows]


def gradient(weights, x, y):
    """The gradient of the loss in [*theta, head], as a list of the same form."""
    g_theta, g_head = network.gradients(weights[:-1], weights[-1], x, y)
    return [*g_theta, g_head]


class Momentum:
    """SGD with momentum over lists of arrays, on the loss + decay / 2 ||weights||^2."""

    def __init__(self, rate, momentum, decay=0.0):
        self.rate, self.momentum, self.decay, self.velocity = rate, momentum, decay, None

    def step(self, weights, gradient):
        """Returns the weights after a step."""
        before = self.velocity or [np.zeros_like(w) for w in weights]
        gradient = [g + self.decay * w for g, w in zip(gradient, weights, strict=True)]
        self.velocity = [self.momentum * v + g for v, g in zip(before, gradient, strict=True)]
        return [w - self.rate * v for w, v in zip(weights, self.velocity, strict=True)]
