"""Methods whose settings differ and that do the same.

What a method does at a limit of its settings follows from the oracle of its rounds.
"""

import dataclasses
import inspect
import re

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.mini_batches import LOCAL, ROUNDS, SEED, flat, simulation_of
from tests.comparison import assert_identical
from tests.conftest import built
from tests.methods import each_of
from tf_pflego import algorithms
from tf_pflego.core.participation import Participation
from tf_pflego.simulation.simulation import Simulation

# The same float32 operations on the same numbers, up to the order of a few additions of zeros.
SAME = 1e-7
# float32 rounding over three rounds where the terms of sums come in another order.
TOLERANCE = 2e-6


def largest_difference(first, second):
    first, second = tf.nest.flatten(first), tf.nest.flatten(second)
    return max(np.abs(np.subtract(a, b)).max() for a, b in zip(first, second, strict=True))


def shared(simulation):
    return simulation.server_state.weights


def test_fedbn_without_batch_normalisation_is_fedavg(tiny_model, tiny_clients):
    pair = [simulation_of(name, tiny_model, tiny_clients) for name in ("fedbn", "fedavg")]
    for simulation in pair:
        simulation.run_round()
    assert_identical(*(flat(shared(simulation)) for simulation in pair))


FULL = {"batch_size": 0}


def test_fedrep_without_body_steps_leaves_theta(tiny_model, tiny_clients):
    no_steps = FULL | {"local_steps": 4, "body_steps": 0}
    simulation = simulation_of("fedrep", tiny_model, tiny_clients, **no_steps)
    simulation.run_round()
    assert largest_difference(shared(simulation), tiny_model.initial_theta) <= SAME


ONE_BATCH = {"batch_size": 100, "local_epochs": 3}
FULL_BATCH = {"batch_size": 0, "local_steps": 3}
STEPS_OR_EPOCHS = {
    "fedavg": ({}, {}),
    "fedrep": ({"head_epochs": 2}, {"local_steps": 5, "body_steps": 3}),
    "fedbabu": ({"fine_tuning_steps": 2}, {"fine_tuning_steps": 2}),
}


@pytest.mark.parametrize("name", each_of(STEPS_OR_EPOCHS, ("fedrep",)))
def test_an_epoch_of_one_batch_is_a_full_batch_step(tiny_model, tiny_clients, name):
    """The same for all that the server and the clients keep, and for what clients are served."""
    of_epochs, of_steps = STEPS_OR_EPOCHS[name]
    found, expected = (
        simulation_of(name, tiny_model, tiny_clients, **config)
        for config in (ONE_BATCH | of_epochs, FULL_BATCH | of_steps)
    )
    for _ in range(ROUNDS):
        found.run_round()
        expected.run_round()
        assert largest_difference(found.server_state, expected.server_state) <= TOLERANCE
    kept, wanted = found.client_states(range(3)), expected.client_states(range(3))
    assert not kept or largest_difference(kept, wanted) <= TOLERANCE
    losses = found.evaluate().train_loss, expected.evaluate().train_loss
    np.testing.assert_allclose(*losses, atol=TOLERANCE)


SETTINGS = {
    name: {field.name: field.default for field in dataclasses.fields(config)}
    for name, (config, _) in algorithms.REGISTRY.items()
}
RATES = "client_learning_rate", "personal_learning_rate"
FALLING = sorted(name for name, known in SETTINGS.items() if "client_rate_decay" in known)


# A method for each way in which they ask for the rate of a round.
ASKING = "fedavg", "fedper", "ditto", "fedrep", "apfl", "pfedme", "scaffold", "per_fedavg"


def test_no_other_method_has_a_way_of_its_own_to_the_rate():
    for name in set(FALLING) - set(ASKING):
        text = inspect.getsource(inspect.getmodule(algorithms.REGISTRY[name][1]))
        assert not re.search(r"config\.(client_learning_)?rate\b", text), name


@pytest.mark.parametrize("name", each_of(ASKING, ("ditto",)))
def test_a_rate_that_falls_by_half_is_half_the_rate_a_round_later(tiny_model, tiny_clients, name):
    """The rate of the steps on the personal model of pFedMe falls likewise."""
    steps = {"local_steps": 3, "batch_size": 2, "personal_learning_rate": 0.1}
    config = {key: value for key, value in (steps | LOCAL).items() if key in SETTINGS[name]}
    halves = {key: rate / 2 for key, rate in config.items() if key in RATES}

    def simulation(**changes):
        algorithm, participants = built(name, tiny_model, **config | changes), Participation(3, 2)
        return Simulation(algorithm, tiny_clients, participants, "in_process", SEED)

    falling, half = simulation(client_rate_decay=0.5), simulation(**halves)
    falling.run_round()
    half.server_state, half.round_number = falling.server_state, 1
    states = falling.client_states(range(3))
    for one in (falling, half):
        one.set_client_states(range(3), states)  # First states would follow the server's.
        one.run_round()
    states = [[one.server_state, one.client_states(range(3))] for one in (falling, half)]
    assert_identical(*map(tf.nest.flatten, states))
