"""One round of PFLEGO, Algorithm 1, in float64 NumPy."""

import numpy as np

from tests.oracles import network


def one_round(theta, heads, data, participants, config):
    """Returns (theta, heads) after a round; `heads` maps a client to its own K_i rows.

    The server takes a plain SGD step. As in the paper, there are two forward passes, one for the
    steps of the head and one for the joint gradient.
    """
    sizes = data.train.sizes
    scale = data.num_clients / config["clients_per_round"]
    total = [np.zeros_like(w) for w in theta]
    heads = dict(heads)
    for client in participants:
        x, y = network.of_client(data.train, client)
        alpha = sizes[client] / sizes.sum()
        w = heads[client]
        for _ in range(config["local_steps"] - 1):
            w = w - config["client_learning_rate"] * network.gradients(theta, w, x, y)[1]
        g_theta, g_w = network.gradients(theta, w, x, y)
        last = (
            config["server_learning_rate"]
            * scale
            * (alpha if config["head_step_scale"] == "exact" else 1)
        )
        heads[client] = w - last * g_w
        total = [t + alpha * g for t, g in zip(total, g_theta, strict=True)]
    return [
        w - config["server_learning_rate"] * scale * g for w, g in zip(theta, total, strict=True)
    ], heads


def fedrecon_round(theta, heads, data, participants, config):
    """Returns (theta, heads) after a round of FedRecon with plain SGD at the server."""
    sizes = data.train.sizes
    scale = data.num_clients / config["clients_per_round"]
    total, heads = [np.zeros_like(w) for w in theta], dict(heads)
    for client in participants:
        x, y = network.of_client(data.train, client)
        for _ in range(config["local_steps"]):
            heads[client] = (
                heads[client]
                - config["client_learning_rate"] * network.gradients(theta, heads[client], x, y)[1]
            )
        g_theta, _ = network.gradients(theta, heads[client], x, y)
        total = [t + sizes[client] / sizes.sum() * g for t, g in zip(total, g_theta, strict=True)]
    return [
        w - config["server_learning_rate"] * scale * g for w, g in zip(theta, total, strict=True)
    ], heads
