"""A simulation begins where another one ended, with other clients and examples."""

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.comparison import assert_identical
from tests.conftest import build_method, make_clients
from tests.methods import each_of
from tests.simulation.test_changing_clients import (
    CONFIG,
    assert_next_round_is_the_oracles,
    five_clients,
    simulation_of,
    states_of,
)
from tf_pflego.simulation.checkpoint import CheckpointError

# What a server has of its clients: nothing, a model of each, the last cohort, pairs, and both.
KINDS = ("pflego", "scaffold", "fedamp", "fedpac", "fedfomo", "pgfed")
# Clients 4, 0 and 2 of the five are there again; two others have come.
FORMER = [4, -1, 0, 2, -1, -1]
STAY = [0, 2, 3]


def next_month():
    return make_clients((4, 6, 3, 7, 5, 2), (2, 2, 3, 2, 4, 3), (2, 3, 2, 2, 3, 2), seed=23)


def begun(algorithm):
    return pfl.Simulation(algorithm, next_month(), pfl.Participation(6, 3), "in_process", seed=4)


@pytest.mark.parametrize("name", each_of(KINDS, ("pgfed",)))
def test_who_was_there_goes_on_and_the_others_begin(name, tiny_model, tmp_path):
    with simulation_of(name, tiny_model, per_round=5) as earlier:
        earlier.run_round()
        earlier.save(tmp_path)
        former = [FORMER[client] for client in STAY]
        had = states_of(earlier, former)
        # With the clients that stay in their order, a change of clients does the same.
        earlier.change_clients([1, 3], participation=pfl.Participation(3, 3))
        wanted = tf.nest.flatten(earlier.server_state)
        clients = earlier.data
    algorithm = build_method(name, tiny_model)
    with begun(algorithm) as simulation:
        simulation.start_from(tmp_path, FORMER)
        assert simulation.round_number == 0
        assert_identical(had, states_of(simulation, STAY))
        assert np.isfinite(simulation.run_round(evaluate=True)["train_loss"])
    participation = pfl.Participation(3, 3)
    with pfl.Simulation(algorithm, clients, participation, "in_process") as simulation:
        simulation.start_from(tmp_path, [0, 2, 4])
        for after, before in zip(tf.nest.flatten(simulation.server_state), wanted, strict=True):
            np.testing.assert_array_equal(after, before)


def test_the_first_round_of_pflego_is_the_oracles(tiny_model, tmp_path):
    config = CONFIG | {"server_optimizer": "sgd"}
    algorithm = pfl.build_algorithm("pflego", tiny_model, **config)
    drawn = pfl.Participation(5, 3)
    with pfl.Simulation(algorithm, five_clients(), drawn, "in_process", seed=4) as earlier:
        earlier.run_round()
        earlier.save(tmp_path)
    with begun(algorithm) as simulation:
        simulation.start_from(tmp_path, FORMER)
        assert_next_round_is_the_oracles(simulation, config)


WRONG = [
    ([0, 1], "a whole number for each of the 6 clients"),
    ([0.5] * 6, "a whole number for each of the 6 clients"),
    ([0, 0, 1, 2, 3, 4], "`former`"),
    ([0, 1, 2, 3, 4, 5], "`former`"),
    ([0, 1, 2, 3, 4, -2], "`former`"),
]


def test_what_cannot_be_is_refused_and_changes_nothing(tiny_model, tmp_path):
    with simulation_of("pflego", tiny_model) as earlier:
        earlier.run_round()
        earlier.save(tmp_path)
        with pytest.raises(ValueError, match="before its first round; this one has had a round"):
            earlier.start_from(tmp_path)
    with begun(build_method("pflego", tiny_model)) as simulation:
        before = states_of(simulation, range(6))
        for former, message in WRONG:
            with pytest.raises(ValueError, match=message):
                simulation.start_from(tmp_path, former)
        np.testing.assert_array_equal(states_of(simulation, range(6))[0], before[0])
    with begun(build_method("fedper", tiny_model)) as simulation:
        with pytest.raises(CheckpointError, match="algorithm: expected fedper, got pflego"):
            simulation.start_from(tmp_path, FORMER)
        with pytest.raises(CheckpointError, match="must hold a checkpoint"):
            simulation.start_from(tmp_path / "none", FORMER)
