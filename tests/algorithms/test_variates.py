"""Methods that correct or weigh their clients' steps, or pull them, against float64 oracles.

SCAFFOLD, FedNova, MR-MTL and FedAMP.
"""

import numpy as np
import tensorflow as tf

from tests.algorithms.mini_batches import (
    BATCHES,
    DROPPED,
    assert_close,
    assert_means,
    assert_own,
    combine,
    dot,
    draw,
    flat,
    near,
    own,
    plain_mean,
    rounds_of,
    simulation_of,
    train,
    weighted_mean,
)
from tests.conftest import make_clients
from tests.methods import by_task
from tests.oracles import batches


def times_counted(steps, momentum):
    """The sum over the steps' gradients of how often each moves the weights."""
    return sum(momentum**age for k in range(steps) for age in range(steps - k))


SCAFFOLD = {
    "momentum": {},
    "plain steps": {"momentum": 0.0},
    "full batches": DROPPED | {"server_learning_rate": 0.5},
}


@by_task("config", SCAFFOLD, "classification", "regression")
def test_scaffold(tiny_model, tiny_clients, config):
    """Weights, and the variates of the server and of each client."""
    simulation = simulation_of("scaffold", tiny_model, tiny_clients, **config)
    momentum = config.get("momentum", 0.9)
    x = flat(simulation.server_state.weights)
    zeros = [np.zeros_like(leaf) for leaf in x]
    variates = [zeros] * 3
    for number, participants in rounds_of(simulation):
        c = plain_mean(variates)
        models = []
        for client in participants:
            c_i = variates[client]

            def corrected(y, *batch, c=c, c_i=c_i):
                return combine(combine(batches.gradient(y, *batch), -1, c_i), 1, c)

            drawn = list(draw(tiny_clients, client, number, **config))
            y = train(x, drawn, corrected, momentum=momentum)
            rate = 0.1 * times_counted(len(drawn), momentum)
            variates[client] = combine(combine(c_i, -1, c), 1 / rate, combine(x, -1, y))
            models.append(y)
        x = combine(x, config.get("server_learning_rate", 1), combine(plain_mean(models), -1, x))
        simulation.run_round()
        assert_close(flat(simulation.server_state.weights), x)
        assert_close(flat(simulation.server_state.variates), [3 * c for c in plain_mean(variates)])
    assert_own(simulation, variates, "variate")


def test_the_servers_variate_stays_the_clients_mean_when_some_join(tiny_model, tiny_clients):
    """Those that join have variates of 0, and the mean is over more clients."""
    simulation = simulation_of("scaffold", tiny_model, tiny_clients)
    for joining in ((4, 6), ()):
        for _ in range(2):
            simulation.run_round()
        everybody = range(simulation.data.num_clients)
        states = simulation.client_states(everybody).variate
        total = [np.sum(leaf, axis=0) for leaf in tf.nest.flatten(states)]
        assert_close(flat(simulation.server_state.variates), total)
        if joining:
            simulation.change_clients(join=make_clients(joining, (2, 3), (2, 3), seed=11))
    assert len(everybody) == 5


FEDNOVA = {
    "momentum": {},
    "plain steps": {"momentum": 0.0},
    "momentum of 1": {"momentum": 1.0},
    "full batches": DROPPED | {"server_learning_rate": 0.5},
}


@by_task("config", FEDNOVA, "classification", "multi_label")
def test_fednova(tiny_model, tiny_clients, config):
    """Clients of 3, 7 and 5 examples take 4, 8 and 6 steps."""
    config = {"client_learning_rate": 0.02} | config if config.get("momentum") == 1 else config
    simulation = simulation_of("fednova", tiny_model, tiny_clients, **config)
    momentum, rate = config.get("momentum", 0.9), config.get("client_learning_rate", 0.1)
    x = flat(simulation.server_state.weights)
    for number, participants in rounds_of(simulation):
        moves, counts = [], []
        for client in participants:
            drawn = list(draw(tiny_clients, client, number, **config))
            counts.append(times_counted(len(drawn), momentum))
            moved = combine(train(x, drawn, momentum=momentum, rate=rate), -1, x)
            moves.append([leaf / counts[-1] for leaf in moved])
        tau = np.average(counts, weights=tiny_clients.train.sizes[participants])
        share = config.get("server_learning_rate", 1) * tau
        x = combine(x, share, weighted_mean(moves, tiny_clients, participants))
        simulation.run_round()
        assert_close(flat(simulation.server_state.weights), x)


MR_MTL = {"all batches": {}, "full batches": DROPPED | {"server_learning_rate": 0.5}}


@by_task("config", MR_MTL, "classification", "counts")
def test_mr_mtl(tiny_model, tiny_clients, config):
    """A client goes on from its own network, also where it was absent in between."""
    simulation = simulation_of("mr_mtl", tiny_model, tiny_clients, proximal_weight=0.5, **config)
    networks = own(simulation)

    def trained(mean, client, number):
        drawn = draw(tiny_clients, client, number, **config)
        networks[client] = train(networks[client], drawn, near(mean, 0.5))
        return networks[client]

    rate = config.get("server_learning_rate", 1)
    assert_means(simulation, trained, lambda mean: assert_own(simulation, networks), rate=rate)


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
