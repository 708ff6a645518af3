"""The mini-batches that a client draws, and steps on them, in float64 NumPy."""

import numpy as np
import tensorflow as tf

from tests.oracles import network
from tf_pflego.core import seeds
from tf_pflego.core.local_training import shuffled


def of_client(data, client, seed, round_number, epochs, batch_size):
    """Yields (examples, labels) of each batch of a client's round, for the run's `seed`."""
    x, y = network.of_client(data.train, client)
    yield from of_examples(x, y, client, seed, round_number, epochs, batch_size)


def of_examples(x, y, client, seed, round_number, epochs, batch_size):
    """The same for a client that trains on these examples."""
    (client_seed,) = seeds.client_seeds(seed, "client", [client], round_number, 0)
    fold_in = tf.random.experimental.stateless_fold_in
    for epoch in range(epochs):
        order = shuffled(tf.constant(len(y)), fold_in(fold_in(client_seed, 0), epoch)).numpy()
        for start in range(0, len(y), batch_size):
            rows = order[start : start + batch_size]
            yield x[rows], y[rows]


def gradient(weights, x, y):
    """The gradient of the loss in [*theta, head], as a list of the same form."""
    g_theta, g_head = network.gradients(weights[:-1], weights[-1], x, y)
    return [*g_theta, g_head]


class Momentum:
    """SGD with momentum over lists of arrays."""

    def __init__(self, rate, momentum):
        self.rate, self.momentum, self.velocity = rate, momentum, None

    def step(self, weights, gradient):
        """Returns the weights after a step."""
        before = self.velocity or [np.zeros_like(w) for w in weights]
        self.velocity = [self.momentum * v + g for v, g in zip(before, gradient, strict=True)]
        return [w - self.rate * v for w, v in zip(weights, self.velocity, strict=True)]
