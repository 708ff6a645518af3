"""pFedFDA against a float64 oracle that draws the same batches, and its classifier by itself."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.algorithms.mini_batches import (
    assert_close,
    draw,
    flat,
    rounds_of,
    simulation_of,
    train,
    weighted_mean,
)
from tests.conftest import built, make_clients
from tests.methods import thorough
from tests.oracles import batches, gaussian, network
from tf_pflego.models.heads.gaussian import discriminant


class Oracle:
    """The server's theta, means and covariance, and what clients make of them."""

    def __init__(self, simulation, shrinkage, identity):
        *self.theta, self.means, self.covariance = flat(simulation.server_state)
        self.clients, self.shares = simulation.data, []
        self.shrinkage, self.identity = shrinkage, identity

    def of_client(self, client):
        """Its mu and Sigma of all, and its pi: of its own classes alone."""
        rows = np.asarray(self.clients.classes[client])
        if self.clients.label_space == "global":
            rows = np.arange(3)
        y = self.clients.train.of(client)[1]
        priors = np.bincount(y, minlength=len(rows)) / len(y) + 1e-4
        return rows, (self.means[rows], self.covariance), priors

    def adapted(self, theta, client):
        x, y = network.of_client(self.clients.train, client)
        _, of_all, priors = self.of_client(client)
        phi = network.forward(theta, np.zeros((1, len(self.covariance) + 1)), x)[1]
        estimated, share = gaussian.interpolated(
            phi, y, of_all, priors, self.shrinkage, self.identity
        )
        self.shares.append(share)
        return estimated

    def trained(self, client, number):
        """[*theta, means, covariance] that the client would have the server take."""
        rows, of_all, priors = self.of_client(client)
        head = gaussian.head(*of_all, priors, self.shrinkage)

        def of_body(theta, x, y):
            return batches.gradient([*theta, head], x, y)[:-1]

        theta = train(self.theta, draw(self.clients, client, number), of_body)
        means, (own, covariance) = self.means.copy(), self.adapted(theta, client)
        means[rows] = own
        return [*theta, means, covariance]

    def take(self, uploads, participants):
        mean = weighted_mean(uploads, self.clients, participants)
        *self.theta, self.means, self.covariance = mean


def clients_with(tiny_clients, labels):
    """Clients whose labels are their own, two of three; or whose rows of heads are all three."""
    if labels == "global":
        return dataclasses.replace(tiny_clients, num_classes=[3] * 3, label_space="global")
    if labels == "own":
        clients = make_clients((13, 17, 12))
        return dataclasses.replace(clients, classes=([0, 2], [0, 1, 2], [1, 2]))
    return dataclasses.replace(make_clients((1, 2, 2), (1, 2, 2), (1, 1, 2)))


@pytest.mark.parametrize(
    ("labels", "shrinkage", "identity"),
    [
        thorough("own", 0.05, 0.0),
        ("global", 0.5, 0.0),
        ("global", 1e-4, 1.0),
        thorough("few", 0.05, 0.3),
    ],
)
def test_pfedfda(tiny_model, tiny_clients, labels, shrinkage, identity):
    """A client without examples of a class has the mean of all, and with one example Sigma too."""
    clients = clients_with(tiny_clients, labels)
    config = {"covariance_shrinkage": shrinkage, "covariance_identity": identity}
    simulation = simulation_of("pfedfda", tiny_model, clients, **config)
    oracle = Oracle(simulation, shrinkage, identity)
    for number, participants in rounds_of(simulation):
        oracle.take([oracle.trained(client, number) for client in participants], participants)
        simulation.run_round()
        found, expected = flat(simulation.server_state), [oracle.means, oracle.covariance]
        assert_close(found, [*oracle.theta, *expected])
    assert labels == "few" or len(set(oracle.shares)) > 1


def test_the_head_gives_the_probabilities_of_gaussians():
    """By their densities; and of several at once it gives each."""
    rng = np.random.default_rng(0)
    means, root = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 4, 4))
    covariance, priors = root @ root.transpose(0, 2, 1) + np.eye(4), np.array([0.5, 0.2, 0.3])
    both = discriminant(
        tf.constant(means, tf.float32), tf.constant(covariance, tf.float32), np.log(priors), 1e-9
    )
    x = rng.normal(size=(6, 4))
    for one, sigma, head in zip(means, covariance, both.numpy(), strict=True):
        apart = x[:, None] - one
        squares = np.einsum("nkm,ml,nkl->nk", apart, np.linalg.inv(sigma), apart)
        expected = priors * np.exp(-squares / 2)
        got = np.exp(x @ head[:, :-1].T + head[:, -1])
        np.testing.assert_allclose(
            got / got.sum(1)[:, None], expected / expected.sum(1)[:, None], atol=1e-5
        )


def test_features_that_are_all_zero_give_the_shares_of_the_classes():
    priors = np.log([0.6, 0.4]).astype(np.float32)
    head = discriminant(tf.zeros([2, 3]), tf.zeros([3, 3]), priors, 0.01)
    np.testing.assert_allclose(head, np.column_stack([np.zeros((2, 3)), priors]), atol=1e-7)


@pytest.mark.thorough
def test_a_covariance_that_uploads_have_spoilt_has_no_negative_eigenvalues(
    tiny_model, tiny_clients
):
    """As noise does; then heads can still be made of it."""
    algorithm = built("pfedfda", tiny_model)
    participation = pfl.Participation(3, 2)
    noisy = pfl.private(algorithm, participation, num_rounds=9, noise_multiplier=3.0, clip_norm=2.0)
    with pfl.Simulation(noisy, tiny_clients, participation, "in_process") as simulation:
        for _ in range(3):
            simulation.run_round()
        covariance = simulation.server_state.method.covariance
        np.testing.assert_allclose(covariance, np.transpose(covariance), atol=1e-5)
        assert np.linalg.eigvalsh(covariance).min() > -1e-4 * np.abs(covariance).max()
        assert np.isfinite(simulation.evaluate().train_loss).all()


@pytest.mark.thorough
def test_clients_that_never_took_part_are_served_alike(tiny_model, tiny_clients):
    simulation = simulation_of("pfedfda", tiny_model, tiny_clients)
    simulation.run_round()
    new = pfl.NewClients(simulation, tiny_clients, steps=0)
    for client, served in enumerate(new.learnt()):
        assert_close(flat(served.weights), flat(simulation.served_weights(client)))
