"""FedNova against a float64 oracle, and beside FedAvg."""

import numpy as np
import pytest

from tests.algorithms.mini_batches import (
    DROPPED,
    assert_close,
    combine,
    draw,
    flat,
    rounds_of,
    simulation_of,
    train,
    weighted_mean,
)
from tests.algorithms.test_limits import EQUAL, TOLERANCE, largest_difference
from tests.algorithms.test_scaffold import times_counted
from tests.conftest import build_method, make_clients
from tests.methods import by_task, thorough
from tf_pflego.core.participation import Participation
from tf_pflego.simulation.simulation import Simulation

CASES = {
    "momentum": {},
    "plain steps": {"momentum": 0.0},
    "momentum of 1": {"momentum": 1.0},
    "full batches": DROPPED | {"server_learning_rate": 0.5},
}


@by_task("config", CASES, "classification", "multi_label")
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


@pytest.mark.parametrize(
    ("sizes", "config"),
    [
        (EQUAL, {}),
        thorough(((5, 6, 6), *EQUAL[1:]), {}),
        thorough(((3, 7, 5), *EQUAL[1:]), {"batch_size": 0}),
    ],
    ids=["equal sizes", "equal numbers of batches", "full batches"],
)
def test_with_equal_numbers_of_steps_it_is_fedavg(tiny_model, sizes, config):
    clients = make_clients(*sizes)
    fednova = simulation_of("fednova", tiny_model, clients, **config)
    passes = {"local_steps": 2} if config else {}  # FedAvg's steps where a batch holds all.
    fedavg = simulation_of("fedavg", tiny_model, clients, **config, **passes)
    for _ in range(3):
        fednova.run_round()
        fedavg.run_round()
        pair = fednova.server_state.weights, fedavg.server_state.weights
        assert largest_difference(*pair) <= TOLERANCE


@pytest.mark.thorough
def test_clients_count_by_their_examples_and_not_by_their_steps_too(tiny_model):
    """Of small steps the move is along the weighted mean of the gradients; FedAvg's is not."""
    clients = make_clients((2, 12), (2, 2), (3, 3))
    local = {"client_learning_rate": 1e-3, "momentum": 0.0, "local_epochs": 1, "batch_size": 1}
    moves = {}
    for name, config in (("fednova", {}), ("fedavg", {}), ("full", {"batch_size": 0})):
        settings = local | config | ({"local_steps": 1} if name == "full" else {})
        method = build_method("fedavg" if name == "full" else name, tiny_model, **settings)
        simulation = Simulation(method, clients, Participation(2, 2), "in_process")
        start = flat(simulation.server_state.weights)
        simulation.run_round()
        moved = combine(flat(simulation.server_state.weights), -1, start)
        moves[name] = np.concatenate([leaf.ravel() for leaf in moved])
    directions = {name: move / np.linalg.norm(move) for name, move in moves.items()}
    off = {name: np.linalg.norm(one - directions["full"]) for name, one in directions.items()}
    assert off["fednova"] < 0.005 < 0.05 < off["fedavg"]
