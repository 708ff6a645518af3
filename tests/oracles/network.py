"""The tiny network and its gradients in float64 NumPy.

It is one dense ReLU layer with a linear head, and its loss is the mean cross-entropy.
"""

import numpy as np


def forward(theta, head, x):
    """Returns (pre-activations, features, probabilities)."""
    kernel, bias = theta
    before = x @ kernel + bias
    phi = np.maximum(before, 0)
    z = np.hstack([phi, np.ones((len(phi), 1))]) @ head.T
    z = z - z.max(axis=1, keepdims=True)
    return before, phi, np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)


def loss(theta, head, x, y):
    """Returns l_i."""
    p = forward(theta, head, x)[2]
    return -np.mean(np.log(p[np.arange(len(y)), y]))


def gradients(theta, head, x, y):
    """Returns (gradient of theta, gradient of the head) of l_i."""
    before, phi, p = forward(theta, head, x)
    error = (p - np.eye(len(head))[y]) / len(y)
    g_head = error.T @ np.hstack([phi, np.ones((len(phi), 1))])
    g_before = (error @ head[:, :-1]) * (before > 0)
    return [x.T @ g_before, g_before.sum(axis=0)], g_head


def of_client(split, client):
    """Returns a client's examples and labels in float64."""
    x, y = split.of(client)
    return x.astype(np.float64), y
