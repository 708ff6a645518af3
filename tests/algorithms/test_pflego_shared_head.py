"""PFLEGO with a shared head: its rounds against a float64 oracle, and what holds exactly."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.mini_batches import clients_with, model_with
from tests.algorithms.test_identities import Chosen
from tests.comparison import assert_identical, assert_near
from tests.conftest import FEATURES, built, make_clients
from tests.methods import by_task, each_of, thorough
from tests.oracles import batches, network
from tests.oracles import pflego_shared_head as oracle
from tf_pflego.core.participation import Participation
from tf_pflego.core.shuffles import shuffled
from tf_pflego.simulation.simulation import Simulation

# float32 against float64 over three rounds of up to six steps on weights of order 1.
TOLERANCE = 2e-5
ROUNDS = 3
CONFIG = {
    "local_steps": 6,
    "client_learning_rate": 0.3,
    "correction_penalty": 0.5,
    "penalty_growth": 2.0,
    "gate": "learnt",
    "correction": "learnt",
    "rate_cap": "correction",
    "server_learning_rate": 0.2,
}
SGD = {"server_optimizer": "sgd", "server_schedule": "constant", "server_weight_decay": 0.0}
OVERLAPPING, DRAWN = ((1, 3), (0, 1, 4), (2,)), Participation(3, 2)


def with_shared_head(simulation, head):
    """The simulation with another V."""
    weights = simulation.server_state.weights._replace(head=tf.constant(head, tf.float32))
    simulation.server_state = simulation.server_state._replace(weights=weights)
    return simulation


def simulation_of(scale=1.0, shift=0.0, model=None, clients=None, drawn=DRAWN, **config):
    """A simulation whose V is `scale` times the method's own, with `shift` taken from it first."""
    algorithm = built("pflego_shared_head", model or model_with(3, 5), **CONFIG | SGD | config)
    clients = clients or clients_with(OVERLAPPING)
    simulation = Simulation(algorithm, clients, drawn, "in_process", seed=11)
    return with_shared_head(simulation, scale * (simulation.server_state.weights.head - shift))


def state_of(simulation):
    """theta, V, and each client's rows of U and its gate, in float64; other rows must be 0."""
    server, data = simulation.server_state.weights, simulation.data
    states = simulation.client_states(range(data.num_clients))
    corrections, gates = {}, {}
    for client in range(data.num_clients):
        classes = data.head_classes([client], simulation.algorithm.model.num_classes)[0]
        own = np.asarray(states.correction[client], np.float64)
        np.testing.assert_array_equal(states.classes[client], classes)
        assert not own[classes < 0].any()
        corrections[client], gates[client] = own[classes >= 0], float(states.gate[client])
    theta = [np.asarray(w, np.float64) for w in server.theta]
    return theta, np.asarray(server.head, np.float64), corrections, gates


CASES = {
    "default": {},
    "one step": {"local_steps": 1},
    "joint": {"rate_cap": "joint", "client_learning_rate": 5.0},
    "capped": {"client_learning_rate": 5.0},
    "uncapped": {"rate_cap": "none", "client_learning_rate": 2.5},
    "no penalty, no gate": {"correction_penalty": 0.0, "gate": "open"},
    "no correction": {"correction": "none"},
}


def assert_state(simulation, expected):
    for actual, wanted in zip(state_of(simulation), expected, strict=True):
        nests = tf.nest.flatten(actual), tf.nest.flatten(wanted)
        assert_near(*nests, atol=TOLERANCE, rtol=TOLERANCE)


def assert_rounds_are_the_oracles(simulation, **config):
    """Runs three rounds; returns all gates of all rounds and who took the steps again."""
    known = CONFIG | config | {"clients_per_round": 2}
    state, seen, again = state_of(simulation), [], set()
    for number in range(1, ROUNDS + 1):
        participants = simulation.participation.draw(simulation.seed, number)
        *state, took = oracle.one_round(*state, simulation.data, participants, known)
        simulation.run_round()
        assert_state(simulation, state)
        seen += [state[3][client] for client in participants]
        again |= took
    return seen, again


@pytest.mark.parametrize("case", each_of(CASES, ("default",)))
def test_rounds_are_those_of_the_oracle(case):
    """V is centred, so that it is as often wrong as right, and gates close partly."""
    config = CASES[case]
    simulation = simulation_of(2, 0.5, **config)
    gates, again = assert_rounds_are_the_oracles(simulation, **config)
    if config.get("gate") == "open" or config.get("local_steps") == 1:
        assert set(gates) == {1.0}
    else:
        assert min(gates) < 0.99
    assert bool(again) == (case == "uncapped")


def test_the_penalty_grows_with_what_the_shared_head_knows():
    """V has learnt here what all clients' examples are."""
    simulation = simulation_of()
    clients, (theta, shared, *_) = simulation.data, state_of(simulation)
    for _ in range(500):
        for x, y, held in map(functools.partial(oracle.client_of, clients), range(3)):
            shared[held] -= 0.3 * network.gradients(theta, shared[held], x, y)[1]
    for client in (0, 1):
        x, y, held = oracle.client_of(clients, client)
        assert oracle.own_penalty(theta, shared[held], x, y, CONFIG) > 4 * 0.5
    assert_rounds_are_the_oracles(with_shared_head(simulation, shared))


def test_a_gate_that_would_become_negative_is_0():
    """V is so large and so wrong that clients are better off without it; its gradient is 0 then."""
    gates, _ = assert_rounds_are_the_oracles(simulation_of(-20, 0.5))
    assert 0.0 in gates


@pytest.mark.thorough
@pytest.mark.parametrize("classes", [((1, 3), (0, 1), (2,)), ((1,), (1,), (2,))])
def test_rounds_with_two_rows_or_one(classes):
    """Where a client holds one class, there is nothing to learn: its loss is 0 anyway."""
    rows = max(map(len, classes))
    clients = clients_with(classes)
    simulation = simulation_of(4, 0.5, model_with(rows, 4), clients)
    start = state_of(simulation)
    gates, _ = assert_rounds_are_the_oracles(simulation)
    theta, shared, corrections, _ = state_of(simulation)
    for client, held in enumerate(classes):
        assert len(held) > 1 or not corrections[client].any()
    if rows == 1:
        assert set(gates) == {1.0}
        assert_identical([*theta, shared], [*start[0], start[1]])
    else:
        assert min(gates) < 0.99


@pytest.mark.parametrize("penalty", [30.0, thorough(None)])
def test_rounds_with_global_labels(masked_model, masked_clients, penalty):
    """Absent classes stay out, also where a correction shrinks to nearly nothing in a round.

    Without a mask each client predicts among all classes, and moves all rows of V.
    """
    config = {"correction_penalty": penalty, "local_steps": 50} if penalty else {}
    model, clients = masked_model, masked_clients
    if not penalty:
        clients = dataclasses.replace(make_clients(num_classes=(3, 3, 3)), label_space="global")
        model = model_with(3, 3)
    simulation = simulation_of(2, 0.5, model, clients, **config)
    before = simulation.server_state.weights.head[2]
    gates, _ = assert_rounds_are_the_oracles(simulation, **config)
    assert min(gates) < 0.99
    if penalty:
        np.testing.assert_array_equal(simulation.server_state.weights.head[2], before)


RATES = {"default": ("default", 0.3), "joint": ("joint", 5.0)}


@by_task("case,rate", RATES, "regression", "multi_label")
def test_rounds_where_labels_are_no_classes(tiny_model, tiny_clients, case, rate):
    """V starts from 0 there; here it is replaced by another, with which gates move too."""
    drawn = np.random.default_rng(0).normal(size=(3, FEATURES + 1))
    config = CASES[case] | {"client_learning_rate": rate}
    simulation = simulation_of(model=tiny_model, clients=tiny_clients, **config)
    assert not state_of(simulation)[1].any()
    with_shared_head(simulation, -drawn[: tiny_model.num_classes])
    gates, _ = assert_rounds_are_the_oracles(simulation, **config)
    assert min(gates) < 0.99


def test_the_exchanges_of_a_round_are_rounds_of_the_oracle():
    """They have the same participants, and each takes one example in two, drawn anew.

    Each exchange has the constant penalty.
    """
    config = CONFIG | {"clients_per_round": 2, "penalty_growth": 0.0}
    simulation = simulation_of(2, 0.5, exchanges_per_round=2, exchange_examples="part")
    clients, state, parts = simulation.data, state_of(simulation), []
    for number in (1, 2):
        participants = simulation.participation.draw(simulation.seed, number)
        for exchange in range(2):
            rows = {}
            for client in participants:
                count = clients.train.sizes[client]
                seed = batches.round_seed(simulation.seed, client, number, exchange)
                drawn = shuffled(tf.constant(count), seed).numpy()
                rows[client] = drawn[: (count + 1) // 2]
            parts.append(rows[participants[0]][:2].tolist())
            *state, _ = oracle.one_round(*state, clients, participants, config, rows)
        simulation.run_round()
        assert_state(simulation, state)
    assert parts[0] != parts[1] and parts[2] != parts[3]


def test_the_mean_of_the_servers_steps_over_all_cohorts_is_the_gradient():
    """Proposition 1 of PFLEGO, for theta and V: at the U and g of each client's local steps.

    Penalties are numbers of the round; the gradient of one that moved with them is another.
    With rho = 1, weight decay d adds (d/2) |theta, V|^2 to what is minimised.
    """
    everybody, decay = range(3), 0.25
    subsets = list(itertools.combinations(everybody, 2))
    chosen = [Chosen(3, 2, clients_per_round_range=subset) for subset in subsets]
    settings = {"server_learning_rate": 1.0, "server_weight_decay": decay}
    simulation = simulation_of(2, 0.5, drawn=chosen[0], **settings)
    clients, (theta, shared, *_) = simulation.data, state_of(simulation)
    shared[:] = 0  # A step from 0 for one client, so that the shared head knows its classes.
    x, y, held = oracle.client_of(clients, 0)
    shared[held] = -0.5 * network.gradients(theta, shared[held], x, y)[1]
    with_shared_head(simulation, shared)
    states = simulation.client_states(everybody)
    states = states._replace(gate=np.full_like(states.gate, 0.5))
    simulation.set_client_states(everybody, states)
    server = simulation.server_state
    theta, shared, corrections, gates = state_of(simulation)
    own, penalties = {}, {}
    for client in everybody:
        x, y, held = oracle.client_of(clients, client)
        penalties[client] = oracle.own_penalty(theta, shared[held], x, y, CONFIG)
        at = theta, shared[held], corrections[client], gates[client]
        own[client] = oracle.local_steps(*at, x, y, CONFIG)[:2]
    assert any(gate < 0.99 for _, gate in own.values())

    def whole(at, held_penalties=penalties):
        *theta, shared = at
        total = decay / 2 * sum(np.sum(w**2) for w in at)
        for client, (u, g) in own.items():
            x, y, held = oracle.client_of(clients, client)
            alpha = clients.train.sizes[client] / clients.train.sizes.sum()
            penalty = held_penalties.get(client)
            if penalty is None:
                penalty = oracle.own_penalty(theta, shared[held], x, y, CONFIG)
            total += alpha * oracle.own_part(theta, shared[held], u, g, x, y, penalty)
        return total

    expected = network.numerical_gradient(whole, [*theta, shared])
    moving = network.numerical_gradient(lambda at: whole(at, {}), [*theta, shared])
    assert max(np.abs(a - b).max() for a, b in zip(expected, moving, strict=True)) > 1e-4
    mean = [np.zeros_like(w) for w in expected]
    for participation in chosen:
        simulation.participation, simulation.server_state = participation, server
        simulation.set_client_states(everybody, states)
        simulation.run_round()
        moved_theta, moved_shared, *_ = state_of(simulation)
        leaves = zip(mean, [*theta, shared], [*moved_theta, moved_shared], strict=True)
        for total, before, after in leaves:
            total += (before - after) / len(subsets)
    for estimate, gradient in zip(mean, expected, strict=True):
        assert np.abs(gradient).max() > 1e-2
        np.testing.assert_allclose(estimate, gradient, atol=2e-6)
