"""A method as a process of TFF does what a `Simulation` of it does."""

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.test_contract import NAMES, build
from tf_pflego.core.participation import Participation
from tf_pflego.simulation.simulation import Simulation

tff = pytest.importorskip("tensorflow_federated", reason="TensorFlow Federated is optional")
from tf_pflego import tff as pfl_tff  # noqa: E402 (It needs TFF.)

ROUNDS, SEED = 5, 6
TOLERANCE = 1e-6
# Its gradients come from other clients than its steps; a computation has one group of clients.
REFUSED = {"feddane"}
# Rounds of 0 to 3 of the three clients.
PARTICIPATION = Participation(3, 2, "range", (0, 3))


def process_of(algorithm, clients, **options):
    return pfl_tff.build_process(
        algorithm,
        pfl_tff.data_spec(clients),
        num_clients=clients.num_clients,
        clients_per_round=PARTICIPATION.federation.mean_clients_per_round,
        **options,
    )


def trained(process, clients, rounds=ROUNDS):
    training = pfl_tff.Training(process, clients, PARTICIPATION, SEED)
    return training, [training.run_round() for _ in range(rounds)]


def assert_close(actual, expected):
    for a, b in zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("name", sorted(set(NAMES) - REFUSED))
def test_it_ends_with_the_states_of_the_engine(name, tiny_model, tiny_clients):
    """Also where a round has no participant, and what the clients keep."""
    algorithm = build(name, tiny_model)
    training, _ = trained(process_of(algorithm, tiny_clients), tiny_clients)
    with Simulation(algorithm, tiny_clients, PARTICIPATION, "in_process", SEED) as simulation:
        simulation.run(ROUNDS)
        ids = sorted(training.client_states)
        assert_close(training.state.server, simulation.server_state)
        states = [training.client_states[client] for client in ids]
        expected = simulation.client_states(ids)
        assert_close(tf.nest.map_structure(lambda *leaves: np.stack(leaves), *states), expected)
    assert training.state.round_number == ROUNDS + 1
