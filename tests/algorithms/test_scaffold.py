"""SCAFFOLD against a float64 oracle, and what its control variates stay through all rounds."""

import numpy as np
import tensorflow as tf

from tests.algorithms.mini_batches import (
    DROPPED,
    assert_close,
    assert_own,
    combine,
    draw,
    flat,
    plain_mean,
    rounds_of,
    simulation_of,
    train,
)
from tests.conftest import make_clients
from tests.methods import by_task
from tests.oracles import batches


def times_counted(steps, momentum):
    """The sum over the steps' gradients of how often each moves the weights."""
    return sum(momentum**age for k in range(steps) for age in range(steps - k))


CASES = {
    "momentum": {},
    "plain steps": {"momentum": 0.0},
    "full batches": DROPPED | {"server_learning_rate": 0.5},
}


@by_task("config", CASES, "classification", "regression")
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
