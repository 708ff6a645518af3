"""One round of every method that averages weights, in float64 NumPy."""

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
        gradient = [*g_theta, g_head]
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


def fedper_round(theta, heads, data, participants, config):
    """Returns (theta, heads) after a round of FedPer; `heads` maps a client to its own K_i rows."""
    heads, thetas = dict(heads), []
    for client in participants:
        theta_i, heads[client] = local_steps(
            theta, heads[client], *network.of_client(data.train, client), config
        )
        thetas.append(theta_i)
    return mean(thetas, sizes_of(data, participants)), heads


def body_steps(theta, head, x, y, steps, config):
    """Returns theta after gradient steps with momentum on theta alone."""
    velocity = [np.zeros_like(w) for w in theta]
    for _ in range(steps):
        g_theta, _ = network.gradients(theta, head, x, y)
        velocity = [config["momentum"] * v + g for v, g in zip(velocity, g_theta, strict=True)]
        theta = [
            w - config["client_learning_rate"] * v for w, v in zip(theta, velocity, strict=True)
        ]
    return theta


def fedrep_round(theta, heads, data, participants, config):
    """Returns (theta, heads) after a round of FedRep."""
    heads, thetas = dict(heads), []
    for client in participants:
        x, y = network.of_client(data.train, client)
        velocity = np.zeros_like(heads[client])
        for _ in range(config["local_steps"] - config["body_steps"]):
            velocity = (
                config["momentum"] * velocity + network.gradients(theta, heads[client], x, y)[1]
            )
            heads[client] = heads[client] - config["client_learning_rate"] * velocity
        thetas.append(body_steps(theta, heads[client], x, y, config["body_steps"], config))
    return mean(thetas, sizes_of(data, participants)), heads


def fedbabu_round(theta, head, data, participants, config):
    """Returns theta after a round of FedBABU under the fixed `head`."""
    thetas = []
    for client in participants:
        x, y = network.of_client(data.train, client)
        thetas.append(body_steps(theta, head, x, y, config["local_steps"], config))
    return mean(thetas, sizes_of(data, participants))


def fedavg_round(theta, head, data, participants, config):
    """Returns (theta, head) after a round of FedAvg."""
    models = []
    for client in participants:
        theta_i, head_i = local_steps(theta, head, *network.of_client(data.train, client), config)
        models.append([*theta_i, head_i])
    *theta, head = mean(models, sizes_of(data, participants))
    return theta, head


def fedprox_round(theta, head, data, participants, config):
    """Returns (theta, head) after a round of FedProx."""
    models = []
    for client in participants:
        theta_i, head_i = local_steps(
            theta, head, *network.of_client(data.train, client), config, [*theta, head]
        )
        models.append([*theta_i, head_i])
    *theta, head = mean(models, sizes_of(data, participants))
    return theta, head


def ditto_round(theta, head, personal, data, participants, config):
    """Returns (theta, head, personal) after a round of Ditto.

    `personal` maps a client to its [*theta, head].
    """
    personal = dict(personal)
    for client in participants:
        *theta_i, head_i = personal[client]
        theta_i, head_i = local_steps(
            theta_i, head_i, *network.of_client(data.train, client), config, [*theta, head]
        )
        personal[client] = [*theta_i, head_i]
    return *fedavg_round(theta, head, data, participants, config), personal


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
