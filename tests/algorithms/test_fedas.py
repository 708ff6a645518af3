"""FedAS against a float64 oracle."""

import numpy as np
import pytest

from tests.algorithms.mini_batches import (
    DROPPED,
    assert_close,
    combine,
    dot,
    draw,
    flat,
    own,
    rounds_of,
    simulation_of,
    train,
)
from tests.methods import thorough
from tests.oracles import batches, features, network

# float32 rounding where a mean is divided by a trace with which it was multiplied.
TOLERANCE = 1e-6


def aligned(body, head, targets, drawn, rate):
    """The body after a step for each batch towards the class means `targets`."""
    for x, y in drawn:
        phi = features.of([*body, head], x)
        counts = np.array([np.sum(y == k) for k in y])[:, None]
        slope = 2 * (phi - targets[y]) / phi.shape[1] / counts
        body = combine(body, -rate, features.pull_back([*body, head], x, slope)[:-1])
    return body


@pytest.mark.parametrize("config", [{}, thorough(DROPPED)], ids=["all batches", "full batches"])
def test_rounds_are_those_of_the_oracle(tiny_model, tiny_clients, config):
    asked = {"alignment_epochs": 2, "alignment_learning_rate": 0.2} | config
    simulation = simulation_of("fedas", tiny_model, tiny_clients, momentum=0.9, **asked)
    body = flat(simulation.server_state.weights)
    counts = tiny_clients.num_classes
    heads = [w[-1][:k] for w, k in zip(own(simulation), counts, strict=True)]
    last = {}
    for number, participants in rounds_of(simulation):
        total, weight = [0.0, 0.0], 0.0
        for i in participants:
            x, y = network.of_client(tiny_clients.train, i)
            phi = features.of([*last.get(i, body), heads[i]], x)
            targets = np.array([phi[y == k].mean(axis=0) for k in range(counts[i])])
            towards = draw(tiny_clients, i, number, stream=1, **config)
            start = aligned(body, heads[i], targets, towards, 0.2)
            drawn = draw(tiny_clients, i, number, **config)
            *last[i], heads[i] = whole = train([*start, heads[i]], drawn)
            drawn = draw(tiny_clients, i, number, stream=2, **config | {"local_epochs": 1})
            slopes = [batches.gradient(whole, *batch) for batch in drawn]
            of_client = len(y) * np.mean([dot(slope, slope) for slope in slopes])
            total = combine(total, of_client, combine(last[i], -1, body))
            weight += of_client
        body = combine(body, 1 / weight, total)
        simulation.run_round()
        assert_close(flat(simulation.server_state.weights), body)
        for i in last:
            assert_close(own(simulation)[i][:-1], last[i])
            assert_close([own(simulation)[i][-1][: counts[i]]], [heads[i]])
