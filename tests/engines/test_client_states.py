"""The states of clients are the same whether they are in memory or in files."""

import os
import types

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests import resources
from tests.algorithms.test_contract import build, simulation_of, whole_state
from tests.comparison import assert_identical
from tests.conftest import make_clients
from tests.engines.agreement import ENGINES, final_and_records
from tf_pflego import algorithms
from tf_pflego.core.participation import Participation
from tf_pflego.engines.client_states import ClientStates
from tf_pflego.system import rows


@pytest.fixture
def in_files(monkeypatch):
    """Lets all states be in files, as if they were larger than the memory."""
    monkeypatch.setattr(rows, "_SHARE", 0)


# On Ray, the states are where this test cannot say that they are to be in files.
@pytest.mark.parametrize("engine", ENGINES[:2])
def test_a_run_with_states_in_files_has_the_same_bits(engine, tiny_model, monkeypatch):
    """Clients are evaluated that have a state and that have none, and rounds have nobody."""
    clients = make_clients((3, 7, 5, 4), (2, 4, 3, 2), (2, 3, 2, 3))
    found = []
    for share in (rows._SHARE, 0):
        monkeypatch.setattr(rows, "_SHARE", share)
        leaves, records = final_and_records(build("everything", tiny_model), clients, engine)
        plain = [{key: value for key, value in r.items() if key != "seconds"} for r in records]
        found.append(([leaf.tobytes() for leaf in leaves], plain))
    assert found[0] == found[1]


@pytest.mark.usefixtures("in_files")
def test_a_checkpoint_of_files_restores_and_rolls_back_to_the_same_bits(tiny_model, tmp_path):
    clients = make_clients((3, 7, 5, 4), (2, 4, 3, 2), (2, 3, 2, 3))
    algorithm, some = build("everything", tiny_model), Participation(4, 2)
    saved, restored = (simulation_of(algorithm, clients, 3, some) for _ in range(2))
    saved.run_round()
    saved.save(tmp_path)
    at_save = [np.array(leaf) for leaf in whole_state(saved)]
    saved.run_round()
    saved.restore(tmp_path)
    restored.restore(tmp_path)
    for one in (saved, restored):
        assert isinstance(one._engine.states._leaves[0], rows.RowFile)
        assert_identical(at_save, whole_state(one))
    states = saved._engine.states
    before = saved.client_states(range(4))
    states.stage([0, 2], tf.nest.map_structure(lambda leaf: leaf[[0, 2]] + 1, before))
    states.read([0], saved.server_state)  # What is staged is written when something is read.
    states.roll_back()
    assert_identical(tf.nest.flatten(before), tf.nest.flatten(saved.client_states(range(4))))
    states.forget()
    assert not len(states.written_since(0))


def test_a_first_state_is_the_same_after_what_was_staged_is_discarded_or_forgotten(tiny_model):
    """A first state that was read is kept, beside those that clients have learnt."""
    simulation = simulation_of(build("pflego", tiny_model), make_clients())
    states, server = simulation._engine.states, simulation.server_state

    def read():
        return tf.nest.flatten(states.read([0, 1, 2], server))

    first = read()
    assert_identical(first, read())
    assert not len(states.written_since(0))
    for commits in (False, True):
        states.stage(
            [1], tf.nest.map_structure(lambda leaf: leaf[1:2] + 1, states.read([0, 1], server))
        )
        assert_identical([leaf[1] + 1 for leaf in first], [leaf[1] for leaf in read()])
        if commits:
            states.commit()
            states.forget()
        else:
            states.roll_back()
        assert_identical(first, read())


def states_of(count, units=200):
    """The states of Ditto's clients, each a network of 785 x 200 + 2 x 201 weights."""
    model = pfl.SplitModel(pfl.mlp((28, 28, 1), seed=0, units=units), num_outputs=2)
    ditto = algorithms.build("ditto", model)
    server_state = ditto.init_server(Participation(count, 20).federation)
    clients = types.SimpleNamespace(
        num_clients=count,
        identities=np.arange(count),
        head_classes=lambda ids, rows: np.tile(np.arange(rows, dtype=np.int32), (len(ids), 1)),
    )
    return ClientStates(ditto, server_state, clients, 0), server_state


def test_states_that_no_memory_would_hold_are_in_files_and_take_none():
    """629 GB for a million clients; of these, twenty take part, and some are looked at."""
    states, server_state = states_of(10**6)
    ids = np.random.default_rng(0).choice(10**6, 20, replace=False)
    files = [leaf._file.fileno() for leaf in states._leaves]
    for number in range(2):
        states.admit(ids, server_state)
        now = tf.nest.map_structure(lambda leaf: leaf + 1, states.read(ids, server_state))
        states.stage(ids, now)
        states.commit()
        if number == 0:
            before = resources.reset_peak_memory()
            after_first = sum(os.fstat(file).st_blocks for file in files)
    assert_identical(tf.nest.flatten(now), tf.nest.flatten(states.read(ids, server_state)))
    states.read(np.arange(100), server_state)
    assert resources.peak_memory() - before < 500 * 2**20
    assert sum(os.fstat(file).st_blocks for file in files) == after_first
    assert list(states.written_since(0)) == sorted(ids)
    states.close()


@pytest.mark.usefixtures("in_files")
def test_a_disk_without_room_refuses_a_round_and_changes_nothing():
    """The space of a client's state is taken before the client trains."""
    states, server_state = states_of(100, units=3)
    states.admit(np.array([1, 2]), server_state)
    states.commit()
    before = states.read([1, 2], server_state)

    with resources.files_up_to(100_000):
        states.admit(np.array([1, 2]), server_state)  # They have their space.
        with pytest.raises(OSError, match=r"must have room .* Free some"):
            states.admit(np.array([2, 50]), server_state)
        states.roll_back()
    assert list(states.written_since(0)) == [1, 2]
    assert_identical(tf.nest.flatten(before), tf.nest.flatten(states.read([1, 2], server_state)))
