"""FedAMP against a float64 oracle."""

import numpy as np
import tensorflow as tf

from tests.algorithms.mini_batches import (
    BATCHES,
    assert_own,
    combine,
    dot,
    draw,
    near,
    own,
    rounds_of,
    simulation_of,
    train,
)
from tests.methods import by_task

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
        assert_own(simulation, networks)
        assert not simulation.server_state.ids.shape[0]
