"""FedPAC against a float64 oracle that draws the same batches."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.mini_batches import (
    assert_close,
    draw,
    flat,
    own,
    rounds_of,
    simulation_of,
    train,
    weighted_mean,
)
from tests.conftest import make_clients
from tests.methods import thorough
from tests.oracles import batches, network, quadratic
from tf_pflego.models.heads.combined import combined

CLASSES, FEATURES = 3, 5


def moments(phi, classes):
    """The shares of the classes, these times their means, and the variance of that."""
    counted = np.eye(CLASSES)[classes]
    means = counted.T @ phi / len(phi)
    variance = (np.mean(np.sum(phi**2, axis=1)) - np.sum(means**2)) / len(phi)
    return counted.mean(axis=0), means, variance


def features(theta, x):
    return network.forward(theta, np.zeros((1, FEATURES + 1)), x)[1]


class Oracle:
    """The server's theta and centroids, and the clients' heads in rows of global classes."""

    def __init__(self, simulation, **config):
        self.clients, self.config = simulation.data, config
        self.theta, self.centroids = flat(simulation.server_state.weights), {}
        self.rows = [
            np.arange(CLASSES) if self.clients.label_space == "global" else np.asarray(one)
            for one in self.clients.classes
        ]
        self.heads = [
            head[: len(rows)]
            for (head,), rows in zip(own(simulation, "head"), self.rows, strict=True)
        ]
        self.weights = []

    def of_body(self, client):
        """The gradient of the loss with the pull towards the centroids, under the client's head."""
        head, classes = self.heads[client], self.rows[client]

        def gradient(theta, x, y):
            before, phi, _ = network.forward(theta, head, x)
            apart = np.zeros_like(phi)
            for row, k in enumerate(classes[y]):
                if k in self.centroids:
                    apart[row] = phi[row] - self.centroids[k]
            g = 2 * self.config["centroid_weight"] / apart.size * apart * (before > 0)
            of_loss = batches.gradient([*theta, head], x, y)[:-1]
            return [a + b for a, b in zip(of_loss, [x.T @ g, g.sum(axis=0)], strict=True)]

        return gradient

    def trained(self, client, number):
        """The body and the moments before and after; the head moves at once."""
        x, y = network.of_client(self.clients.train, client)
        classes = self.rows[client][y]
        before = moments(features(self.theta, x), classes)

        def of_head(head, x, y):
            return batches.gradient([*self.theta, *head], x, y)[-1:]

        epochs = {"local_epochs": self.config["head_epochs"]}
        drawn = draw(self.clients, client, number, stream=1, **epochs)
        (self.heads[client],) = train([self.heads[client]], drawn, of_head)
        theta = train(self.theta, draw(self.clients, client, number), self.of_body(client))
        return theta, before, moments(features(theta, x), classes)

    def run(self, participants, number):
        results = [self.trained(client, number) for client in participants]
        bodies, before, after = zip(*results, strict=True)
        self.theta = weighted_mean(bodies, self.clients, participants)
        shares, sums = weighted_mean([one[:2] for one in after], self.clients, participants)
        for k in np.flatnonzero(shares):
            self.centroids[k] = sums[k] / shares[k]
        heads = [self.heads[client] for client in participants]
        for i, client in enumerate(participants):
            apart = np.array([before[i][1] - one[1] for one in before]).reshape(len(before), -1)
            p = apart @ apart.T + np.diag([one[2] for one in before])
            a = quadratic.by_all_supports(p, np.zeros(len(p)))
            self.weights.append(a)
            self.heads[client] = np.array(
                [self.row(k, a, participants, heads) for k in self.rows[client]]
            )

    def row(self, k, a, participants, heads):
        """The mean of the row of class k over those that have it."""
        total, count = 0, 0
        for weight, client, head in zip(a, participants, heads, strict=True):
            if k in self.rows[client]:
                total += weight * head[list(self.rows[client]).index(k)]
                count += weight
        return total / count


def clients_with(tiny_clients, labels):
    """Clients whose labels are their own, two or all of three; or whose heads have all rows."""
    if labels == "global":
        return dataclasses.replace(tiny_clients, num_classes=[3] * 3, label_space="global")
    return dataclasses.replace(make_clients(), classes=([0, 2], [0, 1, 2], [0, 1]))


@pytest.mark.parametrize("labels", [thorough("own"), "global"])
@pytest.mark.parametrize(("weight", "epochs"), [(0.7, 1), thorough(3.0, 2), thorough(0.0, 0)])
def test_fedpac(tiny_model, tiny_clients, labels, weight, epochs):
    """Theta, the centroids and the heads of all clients, after each round."""
    config = {"centroid_weight": weight, "head_epochs": epochs}
    clients = clients_with(tiny_clients, labels)
    simulation = simulation_of("fedpac", tiny_model, clients, **config)
    oracle = Oracle(simulation, **config)
    for number, participants in rounds_of(simulation):
        oracle.run(participants, number)
        simulation.run_round()
        server = simulation.server_state
        assert_close(flat(server.weights), oracle.theta)
        known = np.flatnonzero(server.known)
        assert known.tolist() == sorted(oracle.centroids)
        assert_close(np.asarray(server.centroids)[known], [oracle.centroids[k] for k in known])
        for (head,), rows, expected in zip(
            own(simulation, "head"), oracle.rows, oracle.heads, strict=True
        ):
            assert_close([head[: len(rows)]], [expected])
            assert not head[len(rows) :].any()
    assert any(((a > 0.01) & (a < 0.99)).any() for a in oracle.weights)  # Some heads were combined.


def test_a_row_that_no_weighted_participant_has_stays():
    """Client 0 has the most spread features and weighs 1 alone, but lacks class 1."""
    heads = tf.constant([[[1.0, 2.0], [0.0, 0.0]], [[3.0, 4.0], [5.0, 6.0]]])
    present, means = tf.constant([[1.0, 0.0], [1.0, 1.0]]), tf.zeros([2, 2, 1])
    found = combined(heads, present, means, tf.constant([0.0, 1e6]))
    np.testing.assert_allclose(found[:, 0], [[1, 2]] * 2, atol=1e-5)
    np.testing.assert_allclose(found[1, 1], [5, 6], atol=1e-5)


def test_clients_of_one_kind_combine_their_heads_and_those_of_others_do_not():
    """Two kinds, far apart in their mean features: the mean of heads is that of each kind."""
    rng = np.random.default_rng(0)
    heads = rng.normal(size=(4, 3, 6)).astype(np.float32)
    means = np.repeat(rng.normal(size=(2, 3, 5)), 2, axis=0).astype(np.float32)
    found = combined(heads, tf.ones([4, 3]), means, tf.constant([1e-3, 3e-3, 2e-3, 2e-3])).numpy()
    first = 0.75 * heads[0] + 0.25 * heads[1]  # The weights are as 1 / v.
    np.testing.assert_allclose(found[:2], [first, first], atol=1e-3)
    np.testing.assert_allclose(found[2:], [heads[2:].mean(axis=0)] * 2, atol=1e-3)
