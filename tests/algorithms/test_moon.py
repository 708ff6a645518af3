"""MOON against a float64 oracle."""

import numpy as np

from tests.algorithms.mini_batches import (
    assert_means,
    draw,
    own,
    simulation_of,
    train,
)
from tests.algorithms.test_mini_batches import TASKS
from tests.comparison import assert_near
from tests.conftest import of_tasks
from tests.oracles import features


def cosines(a, b):
    """The cosines of rows [n], 0 where one has no direction, and their gradient in `a` [n, M]."""
    norms = [np.linalg.norm(rows, axis=1, keepdims=True) for rows in (a, b)]
    of_a, of_b = (
        np.divide(rows, norm, out=np.zeros_like(rows), where=norm > 0)
        for rows, norm in zip((a, b), norms, strict=True)
    )
    cosine = np.sum(of_a * of_b, axis=1, keepdims=True)
    slope = np.divide(of_b - cosine * of_a, norms[0], out=np.zeros_like(a), where=norms[0] > 0)
    return cosine, slope


def contrast(server, last, weight, temperature):
    """The gradient of the contrastive loss in the features."""

    def slope(phi, x, y):
        near, near_slope = cosines(phi, features.of(server, x))
        far, far_slope = cosines(phi, features.of(last, x))
        positive, negative = np.exp(near / temperature), np.exp(far / temperature)
        share = negative / (positive + negative)
        return weight / len(y) * share * (far_slope - near_slope) / temperature

    return slope


# The slope of a contrast at this temperature turns a difference into one some times as large.
TOLERANCE = 3e-5


@of_tasks(*TASKS[:2])
def test_rounds_are_those_of_the_oracle(tiny_model, tiny_clients):
    config = {"contrast_weight": 2.0, "contrast_temperature": 0.3}
    simulation = simulation_of("moon", tiny_model, tiny_clients, **config)
    last = {}

    def trained(w, client, number):
        gradient = features.with_term(contrast(w, last.get(client, w), 2.0, 0.3))
        last[client] = train(w, draw(tiny_clients, client, number), gradient)
        return last[client]

    def check(weights):
        for client, network in last.items():
            assert_near(own(simulation)[client], network, atol=TOLERANCE, rtol=0)

    assert_means(simulation, trained, check, TOLERANCE)
