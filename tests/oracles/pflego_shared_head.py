"""One round of PFLEGO with a shared head in float64 NumPy.

Heads have only the rows of the classes that a client holds, and gradients of the gate come from
those of the whole head, so that nothing is shared with the program but what it computes.
"""

import numpy as np

from tests.oracles import network


def own_part(theta, rows, correction, gate, x, y, penalty):
    """Returns l_i(g S_i V + U, theta) + (lambda_i/2) |U|^2, for `rows` S_i V [K_i, M + 1]."""
    return network.loss(theta, gate * rows + correction, x, y) + penalty / 2 * np.sum(correction**2)


def own_penalty(theta, rows, x, y, config):
    """Returns lambda_i."""
    penalty, growth = config["correction_penalty"], config["penalty_growth"]
    if y.ndim > 1 or y.dtype.kind != "i" or len(rows) == 1:
        return penalty
    nothing, shared = (network.loss(theta, head, x, y) for head in (0 * rows, rows))
    return penalty * max(1, nothing / max(shared, 1e-4 * nothing)) ** growth


def local_steps(theta, rows, correction, gate, x, y, config):
    """Returns (U, g, rate, whether the steps were taken again) after the tau - 1 local steps."""
    penalty = own_penalty(theta, rows, x, y, config)
    least = config["correction_penalty"]
    phi = network.forward(theta, rows, x)[1]
    inputs = np.hstack([phi, np.ones((len(phi), 1))])
    logits = inputs @ rows.T
    twice_bound = 2 * network.losses(logits, y)[2]
    of_correction = twice_bound * np.mean(np.sum(inputs**2, axis=1))
    if y.ndim == 1:  # What all logits of an example have in common changes nothing.
        logits = logits - logits.mean(axis=1, keepdims=True)
    of_gate = twice_bound * np.mean(np.sum(logits**2, axis=1))
    twice_curvature = {
        "correction": of_correction + 2 * least,
        "joint": of_correction + of_gate + 2 * least,
        "none": 0.0,
    }[config["rate_cap"]]
    rate = config["client_learning_rate"]
    if rate * twice_curvature > 2:
        rate = 2 / twice_curvature

    def steps(u, g, rate, gate_rate):
        for _ in range(config["local_steps"] - 1):
            slope = network.gradients(theta, g * rows + u, x, y)[1]
            if config["gate"] == "learnt":
                g_next = min(max(g - gate_rate * np.sum(slope * rows), 0.0), 1.0)
            if config["correction"] == "learnt":
                u = (u - rate * slope) / (1 + rate * penalty)
            if config["gate"] == "learnt":
                g = g_next
        return u, g

    def part(u, g):
        return own_part(theta, rows, u, g, x, y, penalty)

    found = steps(correction, gate, rate, rate)
    again = not part(*found) <= part(correction, gate)
    if again:
        found = steps(correction, gate, 1 / (of_correction + least), 1 / of_gate)
    return *found, rate, again


def one_round(theta, shared, corrections, gates, data, participants, config, rows_of=None):
    """Returns theta, V, all U_i, all g_i, and who took the local steps again.

    The server takes plain SGD steps. `corrections` map a client to its own K_i rows, and `rows_of`
    to the examples that it works on, if these are not all.
    """
    sizes = data.train.sizes
    step = config["server_learning_rate"] * data.num_clients / config["clients_per_round"]
    new_theta, new_shared = [w.copy() for w in theta], shared.copy()
    corrections, gates, took_again = dict(corrections), dict(gates), set()
    for client in participants:
        x, y, held = client_of(data, client)
        if rows_of is not None:
            x, y = x[rows_of[client]], y[rows_of[client]]
        rows = shared[held]
        u, g, rate, again = local_steps(
            theta, rows, corrections[client], gates[client], x, y, config
        )
        took_again |= {client} if again else set()
        g_theta, g_head = network.gradients(theta, g * rows + u, x, y)
        alpha = sizes[client] / sizes.sum()
        for w, gradient in zip(new_theta, g_theta, strict=True):
            w -= step * alpha * gradient
        for row, gradient in zip(held, g_head, strict=True):
            new_shared[row] -= step * alpha * g * gradient
        if config["correction"] == "learnt":
            u = (u - rate * g_head) / (1 + rate * own_penalty(theta, rows, x, y, config))
        corrections[client], gates[client] = u, g
    return new_theta, new_shared, corrections, gates, took_again


def client_of(data, client):
    """Returns a client's examples, its labels among its own classes, and these [K_i]."""
    x, y = network.of_client(data.train, client)
    held = np.asarray(data.classes[client])
    if data.label_space == "global" and not data.class_mask:
        held = np.arange(data.num_classes[client])
    elif data.label_space == "global":
        y = np.searchsorted(held, y)
    return x, y, held
