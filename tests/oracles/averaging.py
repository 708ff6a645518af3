"""One round of FedPer and of FedAvg in float64 NumPy."""

import numpy as np

from tests.oracles import network


def local_steps(theta, head, x, y, config):
    """Returns theta and head after tau joint gradient steps."""
    for _ in range(config["local_steps"]):
        g_theta, g_head = network.gradients(theta, head, x, y)
        theta = [w - config["client_learning_rate"] * g for w, g in zip(theta, g_theta, strict=True)]
        head = head - config["client_learning_rate"] * g_head
    return theta, head


def mean(values, sizes):
    """Returns the mean of lists of arrays, weighted by sizes."""
    return [np.average(np.stack(parts), axis=0, weights=sizes) for parts in zip(*values, strict=True)]


def fedper_round(theta, heads, data, participants, config):
    """Returns (theta, heads) after a round of FedPer; `heads` maps a client to its own K_i rows."""
    heads, thetas = dict(heads), []
    for client in participants:
        theta_i, heads[client] = local_steps(theta, heads[client], *network.of_client(data.train, client), config)
        thetas.append(theta_i)
    return mean(thetas, data.train.sizes[list(participants)]), heads


def fedavg_round(theta, head, data, participants, config):
    """Returns (theta, head) after a round of FedAvg."""
    models = []
    for client in participants:
        theta_i, head_i = local_steps(theta, head, *network.of_client(data.train, client), config)
        models.append([*theta_i, head_i])
    *theta, head = mean(models, data.train.sizes[list(participants)])
    return theta, head
