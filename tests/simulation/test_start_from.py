"""A simulation begins where another one ended, with other clients and examples."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.comparison import assert_near
from tests.conftest import build_method, make_clients
from tests.methods import each_of
from tests.oracles import pflego
from tests.simulation.test_changing_clients import (
    CONFIG,
    five_clients,
    heads_of,
    simulation_of,
    states_of,
)
from tf_pflego.algorithms import REGISTRY
from tf_pflego.simulation.checkpoint import CheckpointError

# Clients 4, 0 and 2 of the five are there again; two others have come.
FORMER = [4, -1, 0, 2, -1, -1]
STAY = [0, 2, 3]


def next_month():
    return make_clients((4, 6, 3, 7, 5, 2), (2, 2, 3, 2, 4, 3), (2, 3, 2, 2, 3, 2), seed=23)


def begun(algorithm, **engine):
    return pfl.Simulation(algorithm, next_month(), pfl.Participation(6, 3), seed=4, **engine)


@pytest.mark.parametrize("name", each_of(REGISTRY))
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
    with begun(algorithm, engine="in_process") as simulation:
        simulation.start_from(tmp_path, FORMER)
        assert simulation.round_number == 0
        for before, after in zip(had, states_of(simulation, STAY), strict=True):
            np.testing.assert_array_equal(after, before)
        assert np.isfinite(simulation.run_round(evaluate=True)["train_loss"])
    participation = pfl.Participation(3, 3)
    with pfl.Simulation(algorithm, clients, participation, "in_process") as simulation:
        simulation.start_from(tmp_path, [0, 2, 4])
        for after, before in zip(tf.nest.flatten(simulation.server_state), wanted, strict=True):
            np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize(
    "engine", ["in_process", pytest.param("tff", marks=pytest.mark.lines("tff"))]
)
def test_the_first_round_of_pflego_is_the_oracles(engine, tiny_model, tmp_path):
    if engine == "tff":
        pytest.importorskip("tensorflow_federated", reason="the TFF engine is optional")
    config = CONFIG | {"server_optimizer": "sgd"}
    algorithm = pfl.build_algorithm("pflego", tiny_model, **config)
    with pfl.Simulation(
        algorithm, five_clients(), pfl.Participation(5, 3), "in_process", seed=4
    ) as earlier:
        earlier.run_round()
        earlier.save(tmp_path)
        theta = [np.asarray(weight, np.float64) for weight in earlier.server_state.theta]
    with begun(algorithm, engine=engine) as simulation:
        simulation.start_from(tmp_path, FORMER)
        data = simulation.data
        heads = heads_of(simulation)
        settings = dataclasses.asdict(REGISTRY["pflego"][0](**config)) | {"clients_per_round": 3}
        participants = simulation.participation.draw(4, 1)
        theta, heads = pflego.one_round(theta, heads, data, participants, settings)
        simulation.run_round()
        assert_near(simulation.server_state.theta, theta, atol=1e-6)
        (found,) = states_of(simulation, range(6))
        for client, wanted in heads.items():
            np.testing.assert_allclose(found[client][: len(wanted)], wanted, atol=1e-6)


@pytest.mark.parametrize(
    "former, message",
    [
        ([0, 1], "a whole number for each of the 6 clients"),
        ([0.5] * 6, "a whole number for each of the 6 clients"),
        ([0, 0, 1, 2, 3, 4], "`former`"),
        ([0, 1, 2, 3, 4, 5], "`former`"),
        ([0, 1, 2, 3, 4, -2], "`former`"),
    ],
)
def test_what_cannot_be_changes_nothing(former, message, tiny_model, tmp_path):
    with simulation_of("pflego", tiny_model) as earlier:
        earlier.run_round()
        earlier.save(tmp_path)
    with begun(build_method("pflego", tiny_model), engine="in_process") as simulation:
        before = states_of(simulation, range(6))
        with pytest.raises(ValueError, match=message):
            simulation.start_from(tmp_path, former)
        np.testing.assert_array_equal(states_of(simulation, range(6))[0], before[0])


def test_another_method_no_checkpoint_and_a_later_round_are_refused(tiny_model, tmp_path):
    with simulation_of("pflego", tiny_model) as earlier:
        earlier.run_round()
        earlier.save(tmp_path)
        with pytest.raises(ValueError, match="before its first round; this one has had a round"):
            earlier.start_from(tmp_path)
    with begun(build_method("fedper", tiny_model), engine="in_process") as simulation:
        with pytest.raises(CheckpointError, match="algorithm: expected fedper, got pflego"):
            simulation.start_from(tmp_path, FORMER)
        with pytest.raises(CheckpointError, match="must hold a checkpoint"):
            simulation.start_from(tmp_path / "none", FORMER)
