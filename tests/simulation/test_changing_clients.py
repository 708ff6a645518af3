"""Clients join and leave, in mid-run or where a simulation begins with another one's end.

The others keep their states, and I and alpha follow.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.comparison import assert_identical, assert_near
from tests.conftest import build_method, make_clients
from tests.engines.agreement import ENGINES
from tests.methods import each_of
from tests.oracles import network, pflego
from tf_pflego.algorithms import REGISTRY
from tf_pflego.core.algorithm import Federation
from tf_pflego.core.last_cohort import LastCohort, regrouped
from tf_pflego.simulation.checkpoint import CheckpointError

# Methods with states of different kinds: heads, networks, what a server has of pairs of clients,
# and none.
STATES = ("pflego", "fedavg", "ditto", "fedfomo", "pgfed", "pflego_shared_head")
CONFIG = {"local_steps": 3, "client_learning_rate": 0.1, "server_learning_rate": 0.05}
CONFIG |= {"server_optimizer": "sgd"}


def five_clients():
    return make_clients((3, 7, 5, 4, 6), (2, 4, 3, 2, 3), (2, 3, 2, 3, 2))


def two_more():
    return make_clients((8, 2), (3, 2), (2, 2), seed=11)


def states_of(simulation, ids):
    return [np.asarray(leaf) for leaf in tf.nest.flatten(simulation.client_states(ids))]


def heads_of(simulation):
    """The heads of the oracle, with a row for each class of a client."""
    (heads,) = states_of(simulation, range(simulation.data.num_clients))
    of_classes = zip(heads, simulation.data.num_classes, strict=True)
    return {i: np.asarray(head[:count], np.float64) for i, (head, count) in enumerate(of_classes)}


def assert_next_round_is_the_oracles(simulation):
    """Theta and the heads of all, with seed 4."""
    theta = [np.asarray(w, np.float64) for w in simulation.server_state.theta]
    participants = simulation.participation.draw(4, simulation.round_number + 1)
    full = dataclasses.asdict(REGISTRY["pflego"][0](**CONFIG))
    full["clients_per_round"] = simulation.participation.clients_per_round
    known = theta, heads_of(simulation), simulation.data, participants, full
    theta, heads = pflego.one_round(*known)
    simulation.run_round()
    assert_near(simulation.server_state.theta, theta, atol=1e-6)
    (found,) = states_of(simulation, range(simulation.data.num_clients))
    for client, wanted in heads.items():
        np.testing.assert_allclose(found[client][: len(wanted)], wanted, atol=1e-6)


def simulation_of(name, model, per_round=3, **config):
    algorithm = build_method(name, model, **config)
    participation = pfl.Participation(5, per_round)
    return pfl.Simulation(algorithm, five_clients(), participation, engine="in_process")


@pytest.mark.parametrize("name", each_of(STATES, ("pgfed",)))
def test_the_others_keep_their_states_to_the_bit(name, tiny_model, tmp_path):
    """Those that join are not taken for the last one that leaves; checkpoints have what is new."""
    with simulation_of(name, tiny_model) as simulation:
        for _ in range(2):
            simulation.run_round(evaluate=True)
        before = states_of(simulation, [0, 2, 3])
        simulation.change_clients(leave=[1, 4], join=two_more())
        assert_identical(before, states_of(simulation, [0, 1, 2]))
        np.testing.assert_array_equal(simulation.data.train.sizes, [3, 5, 4, 8, 2])
        assert simulation.data.identities.tolist() == [0, 2, 3, 5, 6]
        record = simulation.run_round(evaluate=True)
        assert record["round"] == 3
        assert np.isfinite(record["train_loss"])
        simulation.save(tmp_path)
        ends = [simulation.server_state, simulation.client_states(range(5))]
        simulation.run_round()
        simulation.restore(tmp_path)
        same = simulation.algorithm, simulation.data, simulation.participation
    with pfl.Simulation(*same, engine="in_process") as restored:
        restored.restore(tmp_path)
        for one in (simulation.server_state, restored.server_state):
            assert_identical(tf.nest.flatten(ends[0]), tf.nest.flatten(one))
        assert_identical(tf.nest.flatten(ends[1]), states_of(restored, range(5)))


@pytest.mark.parametrize("engine", ENGINES[:2])
def test_the_next_round_of_pflego_is_the_new_federations(engine, tiny_model, tmp_path):
    """I, alpha and the participants are the new ones; theta and the heads are the oracle's.

    A checkpoint after that has the states of all. The same holds where another simulation begins.
    """
    drawn, algorithm = pfl.Participation(5, 3), build_method("pflego", tiny_model, **CONFIG)
    with pfl.Simulation(algorithm, five_clients(), drawn, engine, seed=4) as simulation:
        simulation.run_round()
        simulation.save(tmp_path)
        with begun_with(algorithm) as later:
            later.start_from(tmp_path, FORMER)
            assert_next_round_is_the_oracles(later)
        simulation.change_clients([2], two_more(), pfl.Participation(6, 2))
        theta = [np.asarray(w, np.float64) for w in simulation.server_state.theta]
        data, expected = simulation.data, 0.0
        for client, head in heads_of(simulation).items():
            x, y = network.of_client(data.train, client)
            expected += len(y) / data.train.offsets[-1] * network.loss(theta, head, x, y)
        assert simulation.evaluate().metrics()["train_loss"] == pytest.approx(expected, rel=1e-5)
        assert_next_round_is_the_oracles(simulation)
        simulation.save(tmp_path)
        states = states_of(simulation, range(6))
    again = algorithm, data, simulation.participation
    with pfl.Simulation(*again, "in_process", seed=4) as restored:
        restored.restore(tmp_path)
        assert restored.round_number == 2
        assert_identical(states, states_of(restored, range(6)))


def test_a_client_that_has_not_been_drawn_keeps_what_it_would_start_from(tiny_model):
    with simulation_of("pflego", tiny_model) as simulation:
        (before,) = states_of(simulation, [3, 4])
        simulation.change_clients(leave=[0, 1])
        np.testing.assert_array_equal(states_of(simulation, [1, 2])[0], before)
        simulation.change_clients(join=two_more())
        (joined,) = states_of(simulation, [3, 4])
        assert not np.array_equal(joined[0], before[0])
        assert not np.array_equal(joined[1], before[1])


def test_what_a_server_knows_of_pairs_follows_and_of_a_cohort_who_leave_are_forgotten():
    def init_server(federation):
        count = federation.num_clients
        return {"pairs": tf.fill([count, count], -1.0), "each": [tf.fill([2, count], -2.0)]}

    old = {"pairs": tf.reshape(tf.range(16.0), [4, 4]), "each": [tf.reshape(tf.range(8.0), [2, 4])]}
    found = regrouped(old, np.array([0, 2, 3, -1]), Federation(4, 2.0, 2), init_server)
    np.testing.assert_array_equal(
        found["pairs"], [[0, 2, 3, -1], [8, 10, 11, -1], [12, 14, 15, -1], [-1, -1, -1, -1]]
    )
    np.testing.assert_array_equal(found["each"][0], [[0, 2, 3, -2], [4, 6, 7, -2]])
    cohort = LastCohort(tf.constant([1, 2, 4], tf.int64), tf.constant([[10.0], [20.0], [40.0]]))
    found = regrouped((cohort,), np.array([0, 2, 3, 4]), Federation(4, 2.0, 2), lambda _: (cohort,))
    np.testing.assert_array_equal(found[0].ids, [1, 3])
    np.testing.assert_array_equal(found[0].kept, [[20.0], [40.0]])


@pytest.fixture(scope="module")
def begun(tiny_model):
    """A simulation after its first round, which tests must not change."""
    with simulation_of("pflego", tiny_model, **CONFIG) as simulation:
        simulation.run_round()
        yield simulation


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"leave": [5]}, r"in \[0, 5\), the clients; got 5"),
        ({"leave": [1, 1]}, "must be different"),
        ({"leave": [0.5]}, "must be integers"),
        ({"leave": range(5)}, "at least one client; got all 5"),
        ({"leave": [0, 1, 2]}, r"num_clients=2\]; got 3"),
        ({"participation": pfl.Participation(6, 3)}, "must be the 5 clients"),
        ({"join": pfl.from_arrays(*[[(np.zeros([2, 3]), [0, 1])]] * 2)}, r"of shape \(4,\), local"),
    ],
)
def test_a_change_that_cannot_be_changes_nothing(arguments, message, begun):
    before = states_of(begun, range(5))
    with pytest.raises((TypeError, ValueError), match=message):
        begun.change_clients(**arguments)
    assert begun.data.num_clients == 5
    assert_identical(before, states_of(begun, range(5)))


# What a server has of its clients: nothing, a model of each, the last cohort, pairs, and both.
KINDS = ("pflego", "scaffold", "fedamp", "fedpac", "fedfomo", "pgfed")
# Clients 4, 0 and 2 of the five are there again; two others have come.
FORMER = [4, -1, 0, 2, -1, -1]
STAY = [0, 2, 3]


def next_month():
    return make_clients((4, 6, 3, 7, 5, 2), (2, 2, 3, 2, 4, 3), (2, 3, 2, 2, 3, 2), seed=23)


def begun_with(algorithm):
    return pfl.Simulation(algorithm, next_month(), pfl.Participation(6, 3), "in_process", seed=4)


@pytest.mark.thorough
@pytest.mark.parametrize("name", KINDS)
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
    with begun_with(algorithm) as simulation:
        simulation.start_from(tmp_path, FORMER)
        assert simulation.round_number == 0
        assert_identical(had, states_of(simulation, STAY))
        assert np.isfinite(simulation.run_round(evaluate=True)["train_loss"])
    participation = pfl.Participation(3, 3)
    with pfl.Simulation(algorithm, clients, participation, "in_process") as simulation:
        simulation.start_from(tmp_path, [0, 2, 4])
        for after, before in zip(tf.nest.flatten(simulation.server_state), wanted, strict=True):
            np.testing.assert_array_equal(after, before)


def test_what_cannot_be_is_refused_and_changes_nothing(begun, tiny_model, tmp_path):
    begun.save(tmp_path)
    with pytest.raises(ValueError, match="before its first round; this one has had a round"):
        begun.start_from(tmp_path)
    with begun_with(begun.algorithm) as simulation:
        before = states_of(simulation, range(6))
        for former in ([0, 1], [0.5] * 6):
            with pytest.raises(ValueError, match="a whole number for each of the 6 clients"):
                simulation.start_from(tmp_path, former)
        for twice_or_none in ([0, 0, 1, 2, 3, 4], range(6), [*range(5), -2]):
            with pytest.raises(ValueError, match="`former`"):
                simulation.start_from(tmp_path, twice_or_none)
        np.testing.assert_array_equal(states_of(simulation, range(6))[0], before[0])
    with begun_with(build_method("fedper", tiny_model)) as simulation:
        with pytest.raises(CheckpointError, match="algorithm: expected fedper, got pflego"):
            simulation.start_from(tmp_path, FORMER)
        with pytest.raises(CheckpointError, match="must have a checkpoint"):
            simulation.start_from(tmp_path / "none", FORMER)
