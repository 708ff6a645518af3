"""One round of PFLEGO, Algorithm 1, and of FedRecon, in float64 NumPy."""

import numpy as np

from tests.oracles import network


def one_round(theta, heads, data, participants, config):
    """Returns (theta, heads) after a round; `heads` maps a client to its own K_i rows.

    The server takes a plain SGD step. As in the paper, there are two forward passes, one for the
    steps of the head and one for the joint gradient.
    """
    rho = config["server_learning_rate"] * data.num_clients / config["clients_per_round"]

    def last_rate(alpha):
        return rho * (alpha if config["head_step_scale"] == "exact" else 1)

    return _round(theta, heads, data, participants, config, rho, last_rate)


def fedrecon_round(theta, heads, data, participants, config):
    """Returns (theta, heads) after a round of FedRecon with plain SGD at the server."""
    rho = config["server_learning_rate"] * data.num_clients / config["clients_per_round"]
    return _round(theta, heads, data, participants, config, rho, None)


def _round(theta, heads, data, participants, config, rho, last_rate):
    """The last step of a head is that of the joint gradient, or like the others."""
    sizes, rate = data.train.sizes, config["client_learning_rate"]
    total, heads = [np.zeros_like(w) for w in theta], dict(heads)
    for client in participants:
        x, y = network.of_client(data.train, client)
        alpha, w = sizes[client] / sizes.sum(), heads[client]
        for _ in range(config["local_steps"] - (last_rate is not None)):
            w = w - rate * network.gradients(theta, w, x, y)[1]
        g_theta, g_w = network.gradients(theta, w, x, y)
        heads[client] = w if last_rate is None else w - last_rate(alpha) * g_w
        total = [t + alpha * g for t, g in zip(total, g_theta, strict=True)]
    return [w - rho * g for w, g in zip(theta, total, strict=True)], heads
