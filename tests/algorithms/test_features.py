"""Methods whose loss has a term of the features, against float64 oracles.

MOON, FedAS, FedProto, FedDBE, whose first exchange is with all clients, and FedPAC.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.mini_batches import (
    DROPPED,
    SEED,
    assert_close,
    assert_means,
    assert_own,
    clients_with,
    combine,
    dot,
    draw,
    flat,
    heads_of,
    held,
    model_with,
    own,
    rounds_of,
    sgd,
    simulation_of,
    train,
    weighted_mean,
)
from tests.algorithms.test_contract import whole_state
from tests.algorithms.test_mini_batches import TASKS
from tests.comparison import assert_identical
from tests.conftest import FEATURES, of_tasks
from tests.methods import thorough
from tests.oracles import averaging, batches, features, network, quadratic
from tf_pflego.core.participation import Participation
from tf_pflego.models.heads.combined import combined


def cosines(a, b):
    """The cosines of rows [n], 0 where one has no direction, and their gradient in `a` [n, M]."""
    norms = [np.linalg.norm(rows, axis=1, keepdims=True) for rows in (a, b)]
    of_a, of_b = (
        np.divide(rows, norm, out=np.zeros_like(rows), where=norm > 0)
        for rows, norm in zip((a, b), norms, strict=True)
    )
    cosine = np.sum(of_a * of_b, axis=1, keepdims=True)
    slope = np.divide(of_b - cosine * of_a, norms[0], out=np.zeros_like(a), where=norms[0] > 0)
    return cosine, slope


def contrast(server, last, weight, temperature):
    """The gradient of the contrastive loss in the features."""

    def slope(phi, x, y):
        near, near_slope = cosines(phi, features.of(server, x))
        far, far_slope = cosines(phi, features.of(last, x))
        positive, negative = np.exp(near / temperature), np.exp(far / temperature)
        share = negative / (positive + negative)
        return weight / len(y) * share * (far_slope - near_slope) / temperature

    return slope


# The slope of a contrast at this temperature turns a difference into one some times as large.
TOLERANCE = 3e-5


@of_tasks(*TASKS[:2])
def test_moon(tiny_model, tiny_clients):
    config = {"contrast_weight": 2.0, "contrast_temperature": 0.3}
    simulation = simulation_of("moon", tiny_model, tiny_clients, **config)
    last = {}

    def trained(w, client, number):
        gradient = features.with_term(contrast(w, last.get(client, w), 2.0, 0.3))
        last[client] = train(w, draw(tiny_clients, client, number), gradient)
        return last[client]

    def check(weights):
        assert_own(simulation, last, tolerance=TOLERANCE)

    assert_means(simulation, trained, check, TOLERANCE)


@pytest.mark.parametrize("config", [{}, thorough(DROPPED)], ids=["all batches", "full batches"])
def test_fedas(tiny_model, tiny_clients, config):
    asked = {"alignment_epochs": 2, "alignment_learning_rate": 0.2} | config
    simulation = simulation_of("fedas", tiny_model, tiny_clients, **asked)
    heads = [w[-1] for w in held(own(simulation), tiny_clients)]
    networks, norms = {}, {}

    def trained(body, i, number):
        *last, head = networks.get(i, [*body, heads[i]])
        x, y = network.of_client(tiny_clients.train, i)
        phi = features.of([*last, head], x)
        targets = np.array([phi[y == k].mean(axis=0) for k in np.unique(y)])
        for some, labels in draw(tiny_clients, i, number, stream=1, **config):
            phi = features.of([*body, head], some)
            counts = np.array([np.sum(labels == k) for k in labels])[:, None]
            slope = 2 * (phi - targets[labels]) / phi.shape[1] / counts
            towards = features.pull_back([*body, head], some, slope)[:-1]
            body = combine(body, -0.2, towards)
        networks[i] = train([*body, head], draw(tiny_clients, i, number, **config))
        drawn = draw(tiny_clients, i, number, stream=2, **config | {"local_epochs": 1})
        slopes = [batches.gradient(networks[i], *batch) for batch in drawn]
        norms[i] = np.mean([dot(slope, slope) for slope in slopes])
        return networks[i][:-1]

    def mean_of(bodies, clients, participants):
        sizes = averaging.sizes_of(clients, participants)
        return averaging.mean(bodies, sizes * [norms[i] for i in participants])

    def check(body):
        found = held(own(simulation), tiny_clients)
        for i, expected in networks.items():
            assert_close(found[i], expected)

    assert_means(simulation, trained, check, mean_of=mean_of)


# The global classes of the rows of each client's head. Nobody has class 1. When client 2 takes part
# for the first time, in the second round, class 2 has a prototype and class 4 has none.
CLASSES, WEIGHT = ([0, 3], [0, 2, 5], [2, 4]), 2.0


def run_and_compare(simulation, participants_of, over="clients"):
    """Runs rounds and compares them with the oracle; returns which prototypes there are."""
    clients = simulation.data
    personal, prototypes, of_clients = held(own(simulation), clients), {}, {}
    for number, participants in participants_of(simulation):
        of_classes = {}
        for i in participants:
            gradient = features.with_term(features.pull(prototypes, CLASSES[i], WEIGHT))
            personal[i] = train(personal[i], draw(clients, i, number), gradient)
            x, y = network.of_client(clients.train, i)
            phi = features.of(personal[i], x)
            of_clients[i] = {k: phi[y == k].mean(axis=0) for k in np.unique(y)}
            for k, own_prototype in of_clients[i].items():
                rows = [own_prototype] if over == "clients" else [*phi[y == k]]
                of_classes.setdefault(CLASSES[i][k], []).extend(rows)
        prototypes |= {j: np.mean(rows, axis=0) for j, rows in of_classes.items()}
        simulation.run_round()
        for j, is_known in enumerate(simulation.server_state.known):
            assert is_known == (j in prototypes)
            expected = prototypes.get(j, np.zeros(FEATURES))
            assert_close([simulation.server_state.prototypes[j]], [expected])
        for actual, expected in zip(held(own(simulation), clients), personal, strict=True):
            assert_close(actual, expected)
        found = own(simulation, "prototypes")
        for i, expected in of_clients.items():
            assert_close(found[i][0][: len(expected)], expected.values())
    return prototypes


def fedproto(*participation, over="clients"):
    """A simulation of clients that name classes differently."""
    settings = {"prototype_weight": WEIGHT, "prototype_mean": over}
    clients = clients_with(CLASSES)
    return simulation_of("fedproto", model_with(3, 6), clients, *participation, **settings)


@pytest.mark.parametrize("over", ["clients", thorough("examples")])
def test_fedproto_where_clients_name_classes_differently(over):
    prototypes = run_and_compare(fedproto(over=over), rounds_of, over)
    assert sorted(prototypes) == [0, 2, 3, 4, 5]


def test_a_class_that_nobody_reports_keeps_its_prototype():
    """Client 1 alone has class 5, which pulls at it when it comes back."""
    simulation = fedproto(Participation(3, 1))
    drawn = [simulation.participation.draw(SEED, number).tolist() for number in range(1, 20)]
    first = drawn.index([1])
    again = drawn.index([1], next(k for k in range(first, 19) if drawn[k] != [1]))
    run_and_compare(simulation, lambda _: enumerate(drawn[: again + 1], start=1))


KAPPA, MEAN_MOMENTUM = 2.0, 0.7
CONFIG = {"mean_weight": KAPPA, "mean_momentum": MEAN_MOMENTUM}


def with_bias(weights, bias, drawn, mean=None):
    """Returns the network and the bias after training, and the running mean of the features."""
    optimizer, running = sgd(), np.zeros(FEATURES)
    for x, y in drawn:
        phi = features.of(weights, x)
        running = (1 - MEAN_MOMENTUM) * running + MEAN_MOMENTUM * phi.mean(axis=0)
        inputs = np.column_stack([phi + bias, np.ones(len(y))])
        of_loss = network.losses(inputs @ weights[-1].T, y)[1] / len(y)
        slope = of_loss @ weights[-1][:, :-1]
        of_bias = slope.sum(axis=0) if mean is not None else 0 * bias
        if mean is not None:
            slope = slope + KAPPA * 2 / FEATURES * (running - mean) * MEAN_MOMENTUM / len(y)
        gradient = features.pull_back(weights, x, slope)
        gradient[-1] = of_loss.T @ inputs
        *weights, bias = optimizer.step([*weights, bias], [*gradient, of_bias])
    return weights, bias, running


@of_tasks(*TASKS[:2])
def test_feddbe(tiny_model, tiny_clients):
    simulation = simulation_of("feddbe", tiny_model, tiny_clients, **CONFIG)
    w, bias = flat(simulation.server_state.weights), [np.zeros(FEATURES)] * 3
    first = [with_bias(w, bias[i], draw(tiny_clients, i, 1))[-1] for i in range(3)]
    (mean,) = weighted_mean([[one] for one in first], tiny_clients, range(3))

    def trained(w, i, number):
        drawn = draw(tiny_clients, i, number, exchange=1)
        weights, bias[i], _ = with_bias(w, bias[i], drawn, mean)
        return weights

    def check(w):
        assert_close([simulation.server_state.mean], [mean])
        assert_own(simulation, [[one] for one in bias], "bias")

    assert_means(simulation, trained, check)


def test_the_first_exchange_of_feddbe_is_with_all_clients_once(tiny_model, tiny_clients, tmp_path):
    """Also in a run that is restored after it, and who joins later takes the mean as it is."""
    simulation, restored = (
        simulation_of("feddbe", tiny_model, tiny_clients, Participation(3, 1), **CONFIG)
        for _ in range(2)
    )
    network_size = sum(leaf.size for leaf in flat(simulation.server_state.weights))
    sent, back = 4 * (network_size + FEATURES), 4 * (network_size + 1)
    of_first = 3 * sent, 3 * 4 * (FEATURES + 1)
    for number in (1, 2):
        simulation.save(tmp_path)
        record = simulation.run_round()
        expected = np.array([sent, back]) + (of_first if number == 1 else 0)
        assert [record["bytes_down"], record["bytes_up"]] == expected.tolist()
        assert record["participants"] == (3 if number == 1 else 1)
    restored.restore(tmp_path)
    restored.run_round()
    assert_identical(whole_state(simulation), whole_state(restored))
    mean = flat(simulation.server_state.mean)
    simulation.change_clients(leave=[0], join=tiny_clients)
    assert simulation.run_round()["participants"] == 1
    assert_close(flat(simulation.server_state.mean), mean)
    still_new = np.setdiff1d([2, 3, 4], simulation.participation.draw(SEED, 3))
    assert not np.any(simulation.client_states(still_new).bias)


def moments(phi, classes):
    """The shares of the classes, these times their means, and the variance of that."""
    counted = np.eye(3)[classes]
    means = counted.T @ phi / len(phi)
    variance = (np.mean(np.sum(phi**2, axis=1)) - np.sum(means**2)) / len(phi)
    return counted.mean(axis=0), means, variance


@pytest.mark.parametrize(
    ("labels", "weight", "epochs"), [("global", 0.7, 1), thorough("own", 3.0, 2)]
)
def test_fedpac(tiny_model, tiny_clients, labels, weight, epochs):
    """Theta, the centroids and the heads of all clients, after each round.

    Labels are the clients' own, two or all of three; or their heads have all rows.
    """
    if labels == "global":
        changes = {"num_classes": [3] * 3, "label_space": "global"}
    else:
        changes = {"classes": ([0, 2], [0, 1, 2], [0, 1])}
    clients = dataclasses.replace(tiny_clients, **changes)
    rows = [list(range(3)) if labels == "global" else [*one] for one in clients.classes]
    config = {"centroid_weight": weight, "head_epochs": epochs}
    simulation = simulation_of("fedpac", tiny_model, clients, **config)
    heads, centroids, moved, shares = heads_of(simulation), {}, {}, []

    def trained(theta, client, number):
        x, y = network.of_client(clients.train, client)
        classes = np.array(rows[client])[y]

        def of_head(head, x, y):
            return batches.gradient([*theta, *head], x, y)[-1:]

        drawn = draw(clients, client, number, stream=1, local_epochs=epochs)
        (head,) = train([heads[client]], drawn, of_head)
        of_network = features.with_term(features.pull(centroids, rows[client], weight))

        def of_body(body, x, y):
            return of_network([*body, head], x, y)[:-1]

        body = train(theta, draw(clients, client, number), of_body)
        before, after = (moments(features.of([*w, head], x), classes) for w in (theta, body))
        moved[client] = head, before, after
        return body

    def combined_row(k, a):
        """The mean of the row of class k over those that have it."""
        weights = {i: w for i, w in zip(moved, a, strict=True) if k in rows[i]}
        own_rows = [moved[i][0][rows[i].index(k)] for i in weights]
        return np.average(own_rows, axis=0, weights=[*weights.values()])

    def check(theta):
        after = [one[:2] for _, _, one in moved.values()]
        counted, sums = weighted_mean(after, clients, moved)
        centroids.update({k: sums[k] / counted[k] for k in np.flatnonzero(counted)})
        _, means, variances = zip(*(before for _, before, _ in moved.values()), strict=True)
        for client, (_, before, _) in moved.items():
            apart = (before[1] - np.array(means)).reshape(len(means), -1)
            p = apart @ apart.T + np.diag(variances)
            shares.append(quadratic.by_all_supports(p, np.zeros(len(p))))
            heads[client] = np.array([combined_row(k, shares[-1]) for k in rows[client]])
        moved.clear()
        server = simulation.server_state
        known = np.flatnonzero(server.known)
        assert known.tolist() == sorted(centroids)
        assert_close(np.asarray(server.centroids)[known], [centroids[k] for k in known])
        assert_close(heads_of(simulation), heads)

    assert_means(simulation, trained, check)
    assert any(((a > 0.01) & (a < 0.99)).any() for a in shares)  # Some heads were combined.


def test_a_row_of_a_head_that_no_weighted_participant_has_stays():
    """Client 0 has the most spread features and weighs 1 alone, but lacks class 1."""
    heads = tf.constant([[[1.0, 2.0], [0.0, 0.0]], [[3.0, 4.0], [5.0, 6.0]]])
    present, means = tf.constant([[1.0, 0.0], [1.0, 1.0]]), tf.zeros([2, 2, 1])
    found = combined(heads, present, means, tf.constant([0.0, 1e6]))
    np.testing.assert_allclose(found[:, 0], [[1, 2]] * 2, atol=1e-5)
    np.testing.assert_allclose(found[1, 1], [5, 6], atol=1e-5)
