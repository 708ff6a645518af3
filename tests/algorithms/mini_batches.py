"""What the tests of rounds on mini-batches share: one small federation, and its float64 oracle."""

import dataclasses
import functools
import operator

import numpy as np
import tensorflow as tf

from tests.comparison import assert_near
from tests.conftest import FEATURES, INPUTS, build_method, make_clients, read_by
from tests.oracles import averaging, batches, network
from tf_pflego import models
from tf_pflego.core.participation import Participation
from tf_pflego.simulation.simulation import Simulation

# float32 against float64 over three rounds of up to eight steps on weights of order 1.
ORACLE_TOLERANCE = 1e-5
# With this seed the three rounds have two, three and one participants, and the one is the client
# that was absent in the first round: every client trains twice.
ROUNDS, SEED = 3, 32
STEPS = {"client_learning_rate": 0.1, "momentum": 0.9, "client_weight_decay": 0.05}
# Fine-tuning is in all of them, and must change no round.
LOCAL = STEPS | {"local_epochs": 2, "batch_size": 2, "fine_tuning_steps": 3}
# With this a client of 3 examples has one batch of them all, and others leave examples out.
DROPPED = {"batch_size": 4, "drop_last_batch": True}


def algorithm_of(name, model, **config):
    """Returns the method with what it knows of LOCAL, and what `config` has instead."""
    local = {key: LOCAL[key] for key in read_by(name, LOCAL | config).keys() & LOCAL.keys()}
    return build_method(name, model, **local | config)


def simulated(algorithm, clients, participation=None):
    participation = participation or Participation(3, 2, "range", (1, 3))
    return Simulation(algorithm, clients, participation, "in_process", SEED)


def simulation_of(name, model, clients, participation=None, **config):
    return simulated(algorithm_of(name, model, **config), clients, participation)


def clients_with(classes):
    """Three clients that call their classes differently: the global ones of each are given."""
    counts = tuple(map(len, classes))
    return dataclasses.replace(make_clients(num_classes=counts), classes=classes)


@functools.cache
def model_with(rows, global_classes):
    """The tiny network for such clients."""
    body = models.mlp((INPUTS,), seed=3, units=FEATURES)
    return models.SplitModel(body, rows, seed=3, num_global_classes=global_classes)


@functools.cache
def personal_model(names):
    """The tiny network with personal weights."""
    body = models.mlp((INPUTS,), seed=3, units=FEATURES)
    return models.SplitModel(body, 3, seed=3, personal=names)


def rounds_of(simulation):
    """Yields each round's number and participants; the caller runs it."""
    for number in range(1, ROUNDS + 1):
        yield number, simulation.participation.draw(SEED, number).tolist()


def flat(weights):
    """[*theta, head] in float64."""
    return [np.asarray(w, np.float64) for w in tf.nest.flatten(weights)]


def own(simulation, field="weights"):
    """That part of each client's state, as flat lists."""
    states = getattr(simulation.client_states(range(3)), field)
    return [flat(tf.nest.map_structure(lambda leaf, k=k: leaf[k], states)) for k in range(3)]


def held(networks, clients):
    """Networks of all clients, whose heads have the rows alone of the classes that each holds."""
    return [[*w[:-1], w[-1][:k]] for w, k in zip(networks, clients.num_classes, strict=True)]


def heads_of(simulation):
    """Each client's K_i rows; the rows of absent classes must be 0."""
    heads, counts = own(simulation, "head"), simulation.data.num_classes
    for (head,), k in zip(heads, counts, strict=True):
        assert not head[k:].any()
    return [head[:k] for (head,), k in zip(heads, counts, strict=True)]


def assert_close(actual, expected):
    assert_near(actual, expected, atol=ORACLE_TOLERANCE, rtol=0)


def draw(clients, client, number, stream=0, exchange=0, **config):
    """The batches of a client in a round; `config` is what differs from LOCAL."""
    x, y = network.of_client(clients.train, client)
    return deal(x, y, batches.round_seed(SEED, client, number, exchange), stream, **config)


def deal(x, y, client_seed, stream=0, **config):
    """The same for a client that trains on these examples and has this seed."""
    epochs, batch_size, drop_last = (
        (LOCAL | {"drop_last_batch": False} | config)[key]
        for key in ("local_epochs", "batch_size", "drop_last_batch")
    )
    return batches.deal(x, y, client_seed, epochs, batch_size, stream, drop_last)


def sgd(
    momentum=STEPS["momentum"],
    rate=STEPS["client_learning_rate"],
    decay=STEPS["client_weight_decay"],
):
    return batches.Momentum(rate, momentum, decay)


def train(weights, drawn, gradient=batches.gradient, **local):
    """The weights after one step along gradient(weights, x, y) for each batch.

    `local` is what differs from `sgd`'s momentum, rate and weight decay.
    """
    optimizer = sgd(**local)
    for x, y in drawn:
        weights = optimizer.step(weights, gradient(weights, x, y))
    return weights


def combine(first, scale, second):
    """first + scale * second."""
    return [a + scale * b for a, b in zip(first, second, strict=True)]


def dot(first, second):
    return sum(np.sum(a * b) for a, b in zip(first, second, strict=True))


def near(center, weight):
    """The gradient of the loss + weight / 2 ||weights - center||^2."""
    return lambda w, x, y: combine(batches.gradient(w, x, y), weight, combine(w, -1, center))


def plain_mean(models, *unused):
    return [np.mean(parts, axis=0) for parts in zip(*models, strict=True)]


def weighted_mean(models, clients, participants):
    return averaging.mean(models, averaging.sizes_of(clients, participants))


def assert_means(
    simulation,
    trained,
    check=lambda weights: None,
    tolerance=ORACLE_TOLERANCE,
    rate=1,
    mean_of=weighted_mean,
    part=operator.attrgetter("weights"),
):
    """Runs rounds after which the server must have the mean of what its participants send.

    Returns the weights after the last.

    Args:
      simulation: Of a method whose server has the weights that its clients start from.
      trained: (these weights, client, number of the round) -> what the client sends.
      check: What is asserted besides of the new weights, after each round.
      tolerance: Of the server's weights.
      rate: How far the server goes towards the mean.
      mean_of: (what is sent, the clients, who sends) -> the mean.
      part: Picks that in the server's state which takes the mean.
    """
    weights = flat(part(simulation.server_state))
    for number, participants in rounds_of(simulation):
        sent = [trained(weights, client, number) for client in participants]
        mean = mean_of(sent, simulation.data, participants)
        weights = mean if rate == 1 else combine(weights, rate, combine(mean, -1, weights))
        simulation.run_round()
        assert_near(flat(part(simulation.server_state)), weights, atol=tolerance, rtol=0)
        check(weights)
    return weights


def assert_own(simulation, expected, field="weights", tolerance=ORACLE_TOLERANCE):
    """Each client, or each of those in a dictionary, must have its part of these."""
    found = own(simulation, field)
    for client in expected if isinstance(expected, dict) else range(3):
        assert_near(found[client], expected[client], atol=tolerance, rtol=0)
