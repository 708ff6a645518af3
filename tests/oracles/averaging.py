"""Gradient steps on all examples of a client, means over clients, and FedDANE, in float64 NumPy."""

import numpy as np

from tests.oracles import network


def local_steps(theta, head, x, y, config, center=None, correction=None):
    """Returns theta and head after tau joint gradient steps.

    With `center`, a list of arrays, mu / 2 ||weights - center||^2 is added to the loss; with
    `correction`, <correction, weights> is.
    """
    weights = [*theta, head]
    for _ in range(config["local_steps"]):
        g_theta, g_head = network.gradients(weights[:-1], weights[-1], x, y)
        decay = config.get("client_weight_decay", 0.0)
        gradient = [g + decay * w for g, w in zip([*g_theta, g_head], weights, strict=True)]
        if center is not None:
            gradient = [
                g + config["proximal_weight"] * (w - c)
                for g, w, c in zip(gradient, weights, center, strict=True)
            ]
        if correction is not None:
            gradient = [g + c for g, c in zip(gradient, correction, strict=True)]
        weights = [
            w - config["client_learning_rate"] * g for w, g in zip(weights, gradient, strict=True)
        ]
    return weights[:-1], weights[-1]


def mean(values, sizes):
    """Returns the mean of lists of arrays, weighted by sizes."""
    return [
        np.average(np.stack(parts), axis=0, weights=sizes) for parts in zip(*values, strict=True)
    ]


def sizes_of(data, participants):
    """Returns N_i of the participants."""
    return data.train.sizes[list(participants)]


def feddane_round(theta, head, data, first_cohort, second_cohort, config):
    """Returns (theta, head) after a round of FedDANE."""

    def gradient(client):
        g_theta, g_head = network.gradients(theta, head, *network.of_client(data.train, client))
        return [*g_theta, g_head]

    g = mean([gradient(client) for client in first_cohort], sizes_of(data, first_cohort))
    models = []
    for client in second_cohort:
        correction = [a - b for a, b in zip(g, gradient(client), strict=True)]
        data_of = network.of_client(data.train, client)
        theta_i, head_i = local_steps(theta, head, *data_of, config, [*theta, head], correction)
        models.append([*theta_i, head_i])
    *theta, head = mean(models, sizes_of(data, second_cohort))
    return theta, head
