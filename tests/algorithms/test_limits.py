"""Methods that become another one, or find a known point, at a limit of their settings."""

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.mini_batches import (
    ROUNDS,
    combine,
    flat,
    plain_mean,
    simulation_of,
    weighted_mean,
)
from tests.conftest import INPUTS, make_clients
from tests.methods import each_of, thorough
from tests.oracles import batches, network
from tf_pflego.core.participation import Participation
from tf_pflego.data import ClientData, ClientSplit
from tf_pflego.data.partitions.partition import starts

# The same float32 operations on the same numbers, up to the order of a few additions of zeros.
SAME = 1e-7
# float32 rounding over three rounds where the terms of sums come in another order.
TOLERANCE = 2e-6
EQUAL = (6, 6, 6), (2, 2, 2), (3, 3, 3)


def largest_difference(first, second):
    first, second = tf.nest.flatten(first), tf.nest.flatten(second)
    return max(np.abs(np.subtract(a, b)).max() for a, b in zip(first, second, strict=True))


ONE_EXAMPLE = {"batch_size": 1}  # It is both halves of a batch of Per-FedAvg.
SPECIAL_CASES = [
    ("pgfed_ce", {"risk_weight": 0.0}, "fedavg", {}),
    ("pgfedmo", {"risk_momentum": 0.0}, "pgfed", {}),
    ("apfl", {"mixing": 0.0}, "fedavg", {}),
    ("per_fedavg", {"inner_learning_rate": 0.0} | ONE_EXAMPLE, "fedavg", ONE_EXAMPLE),
]


@pytest.mark.parametrize(
    ("name", "config", "other", "others_config"),
    SPECIAL_CASES,
    ids=[f"{name} as {other}" for name, _, other, _ in SPECIAL_CASES],
)
@pytest.mark.thorough
def test_special_cases(tiny_model, tiny_clients, name, config, other, others_config):
    """The weights that the server shares are those of the other method in every round."""
    special = simulation_of(name, tiny_model, tiny_clients, **config)
    expected = simulation_of(other, tiny_model, tiny_clients, **others_config)
    for _ in range(ROUNDS):
        special.run_round()
        expected.run_round()
        shared, wanted = special.server_state.weights, expected.server_state.weights
        assert largest_difference(shared, wanted) <= SAME


@pytest.mark.thorough
def test_apfl_that_mixes_nothing_in_serves_what_fedavg_does(tiny_model, tiny_clients):
    apfl = simulation_of("apfl", tiny_model, tiny_clients, mixing=0.0)
    apfl.run_round()
    served = apfl.algorithm.served["personalized"]
    states = apfl.client_states(range(3))
    for k in range(3):
        state = tf.nest.map_structure(lambda leaf, k=k: leaf[k], states)
        weights = served.weights(apfl.server_state, state)
        assert largest_difference(weights, apfl.server_state.weights) <= SAME


ONE_BATCH = {"batch_size": 100, "local_epochs": 3}
FULL_BATCH = {"batch_size": 0, "local_steps": 3}
STEPS_OR_EPOCHS = {
    "fedavg": ({}, {}),
    "fedper": ({}, {}),
    "fedrep": ({"head_epochs": 2}, {"local_steps": 5, "body_steps": 3}),
    "fedbabu": ({"fine_tuning_steps": 2}, {"fine_tuning_steps": 2}),
    "fedprox": ({"proximal_weight": 0.5}, {"proximal_weight": 0.5}),
    "ditto": ({"proximal_weight": 0.5}, {"proximal_weight": 0.5}),
}


@pytest.mark.parametrize("name", each_of(STEPS_OR_EPOCHS, ("fedrep", "fedbabu")))
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


PGFED = {"risk_weight": 0.3, "risk_learning_rate": 0.2}
ONE_STEP = {"batch_size": 0, "local_epochs": 1}


def pgfed_and_ce(model, clients, per_round, rounds, **config):
    """The server's states of PGFed and of PGFed-CE after each round, in pairs."""
    pair = [
        simulation_of(name, model, clients, Participation(3, per_round), **PGFED | config)
        for name in ("pgfed", "pgfed_ce")
    ]
    states = []
    for _ in range(rounds):
        for simulation in pair:
            simulation.run_round()
        states.append([simulation.server_state for simulation in pair])
    return states


def apart(states):
    """How far two servers are from each other in A, and in theta."""
    plain, variant = states
    return [
        largest_difference(getattr(plain, field), getattr(variant, field))
        for field in ("risk_weights", "weights")
    ]


@pytest.mark.thorough
def test_pgfed_ce_is_pgfed_where_one_client_takes_one_step_in_a_round(tiny_model, tiny_clients):
    """g- is then mu grad_j of the only j, and theta_i is still theta when A moves."""
    states = pgfed_and_ce(tiny_model, tiny_clients, per_round=1, rounds=12, **ONE_STEP)
    assert max(max(apart(pair)) for pair in states) <= TOLERANCE
    first, last = (pair[0].risk_weights for pair in (states[0], states[-1]))
    assert largest_difference(first, last) > 0.1


@pytest.mark.thorough
def test_pgfed_ce_moves_the_sum_of_a_row_like_pgfed_where_clients_take_one_step(
    tiny_model, tiny_clients
):
    """The mean of <grad_j, theta> over j stands in the place of each of them."""
    _, (plain, variant) = pgfed_and_ce(tiny_model, tiny_clients, 3, rounds=2, **ONE_STEP)
    sums = [np.sum(server.risk_weights, axis=1) for server in (plain, variant)]
    np.testing.assert_allclose(*sums, atol=TOLERANCE)
    assert np.abs(sums[0] - 1).min() > 0.01  # At first a row is 3 times 1 / 3.


@pytest.mark.thorough
def test_pfedme_nears_fedavg_as_lambda_grows(tiny_model):
    """Its rate is that of theory.

    The step on w is -eta lambda (w - theta_i), and lambda (w - theta_i) = grad f_i(theta_i) at the
    minimum theta_i of the envelope, which is within ||grad f_i|| / lambda of w. So the step nears
    FedAvg's, and twice lambda leaves half the difference. Clients are of equal size, since the mean
    of pFedMe is plain.
    """
    clients = make_clients(*EQUAL)
    fedavg = simulation_of("fedavg", tiny_model, clients, momentum=0.0)
    fedavg.run_round()
    differences = []
    for envelope in (100.0, 200.0, 400.0):
        pfedme = simulation_of(
            "pfedme",
            tiny_model,
            clients,
            envelope_weight=envelope,
            personal_learning_rate=1 / envelope,
            personal_steps=3,
            weight_decay=0.0,
            momentum=0.0,
        )
        pfedme.run_round()
        weights = pfedme.server_state.weights, fedavg.server_state.weights
        differences.append(largest_difference(*weights))
    np.testing.assert_allclose(np.divide(differences[1:], differences[:-1]), 0.5, atol=0.02)
    assert differences[-1] < 1e-2


@pytest.mark.parametrize("per_round", [thorough(1), 2, thorough(3)])
def test_the_first_round_of_feddyn(tiny_model, per_round):
    """It goes on from FedProx's mean by the share of the clients that took part.

    While all h_i are 0, clients minimise FedProx's objective with mu = a. The server's h is then
    -a (P / I) (mean - w) for P participants, so that w becomes mean + (P / I) (mean - w). Clients
    are of equal size, since the mean of FedDyn is plain.
    """
    clients, participation = make_clients(*EQUAL), Participation(3, per_round)
    feddyn, fedprox = (
        simulation_of(name, tiny_model, clients, participation, **{weight: 0.4})
        for name, weight in (("feddyn", "dynamic_weight"), ("fedprox", "proximal_weight"))
    )
    start = flat(fedprox.server_state.weights)
    feddyn.run_round()
    fedprox.run_round()
    mean = flat(fedprox.server_state.weights)
    expected = combine(mean, per_round / 3, combine(mean, -1, start))
    assert largest_difference(flat(feddyn.server_state.weights), expected) <= TOLERANCE


def clients_that_disagree():
    """Clients of 10, 24 and 15 examples of three images, each with every label at every client.

    So the loss of each client has a minimum of its own at finite weights.
    """
    rng, sizes = np.random.default_rng(1), (10, 24, 15)
    images = rng.normal(size=(3, INPUTS)).astype(np.float32)
    examples, labels = [], []
    for size in sizes:
        examples.append(images[np.arange(size) % 3])
        labels.append(np.append(np.repeat(range(3), 3), rng.integers(3, size=size - 9)))
    split = ClientSplit(
        np.concatenate(examples), np.concatenate(labels).astype(np.int32), starts(sizes)
    )
    return ClientData(split, split, np.full(3, 3, np.int32))


def mean_gradients(weights, clients):
    """The largest element of the plain mean of the clients' gradients, and of the N_i-weighted."""
    gradients = [
        batches.gradient(weights, *network.of_client(clients.train, client)) for client in range(3)
    ]
    means = plain_mean(gradients), weighted_mean(gradients, clients, range(3))
    return [max(np.abs(leaf).max() for leaf in mean) for mean in means]


@pytest.mark.thorough
@pytest.mark.parametrize("per_round", [2, thorough(3)])
def test_feddyn_stops_where_the_plain_mean_of_the_gradients_is_zero(tiny_model, per_round):
    """Its paper: fixed points are stationary points of the mean loss; no client counts for more.

    There h_i = grad f_i(w), from which no local step moves, and the mean of all h_i is h = 0.
    FedAvg, after as many rounds of as many steps, is at a stationary point of neither mean.
    """
    clients, participation = clients_that_disagree(), Participation(3, per_round)
    local = {"batch_size": 0, "momentum": 0.0, "client_learning_rate": 0.2}
    found = {}
    for name, config in (
        ("feddyn", {"dynamic_weight": 0.5, "local_epochs": 10}),
        ("fedavg", {"local_steps": 10}),
    ):
        simulation = simulation_of(name, tiny_model, clients, participation, **local | config)
        for _ in range(100):
            simulation.run_round()
        found[name] = mean_gradients(flat(simulation.server_state.weights), clients)
    assert found["feddyn"][0] < 1e-5
    assert found["feddyn"][1] > 1e-2
    assert min(found["fedavg"]) > 1e-3
