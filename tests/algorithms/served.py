"""What each method serves to a client that did not take part in the last round.

The oracles are written in float64 from the line of each paper's algorithm that the header of a
method names, over what the server and the client keep; other tests compare that with oracles of the
rounds.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from tests.algorithms.mini_batches import (
    DROPPED,
    LOCAL,
    SEED,
    combine,
    deal,
    flat,
    rounds_of,
    simulated,
    train,
)
from tests.algorithms.test_mixtures import started
from tests.algorithms.test_oracles import drawn_heads
from tests.algorithms.test_parts import (
    direction_of,
    features_of,
    logits_of_both,
    split_by_policy,
    valved,
    with_bias,
)
from tests.conftest import INPUTS
from tests.oracles import batches, gaussian, network
from tf_pflego import algorithms, models
from tf_pflego.core import seeds
from tf_pflego.core.shuffles import shuffled

# float32 against float64 in a forward pass or, of clients that train before, in a few steps.
TOLERANCE = 2e-6
COVARIANCE = {"covariance_shrinkage": 0.05, "covariance_identity": 0.3}
STATISTICS_EPSILON = 1e-3  # Of Keras.


@dataclasses.dataclass(frozen=True)
class Asked:
    """A client, and what there is of it and of the server after the last round."""

    simulation: object
    client: int

    @property
    def server(self):
        return self.simulation.server_state

    @property
    def shared(self):
        """The weights that the server has, as one flat list."""
        return flat(self.server.weights if hasattr(self.server, "weights") else self.server.theta)

    @property
    def own(self):
        """What the client keeps, as one flat list."""
        states = self.simulation.client_states([self.client])
        return [leaf[0] for leaf in flat(states)]

    @property
    def training(self):
        return network.of_client(self.simulation.data.train, self.client)

    @property
    def seed(self):
        number = self.simulation.round_number
        return seeds.client_seeds(SEED, "evaluation", [self.client], number)[0]


# Where a network is served: its weights, [*theta, head].


def last_own(asked):
    return asked.own[:3]


def anew(asked):
    """Over the newest body, all local steps on a head that is drawn."""
    theta = asked.shared
    data, model = asked.simulation.data, asked.simulation.algorithm.model
    drawn = drawn_heads(model, data, SEED, "evaluation", asked.simulation.round_number)
    head = drawn[asked.client]
    for _ in range(5):
        head = head - 0.3 * network.gradients(theta, head, *asked.training)[1]
    return [*theta, head]


def apfl(asked):
    *v, share = asked.own
    return combine([share * leaf for leaf in v], 1 - share, asked.shared)


def fedrod(asked):
    *theta, head = asked.shared
    return [*theta, head + asked.own[0]]


def shared_head(asked):
    *theta, head = asked.shared
    correction, gate, classes = asked.own
    classes = classes.astype(int)
    return [*theta, (gate * head[classes] + correction)[classes >= 0]]


def tuned(asked, start=None, **config):
    """Three epochs from the newest network, without momentum."""
    start = asked.shared if start is None else start
    epochs = LOCAL["fine_tuning_steps"]
    drawn = deal(*asked.training, asked.seed, local_epochs=epochs, **config)
    return train(start, drawn, momentum=0.0)


def feddane(asked):
    """Three steps, each on all examples."""
    return tuned(asked, batch_size=len(asked.training[1]))


def fedbabu(asked):
    """From the newest body and the head that never moves."""
    served = asked.simulation.algorithm.served["generic"]
    return tuned(asked, flat(served.weights(asked.server, ())))


def per_fedavg(asked):
    """A step on one batch, with the rate of the client's steps, before the others."""
    x, y = asked.training
    rows = shuffled(tf.constant(len(y)), asked.seed).numpy()[: LOCAL["batch_size"]]
    gradient = batches.gradient(asked.shared, x[rows], y[rows])
    return tuned(asked, combine(asked.shared, -LOCAL["client_learning_rate"], gradient))


def ifca(asked):
    networks = [list(one) for one in zip(*flat(asked.server.models), strict=True)]
    return min(networks, key=lambda w: network.loss(w[:-1], w[-1], *asked.training))


def feddbe(asked):
    """The newest network, which takes phi + b_i for phi."""
    (*theta, head), (bias,) = asked.shared, asked.own
    return [*theta, np.column_stack([head[:, :-1], head[:, -1] + head[:, :-1] @ bias])]


def pfedfda(asked):
    """The newest body under the discriminant of the client's mixture of means and covariances."""
    *theta, means, covariance = flat(asked.server)
    x, y = asked.training
    count = asked.simulation.data.num_classes[asked.client]
    phi, priors = features_of(theta, x), np.bincount(y, minlength=count) / len(y) + 1e-4
    shrinkage, identity = COVARIANCE.values()
    of_all = means[:count], covariance
    mixture, _ = gaussian.interpolated(phi, y, of_all, priors, shrinkage, identity)
    return [*theta, gaussian.head(*mixture, priors, shrinkage)]


# Where it is more than a body and a head: the logits [n, K] of x.


def fedbn(asked, x):
    """The newest dense layer and head, own scale and offset, statistics of all own examples."""
    (kernel, bias, head), (scale, offset) = asked.shared, asked.own
    before = asked.training[0] @ kernel + bias
    mean, deviation = before.mean(0), np.sqrt(before.var(0) + STATISTICS_EPSILON)
    normal = (x @ kernel + bias - mean) / deviation
    return with_bias(np.maximum(scale * normal + offset, 0)) @ head.T


def fedproto(asked, x):
    """Minus the distances to own prototypes under the own body; the classifier without any."""
    *theta, classifier, prototypes, known = asked.own
    if not known.any():
        return logits_of([*theta, classifier], x)
    return -np.square(features_of(theta, x)[:, None] - prototypes).mean(axis=2)


def fedcp(asked, x):
    (*shared, head), (personal,) = asked.shared, asked.own
    parts = split_by_policy(shared[2:5], direction_of(personal), features_of(shared, x))
    return logits_of_both(head, personal, parts)


def gpfl(asked, x):
    (kernel, bias, embeddings, *valve), (head, shares) = asked.shared, asked.own
    features = valved(valve, shares @ embeddings, features_of([kernel, bias], x))
    return with_bias(features) @ head.T


def newest(asked):
    return asked.shared


def own_head(asked):
    return [*asked.shared, *asked.own]


def usual(case, simulation):
    """What most methods serve, by their settings and by what their clients keep."""
    kept = flat(simulation.client_states([0]))
    if case.endswith(" generic"):
        return newest
    if case in algorithms.REGISTRY and "fine_tuning_steps" in settings_of(case):
        return tuned
    return own_head if len(kept) == 1 else last_own if kept else newest


def settings_of(name):
    return {field.name for field in dataclasses.fields(algorithms.REGISTRY[name][0])}


# What is not `usual`.
ORACLES = {
    "fedavg as it is": newest,
    "feddane": feddane,
    "fedrecon anew": anew,
    "pflego_shared_head": shared_head,
    "lg_fedavg": lambda asked: [*asked.own, *asked.shared],
    "apfl": apfl,
    "fedala": lambda asked: started(asked.shared, asked.own[:3], asked.own[3:-1]),
    "fedrod": fedrod,
    "feddbe": feddbe,
    "fedbabu": fedbabu,
    "per_fedavg": per_fedavg,
    "ifca": ifca,
    "pfedfda": pfedfda,
    "fedbn": fedbn,
    "fedproto": fedproto,
    "fedcp": fedcp,
    "gpfl": gpfl,
}
STAYS = (last_own, fedproto)  # What no later round changes.
OF_LOGITS = (fedbn, fedproto, fedcp, gpfl)
STEPS = {"local_steps": 5, "client_learning_rate": 0.3, "server_learning_rate": 0.05}
CONFIGS = {
    **dict.fromkeys(("pflego", "pflego_shared_head", "fedrecon"), STEPS),
    "fedrecon anew": STEPS | {"head_start": "anew"},
    "feddane": {"local_steps": 5},
    "fedavg as it is": {"fine_tuning_steps": 0},
    "apfl": {"learn_mixing": True},
    "per_fedavg": {"inner_learning_rate": 0.3},
    "fedbn": DROPPED,
    "pfedfda": COVARIANCE,
}


def normalized():
    """FedBN's network: the tiny one with a batch normalisation, without which it is FedAvg's."""
    layers = tf.keras.layers
    of_body = layers.Dense(5), layers.BatchNormalization(), layers.ReLU()
    body = tf.keras.Sequential([tf.keras.Input((INPUTS,)), *of_body])
    return models.SplitModel(body, 3, seed=3)


def logits_of(weights, x):
    return network.forward(weights[:-1], weights[-1], x)[2]


def assert_absentees_are_served(algorithm, clients, case):
    """Runs rounds, after each of which absentees must be served what the header says.

    Also one that never took part; and it is what served it when it last did, if that stays.
    """
    simulation, then = simulated(algorithm, clients), {name: {} for name in algorithm.served}
    moves = {name: [] for name in then}
    cases = [f"{case} {name}" if k else case for k, name in enumerate(then)]
    oracles = [ORACLES.get(one) or usual(one, simulation) for one in cases]
    for _, participants in rounds_of(simulation):
        simulation.run_round()
        for name, oracle in zip(then, oracles, strict=True):
            predicted = simulation.predict("test", name)
            for client in {0, 1, 2} - set(participants):
                x, _ = network.of_client(clients.test, client)
                asked, found = Asked(simulation, client), predicted[client]
                logits = oracle(asked, x) if oracle in OF_LOGITS else logits_of(oracle(asked), x)
                expected = np.exp(logits[:, : found.shape[1]])
                expected /= expected.sum(axis=1, keepdims=True)
                np.testing.assert_allclose(found, expected, atol=TOLERANCE)
                if client in then[name]:
                    moves[name].append(np.abs(found - then[name][client]).max())
            then[name] |= {client: predicted[client] for client in participants}
    for moved, oracle in zip(moves.values(), oracles, strict=True):
        # Nobody may have chosen the network of one of IFCA's clients.
        assert max(moved) == 0 if oracle in STAYS else max(moved) > 1e-3
