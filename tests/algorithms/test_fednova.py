"""FedNova against a float64 oracle."""

import numpy as np

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
from tests.algorithms.test_scaffold import times_counted
from tests.methods import by_task

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
