"""MR-MTL against a float64 oracle, and at the limits of its pull."""

import pytest

from tests.algorithms.mini_batches import (
    DROPPED,
    assert_close,
    combine,
    draw,
    flat,
    near,
    own,
    rounds_of,
    simulation_of,
    train,
    weighted_mean,
)
from tests.algorithms.test_limits import SAME, largest_difference
from tests.conftest import make_clients
from tests.methods import by_task

BATCHES = {"all batches": {}, "full batches": DROPPED | {"server_learning_rate": 0.5}}


@by_task("config", BATCHES, "classification", "counts")
def test_mr_mtl(tiny_model, tiny_clients, config):
    """A client goes on from its own network, also where it was absent in between."""
    simulation = simulation_of("mr_mtl", tiny_model, tiny_clients, proximal_weight=0.5, **config)
    mean, networks = flat(simulation.server_state.weights), own(simulation)
    for number, participants in rounds_of(simulation):
        for client in participants:
            drawn = draw(tiny_clients, client, number, **config)
            networks[client] = train(networks[client], drawn, near(mean, 0.5))
        trained = [networks[client] for client in participants]
        difference = combine(weighted_mean(trained, tiny_clients, participants), -1, mean)
        mean = combine(mean, config.get("server_learning_rate", 1), difference)
        simulation.run_round()
        assert_close(flat(simulation.server_state.weights), mean)
        for actual, expected in zip(own(simulation), networks, strict=True):
            assert_close(actual, expected)


@pytest.mark.thorough
def test_without_pull_it_is_local(tiny_model):
    """Where all clients have all classes, since its networks are for all of them."""
    clients = make_clients((3, 7, 5), (2, 4, 3), (3, 3, 3))
    mr_mtl = simulation_of("mr_mtl", tiny_model, clients, proximal_weight=0.0)
    local = simulation_of("local", tiny_model, clients)
    for _ in range(3):
        mr_mtl.run_round()
        local.run_round()
        states = mr_mtl.client_states(range(3)), local.client_states(range(3))
        assert largest_difference(*states) <= SAME
