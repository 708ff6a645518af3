"""IFCA against a float64 oracle that draws the same batches, and the clusters that it finds."""

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.algorithms.mini_batches import (
    assert_close,
    combine,
    draw,
    flat,
    rounds_of,
    simulation_of,
    train,
    weighted_mean,
)
from tests.comparison import assert_identical
from tests.conftest import INPUTS, built
from tests.methods import by_task
from tests.oracles import network
from tf_pflego.core.participation import Participation
from tf_pflego.data import ClientData, ClientSplit


def networks_of(simulation):
    """The server's networks, each a flat list."""
    leaves = flat(simulation.server_state.models)
    return [list(one) for one in zip(*leaves, strict=True)]


def losses_of(networks, clients, client):
    x, y = network.of_client(clients.train, client)
    return [network.loss(one[:-1], one[-1], x, y) for one in networks]


@by_task("config", {"two": {}, "three": {"num_clusters": 3}}, "classification", "regression")
def test_ifca(tiny_model, tiny_clients, config):
    simulation = simulation_of("ifca", tiny_model, tiny_clients, **config)
    networks, chosen = networks_of(simulation), []
    if config:  # Clients like different ones best at first.
        rng = np.random.default_rng(10)
        heads = simulation.server_state.models.head
        drawn = tf.constant(rng.normal(0, 0.3, heads.shape), tf.float32)
        models = simulation.server_state.models._replace(head=drawn)
        simulation.server_state = simulation.server_state._replace(models=models)
        networks = networks_of(simulation)
    for number, participants in rounds_of(simulation):
        choices = {i: int(np.argmin(losses_of(networks, tiny_clients, i))) for i in participants}
        chosen.append(set(choices.values()))
        moved = list(networks)
        for cluster in chosen[-1]:
            members = [i for i in participants if choices[i] == cluster]
            trained = [train(networks[cluster], draw(tiny_clients, i, number)) for i in members]
            moved[cluster] = weighted_mean(trained, tiny_clients, members)
        networks = moved
        simulation.run_round()
        for actual, expected in zip(networks_of(simulation), networks, strict=True):
            assert_close(actual, expected)
    assert any(len(some) < len(networks) for some in chosen)  # Nobody chose one of them.
    assert config == {} or len(set.union(*chosen)) > 1


def test_networks_start_from_one_body_with_heads_of_their_own(tiny_model, tiny_clients):
    first, second = networks_of(simulation_of("ifca", tiny_model, tiny_clients))
    assert_identical(first, flat(tiny_model.initial_weights()))
    assert_identical(first[:-1], second[:-1])
    assert (first[-1][:, :-1] != second[-1][:, :-1]).all()


def two_populations(num_clients, seed=3):
    """Clients of 30 and 10 examples; those with an odd id number the classes in another order."""
    rng = np.random.default_rng(seed)
    teacher, order = rng.normal(size=(INPUTS, 3)), np.array([1, 2, 0])

    def split(size):
        x = rng.normal(size=(num_clients * size, INPUTS)).astype(np.float32)
        y = np.argmax(x @ teacher, axis=1).reshape(num_clients, size)
        y[1::2] = order[y[1::2]]
        offsets = np.arange(num_clients + 1) * size
        return ClientSplit(x, y.ravel().astype(np.int32), offsets)

    return ClientData(split(30), split(10), [3] * num_clients, "global")


@pytest.mark.thorough
def test_two_populations_with_permuted_labels_are_separated(tiny_model):
    """Also clients that never took part find theirs, and one network for all serves nobody."""
    clients, newcomers = two_populations(8), two_populations(6, seed=3)
    reached = {}
    for name in ("ifca", "fedavg"):
        algorithm = built(name, tiny_model, local_steps=10, client_learning_rate=0.3)
        with pfl.Simulation(algorithm, clients, Participation(8, 4), "in_process", 1) as simulation:
            for _ in range(20):
                simulation.run_round()
            reached[name] = simulation.evaluate().metrics()["test_accuracy/client_mean"]
            if name == "fedavg":
                continue
            networks = networks_of(simulation)
            choices = [int(np.argmin(losses_of(networks, clients, i))) for i in range(8)]
            assert choices in ([0, 1] * 4, [1, 0] * 4)
            new = pfl.NewClients(simulation, newcomers, steps=0, learning_rate=0.1)
            for client, served in enumerate(new.learnt()):
                assert_close(flat(served.weights), networks[choices[client % 2]])
            (before,) = new.trained(0)
            assert before.metrics()["test_accuracy/client_mean"] > 0.8
    assert reached["ifca"] > 0.85
    assert reached["fedavg"] < 0.7


def test_of_equal_networks_the_first_is_chosen(tiny_model, tiny_clients):
    simulation = simulation_of("ifca", tiny_model, tiny_clients)
    models = simulation.server_state.models
    same = models._replace(head=tf.stack([models.head[0]] * 2))
    simulation.server_state = simulation.server_state._replace(models=same)
    before = networks_of(simulation)
    simulation.run_round()
    first, second = networks_of(simulation)
    assert_identical(second, before[1])
    assert max(np.abs(leaf).max() for leaf in combine(first, -1, before[0])) > 1e-3
