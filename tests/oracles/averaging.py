"""Gradient steps on all examples of a client, and means over clients, in float64 NumPy."""

import numpy as np

from tests.oracles import network


def local_steps(theta, head, x, y, config):
    """Returns theta and head after tau joint gradient steps."""
    for _ in range(config["local_steps"]):
        g_theta, g_head = network.gradients(theta, head, x, y)
        rate = config["client_learning_rate"]
        theta = [w - rate * g for w, g in zip(theta, g_theta, strict=True)]
        head = head - rate * g_head
    return theta, head


def mean(values, sizes):
    """Returns the mean of lists of arrays, weighted by sizes."""
    return [
        np.average(np.stack(parts), axis=0, weights=sizes) for parts in zip(*values, strict=True)
    ]


def sizes_of(data, participants):
    """Returns N_i of the participants."""
    return data.train.sizes[list(participants)]
