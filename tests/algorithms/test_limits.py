"""Methods that become another one, or find a known point, at a limit of their settings."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.mini_batches import (
    LOCAL,
    ROUNDS,
    SEED,
    flat,
    own,
    plain_mean,
    simulation_of,
    weighted_mean,
)
from tests.comparison import assert_identical
from tests.conftest import INPUTS, built, make_clients
from tests.methods import each_of
from tests.oracles import batches, network
from tf_pflego import algorithms
from tf_pflego.core.participation import Participation
from tf_pflego.data import ClientData, ClientSplit
from tf_pflego.data.partitions.partition import starts
from tf_pflego.simulation.simulation import Simulation

# The same float32 operations on the same numbers, up to the order of a few additions of zeros.
SAME = 1e-7
# float32 rounding over three rounds where the terms of sums come in another order.
TOLERANCE = 2e-6
EQUAL = (6, 6, 6), (2, 2, 2), (3, 3, 3)
TINY, ALL_CLASSES = (((3, 7, 5), (2, 4, 3), classes) for classes in ((2, 3, 2), (3, 3, 3)))


def largest_difference(first, second):
    first, second = tf.nest.flatten(first), tf.nest.flatten(second)
    return max(np.abs(np.subtract(a, b)).max() for a, b in zip(first, second, strict=True))


def shared(simulation):
    return simulation.server_state.weights


def first_of_several(simulation):
    state = simulation.server_state
    return state.weights if hasattr(state, "weights") else [leaf[0] for leaf in flat(state)]


def kept(simulation):
    return own(simulation)


def shared_and_heads(simulation):
    return [*flat(shared(simulation)), *own(simulation, "head")]


@dataclasses.dataclass(frozen=True)
class Limit:
    """A method with settings with which it does what another one does."""

    name: str
    config: dict
    other: str
    others_config: dict = dataclasses.field(default_factory=dict)
    what: object = shared
    sizes: tuple = TINY
    per_round: int | None = None  # Else rounds have two, three and one participants.
    rounds: int = ROUNDS
    tolerance: float = SAME


ONE_EXAMPLE = {"batch_size": 1}  # It is both halves of a batch of Per-FedAvg.
FULL = {"batch_size": 0}
NO_BIAS = {"learn_bias": False, "mean_weight": 0.0}
STAYS = {"mixed_tensors": 9, "mixing_learning_rate": 0.0}
LIMITS = [
    Limit("pgfed_ce", {"risk_weight": 0.0}, "fedavg"),
    Limit("pgfedmo", {"risk_momentum": 0.0}, "pgfed"),
    Limit("apfl", {"mixing": 0.0}, "fedavg"),
    Limit(
        "per_fedavg",
        {"inner_learning_rate": 0.0} | ONE_EXAMPLE,
        "fedavg",
        ONE_EXAMPLE,
        tolerance=TOLERANCE,
    ),
    Limit("fedprox", {"proximal_weight": 0.0}, "fedavg", tolerance=TOLERANCE),
    Limit("ditto", {"proximal_weight": 3.0}, "fedavg", tolerance=TOLERANCE),
    Limit("fedbn", {}, "fedavg", tolerance=0),  # Without batch normalisation.
    Limit("fedala", STAYS, "fedavg", tolerance=TOLERANCE),  # Mixing weights stay at 1.
    # Batches of a second exchange are others.
    Limit("fedamp", {"proximal_weight": 0.0} | FULL, "local", FULL, kept, ALL_CLASSES),
    Limit("mr_mtl", {"proximal_weight": 0.0}, "local", {}, kept, ALL_CLASSES),
    Limit("fedproto", {"prototype_weight": 0.0}, "local", {}, kept),
    # A single participant has all the weight.
    Limit("fedas", {"alignment_epochs": 0}, "fedper", per_round=1, tolerance=TOLERANCE),
    Limit("feddbe", FULL | NO_BIAS, "fedavg", FULL | {"local_steps": 2}),
    # With equal numbers of steps, by equal sizes, equal numbers of batches, and full batches.
    Limit("fednova", {}, "fedavg", sizes=EQUAL, tolerance=TOLERANCE),
    Limit("fednova", {}, "fedavg", sizes=((5, 6, 6), *EQUAL[1:]), tolerance=TOLERANCE),
    Limit("fednova", FULL, "fedavg", FULL | {"local_steps": 2}, tolerance=TOLERANCE),
    Limit("moon", {"contrast_weight": 0.0}, "fedavg", per_round=3),
    # A client without a last network has the same cosine twice, which no step can change.
    Limit("moon", {"contrast_weight": 5.0}, "fedavg", per_round=3, rounds=1),
    # Bit for bit: the same sums of the same numbers.
    Limit("ifca", {"num_clusters": 1}, "fedavg", what=first_of_several, tolerance=0),
    Limit(
        *("ifca", {"num_clusters": 1, "local_steps": 4} | FULL, "fedavg"),
        *(FULL | {"local_steps": 4}, first_of_several),
        tolerance=0,
    ),
    # One participant has nobody else to combine, and heads start alike.
    Limit(
        *("fedpac", {"centroid_weight": 0.0, "head_epochs": 2}, "fedrep", {"head_epochs": 2}),
        *(shared_and_heads, TINY, 1, 2 * ROUNDS, TOLERANCE),
    ),
]
IN_QUICK = "fedala", "fedas", "fednova", "moon", "ifca"


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param(
            one,
            id=f"{one.name} as {one.other} {number}",
            marks=() if one.name in IN_QUICK else pytest.mark.thorough,
        )
        for number, one in enumerate(LIMITS)
    ],
)
def test_special_cases(tiny_model, limit):
    """What is compared is the same in every round."""
    clients, drawn = make_clients(*limit.sizes), limit.per_round
    drawn = drawn and Participation(3, drawn)
    special = simulation_of(limit.name, tiny_model, clients, drawn, **limit.config)
    expected = simulation_of(limit.other, tiny_model, clients, drawn, **limit.others_config)
    for _ in range(limit.rounds):
        special.run_round()
        expected.run_round()
        assert largest_difference(limit.what(special), limit.what(expected)) <= limit.tolerance


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


@pytest.mark.thorough
def test_pgfed_ce_is_pgfed_where_one_client_takes_one_step_in_a_round(tiny_model, tiny_clients):
    """g- is then mu grad_j of the only j, and theta_i is still theta when A moves."""
    config = {"risk_weight": 0.3, "risk_learning_rate": 0.2, "batch_size": 0, "local_epochs": 1}
    pair = [
        simulation_of(name, tiny_model, tiny_clients, Participation(3, 1), **config)
        for name in ("pgfed", "pgfed_ce")
    ]
    risk_weights = []
    for _ in range(12):
        for simulation in pair:
            simulation.run_round()
        states = [simulation.server_state for simulation in pair]
        assert largest_difference(*(one.weights for one in states)) <= TOLERANCE
        risk_weights.append([one.risk_weights for one in states])
        assert largest_difference(*risk_weights[-1]) <= TOLERANCE
    assert largest_difference(risk_weights[0], risk_weights[-1]) > 0.1


@pytest.mark.thorough
def test_pfedme_nears_fedavg_as_lambda_grows(tiny_model):
    """Its rate is that of theory.

    The step on w is -eta lambda (w - theta_i), and lambda (w - theta_i) = grad f_i(theta_i) at the
    minimum theta_i of the envelope, which is within ||grad f_i|| / lambda of w. So the step nears
    FedAvg's, and twice lambda leaves half the difference. Clients are of equal size, since the mean
    of pFedMe is plain.
    """
    clients = make_clients(*EQUAL)
    fedavg = simulation_of("fedavg", tiny_model, clients, momentum=0.0, client_weight_decay=0.0)
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
            client_weight_decay=0.0,
            momentum=0.0,
        )
        pfedme.run_round()
        weights = pfedme.server_state.weights, fedavg.server_state.weights
        differences.append(largest_difference(*weights))
    np.testing.assert_allclose(np.divide(differences[1:], differences[:-1]), 0.5, atol=0.02)
    assert differences[-1] < 1e-2


SETTINGS = {
    name: {field.name: field.default for field in dataclasses.fields(config)}
    for name, (config, _) in algorithms.REGISTRY.items()
}
RATES = "client_learning_rate", "personal_learning_rate"
FALLING = sorted(name for name, known in SETTINGS.items() if "client_rate_decay" in known)


@pytest.mark.parametrize("name", each_of(FALLING))
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
def test_feddyn_stops_where_the_plain_mean_of_the_gradients_is_zero(tiny_model):
    """Its paper: fixed points are stationary points of the mean loss; no client counts for more.

    There h_i = grad f_i(w), from which no local step moves, and the mean of all h_i is h = 0.
    FedAvg, after as many rounds of as many steps, is at a stationary point of neither mean.
    """
    clients, participation = clients_that_disagree(), Participation(3, 2)
    local = {"batch_size": 0, "momentum": 0.0, "client_learning_rate": 0.2}
    local["client_weight_decay"] = 0.0
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
