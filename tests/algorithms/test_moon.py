"""MOON against a float64 oracle, and where it is FedAvg."""

import numpy as np
import pytest

from tests.algorithms.mini_batches import (
    ROUNDS,
    assert_close,
    draw,
    own,
    simulation_of,
    train,
)
from tests.algorithms.test_limits import SAME, largest_difference
from tests.algorithms.test_mini_batches import TASKS, assert_means
from tests.conftest import of_tasks
from tests.methods import thorough
from tests.oracles import features
from tf_pflego.core.participation import Participation


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


@of_tasks(*TASKS)
def test_rounds_are_those_of_the_oracle(tiny_model, tiny_clients):
    config = {"contrast_weight": 2.0, "contrast_temperature": 0.3}
    simulation = simulation_of("moon", tiny_model, tiny_clients, **config)
    last = {}

    def trained(w, client, number):
        gradient = features.with_term(contrast(w, last.get(client, w), 2.0, 0.3))
        last[client] = train(w, draw(tiny_clients, client, number), gradient)
        return last[client]

    def check():
        for client, network in last.items():
            assert_close(own(simulation)[client], network)

    assert_means(simulation, trained, check)


@pytest.mark.parametrize(
    ("config", "rounds"),
    [thorough({"contrast_weight": 0.0}, ROUNDS), ({"contrast_weight": 5.0}, 1)],
)
def test_without_its_term_and_in_the_first_round_it_is_fedavg(
    tiny_model, tiny_clients, config, rounds
):
    """A client without a last network has the same cosine twice, which no step can change."""
    everybody = Participation(3, 3)
    moon = simulation_of("moon", tiny_model, tiny_clients, everybody, **config)
    fedavg = simulation_of("fedavg", tiny_model, tiny_clients, everybody)
    for _ in range(rounds):
        moon.run_round()
        fedavg.run_round()
    weights = moon.server_state.weights, fedavg.server_state.weights
    assert largest_difference(*weights) <= SAME
