"""Losses with a term of the features of the tiny network, in float64 NumPy."""

import numpy as np

from tests.oracles import batches, network


def of(weights, x):
    """The features [n, M] under [*theta, head]."""
    return network.forward(weights[:-1], weights[-1], x)[1]


def pull_back(weights, x, slope):
    """The gradient in [*theta, head] of a term whose gradient in the features is `slope` [n, M]."""
    before = network.forward(weights[:-1], weights[-1], x)[0]
    slope = slope * (before > 0)
    return [x.T @ slope, slope.sum(axis=0), np.zeros_like(weights[-1])]


def with_term(slope_of):
    """The gradient of the loss plus a term; slope_of(phi, x, y) is the term's in the features."""

    def gradient(weights, x, y):
        term = pull_back(weights, x, slope_of(of(weights, x), x, y))
        return [a + b for a, b in zip(batches.gradient(weights, x, y), term, strict=True)]

    return gradient


def pull(targets, classes, weight):
    """The slope of the mean squared distance to what the classes of labels have in `targets`.

    A class that is not there pulls at nothing.
    """

    def slope(phi, x, y):
        there = [targets.get(classes[k], f) for k, f in zip(y, phi, strict=True)]
        return weight * 2 * (phi - there) / phi.size

    return slope
