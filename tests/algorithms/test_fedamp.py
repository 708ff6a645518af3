"""FedAMP against a float64 oracle, and at the limits of its attention."""

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.mini_batches import (
    BATCHES,
    LOCAL,
    assert_close,
    combine,
    dot,
    draw,
    near,
    own,
    plain_mean,
    rounds_of,
    simulation_of,
    train,
)
from tests.algorithms.test_limits import SAME, largest_difference
from tests.conftest import make_clients
from tests.methods import by_task, thorough
from tests.oracles import network
from tf_pflego.core.participation import Participation

ATTENTION = {"attention": 0.8, "attention_width": 0.5}


def unlike_networks(simulation):
    """Gives each client a network of its own, and returns them; at first all are the same."""
    states, rng = simulation.client_states(range(3)), np.random.default_rng(0)

    def moved(leaf):
        return (leaf + rng.normal(scale=0.1, size=leaf.shape)).astype(np.float32)

    simulation.set_client_states(range(3), tf.nest.map_structure(moved, states))
    return own(simulation)


@by_task("config", BATCHES, "classification", "counts")
def test_fedamp(tiny_model, tiny_clients, config):
    """Rounds of two, three and one participants; the one hears of nobody else."""
    asked = ATTENTION | {"proximal_weight": 0.5} | config
    simulation = simulation_of("fedamp", tiny_model, tiny_clients, **asked)
    networks = unlike_networks(simulation)
    for number, participants in rounds_of(simulation):
        before = dict(enumerate(networks))
        for client in participants:
            cloud, others = before[client], [j for j in participants if j != client]
            for j in others:
                way = combine(before[j], -1, before[client])
                attention = 0.8 / len(others) * np.exp(-dot(way, way) / 0.5)
                cloud = combine(cloud, attention, way)
            drawn = draw(tiny_clients, client, number, exchange=1, **config)
            networks[client] = train(before[client], drawn, near(cloud, 0.5))
        simulation.run_round()
        for actual, expected in zip(own(simulation), networks, strict=True):
            assert_close(actual, expected)
        assert not simulation.server_state.ids.shape[0]


@pytest.mark.thorough
@pytest.mark.parametrize(("attention", "per_round"), [(0.0, 3), thorough(0.8, 1)])
def test_without_attention_to_others_a_client_is_held_near_itself(
    tiny_model, tiny_clients, attention, per_round
):
    """A round is then a round of MR-MTL that is sent the client's own network."""
    config = ATTENTION | {"attention": attention, "proximal_weight": 0.5}
    drawn = Participation(3, per_round)
    simulation = simulation_of("fedamp", tiny_model, tiny_clients, drawn, **config)
    networks = unlike_networks(simulation)
    for number, participants in rounds_of(simulation):
        for client in participants:
            batches = draw(tiny_clients, client, number, exchange=1)
            networks[client] = train(networks[client], batches, near(networks[client], 0.5))
        simulation.run_round()
        for actual, expected in zip(own(simulation), networks, strict=True):
            assert_close(actual, expected)


@pytest.mark.thorough
def test_without_pull_it_is_local(tiny_model):
    """Where all clients have all classes. Batches would be others, since it has two exchanges."""
    clients, full = make_clients((3, 7, 5), (2, 4, 3), (3, 3, 3)), {"batch_size": 0}
    fedamp = simulation_of("fedamp", tiny_model, clients, **full, proximal_weight=0.0)
    local = simulation_of("local", tiny_model, clients, **full)
    for _ in range(3):
        fedamp.run_round()
        local.run_round()
    assert largest_difference(own(fedamp), own(local)) <= SAME


def test_attention_that_sees_no_distance_holds_everybody_near_the_mean(tiny_model, tiny_clients):
    """With a = (c - 1) / c each participant counts 1 / c, also a client to itself."""
    config = {"attention": 2 / 3, "attention_width": 1e12, "proximal_weight": 5.0}
    everybody, full = Participation(3, 3), {"batch_size": 0}
    simulation = simulation_of("fedamp", tiny_model, tiny_clients, everybody, **config, **full)
    networks = unlike_networks(simulation)
    simulation.run_round()
    pulled = near(plain_mean(networks), 5.0)
    for client, trained in enumerate(own(simulation)):
        steps = [network.of_client(tiny_clients.train, client)] * LOCAL["local_epochs"]
        assert_close(trained, train(networks[client], steps, pulled))
