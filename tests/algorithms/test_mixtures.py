"""Methods whose clients mix what the server has with their own, or choose from it.

FedALA, IFCA and pFedFDA against float64 oracles that draw the same batches.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.algorithms.mini_batches import (
    DROPPED,
    SEED,
    assert_close,
    assert_means,
    assert_own,
    combine,
    deal,
    draw,
    flat,
    own,
    rounds_of,
    simulation_of,
    train,
    weighted_mean,
)
from tests.comparison import assert_identical
from tests.conftest import built, make_clients
from tests.methods import each_of, thorough
from tests.oracles import batches, gaussian, network
from tf_pflego.core.shuffles import shuffled
from tf_pflego.models.heads.gaussian import discriminant


def started(shared, own_weights, mixing):
    """The weights that a client starts from."""
    p = len(mixing)
    pairs = zip(own_weights[-p:], shared[-p:], mixing, strict=True)
    return shared[:-p] + [a + (b - a) * w for a, b, w in pairs]


def learnt(shared, own_weights, mixing, data, seed, passes, **config):
    """The mixing weights after their training, and how many passes it took."""
    (x, y), rate, p = data, config["mixing_learning_rate"], len(mixing)
    rows = shuffled(tf.constant(len(y)), seed).numpy()
    rows = rows[: max(1, int(np.float32(config["mixing_share"]) * np.float32(len(y))))]
    batching = {key: config[key] for key in ("batch_size", "drop_last_batch") if key in config}
    for number in range(passes):
        before = mixing
        of_pass = tf.random.experimental.stateless_fold_in(seed, number)
        for batch in deal(x[rows], y[rows], of_pass, stream=1, local_epochs=1, **batching):
            g = batches.gradient(started(shared, own_weights, mixing), *batch)[-p:]
            ways = [b - a for a, b in zip(own_weights[-p:], shared[-p:], strict=True)]
            trios = zip(mixing, g, ways, strict=True)
            mixing = [np.clip(w - rate * slope * way, 0, 1) for w, slope, way in trios]
        if max(np.abs(a - b).max() for a, b in zip(mixing, before, strict=True)) <= 0.01:
            return mixing, number + 1
    return mixing, passes


MIXING = {"mixed_tensors": 1, "mixing_share": 0.6, "mixing_learning_rate": 1.0}
CASES = {
    "classifier": MIXING,
    "more, full batches": MIXING
    | DROPPED
    | {"mixed_tensors": 2, "mixing_passes": 4, "server_learning_rate": 0.5},
    "all": MIXING | {"mixed_tensors": 9, "mixing_share": 1.0, "mixing_learning_rate": 30.0},
}


@pytest.mark.parametrize("case", each_of(CASES, ("classifier",)))
def test_fedala(tiny_model, tiny_clients, case):
    """Shared, own and mixing weights; some mixing weights reach a bound."""
    config = CASES[case]
    simulation = simulation_of("fedala", tiny_model, tiny_clients, **config)
    networks, drawn_by = own(simulation), DROPPED if "batch_size" in config else {}
    p = min(config["mixed_tensors"], len(networks[0]))
    mixing, is_new = [[np.ones_like(leaf) for leaf in networks[0][-p:]]] * 3, [True] * 3
    taken = set()

    def trained(shared, client, number):
        data = network.of_client(tiny_clients.train, client)
        if number > 1:  # In the first round all networks are the same.
            seed = batches.round_seed(SEED, client, number)
            most = config.get("mixing_passes", 20) if is_new[client] else 1
            mixing[client], passes = learnt(
                shared, networks[client], mixing[client], data, seed, most, **config
            )
            taken.add(passes)
            is_new[client] = False
        start = started(shared, networks[client], mixing[client])
        networks[client] = train(start, draw(tiny_clients, client, number, **drawn_by))
        return networks[client]

    def check(shared):
        assert_own(simulation, networks)
        assert_own(simulation, mixing, "mixing")
        assert simulation.client_states(range(3)).is_new.tolist() == is_new

    assert_means(simulation, trained, check, rate=config.get("server_learning_rate", 1))
    moved = np.concatenate([leaf.ravel() for one in mixing for leaf in one])
    assert ((moved > 0) & (moved < 1)).any()
    assert 1 in taken and max(taken) > 2, taken


def networks_of(simulation):
    """The server's networks, each a flat list."""
    leaves = flat(simulation.server_state.models)
    return [list(one) for one in zip(*leaves, strict=True)]


def losses_of(networks, clients, client):
    x, y = network.of_client(clients.train, client)
    return [network.loss(one[:-1], one[-1], x, y) for one in networks]


def test_ifca(tiny_model, tiny_clients):
    """Networks start from one body with heads of their own; clients like different ones best."""
    simulation = simulation_of("ifca", tiny_model, tiny_clients, num_clusters=3)
    first, *others = networks_of(simulation)
    assert_identical(first, flat(tiny_model.initial_weights()))
    for other in others:
        assert_identical(first[:-1], other[:-1])
        assert (first[-1][:, :-1] != other[-1][:, :-1]).all()
    heads = simulation.server_state.models.head
    drawn = tf.constant(np.random.default_rng(10).normal(0, 0.3, heads.shape), tf.float32)
    models = simulation.server_state.models._replace(head=drawn)
    simulation.server_state = simulation.server_state._replace(models=models)
    networks, chosen = networks_of(simulation), []
    for number, participants in rounds_of(simulation):
        choices = {i: int(np.argmin(losses_of(networks, tiny_clients, i))) for i in participants}
        chosen.append(set(choices.values()))
        moved = list(networks)
        for cluster in chosen[-1]:
            members = [i for i in participants if choices[i] == cluster]
            trained = [train(networks[cluster], draw(tiny_clients, i, number)) for i in members]
            moved[cluster] = weighted_mean(trained, tiny_clients, members)
        networks = moved
        simulation.run_round()
        for actual, expected in zip(networks_of(simulation), networks, strict=True):
            assert_close(actual, expected)
    assert any(len(some) < len(networks) for some in chosen)  # Nobody chose one of them.
    assert len(set.union(*chosen)) > 1


def test_of_equal_networks_the_first_is_chosen(tiny_model, tiny_clients):
    simulation = simulation_of("ifca", tiny_model, tiny_clients, num_clusters=3)
    models = simulation.server_state.models
    same = models._replace(head=tf.stack([models.head[0]] * 3))
    simulation.server_state = simulation.server_state._replace(models=same)
    before = networks_of(simulation)
    simulation.run_round()
    first, *others = networks_of(simulation)
    for other, unchanged in zip(others, before[1:], strict=True):
        assert_identical(other, unchanged)
    assert max(np.abs(leaf).max() for leaf in combine(first, -1, before[0])) > 1e-3


@pytest.mark.parametrize(
    ("labels", "shrinkage", "identity"),
    [thorough("own", 0.05, 0.0), ("global", 1e-4, 1.0), thorough("few", 0.05, 0.3)],
)
def test_pfedfda(tiny_model, tiny_clients, labels, shrinkage, identity):
    """Theta, means and covariance of all.

    A client without examples of a class has the mean of all, and with one example Sigma too. It
    counts its own classes alone.
    """
    clients, shares = make_clients((1, 2, 2), (1, 2, 2), (1, 1, 2)), []
    if labels == "global":
        changes = {"num_classes": [3] * 3, "label_space": "global"}
        clients = dataclasses.replace(tiny_clients, **changes)
    elif labels == "own":  # Two of three, or all.
        classes = [0, 2], [0, 1, 2], [1, 2]
        clients = dataclasses.replace(make_clients((13, 17, 12)), classes=classes)
    config = {"covariance_shrinkage": shrinkage, "covariance_identity": identity}
    simulation = simulation_of("pfedfda", tiny_model, clients, **config)

    def trained(sent, client, number):
        *theta, means, covariance = sent
        rows = np.arange(3) if labels == "global" else np.asarray(clients.classes[client])
        x, y = network.of_client(clients.train, client)
        of_all, priors = (means[rows], covariance), np.bincount(y, minlength=len(rows)) / len(y)
        priors = priors + 1e-4
        head = gaussian.head(*of_all, priors, shrinkage)

        def of_body(theta, x, y):
            return batches.gradient([*theta, head], x, y)[:-1]

        theta = train(theta, draw(clients, client, number), of_body)
        phi, means = network.forward(theta, head, x)[1], means.copy()
        mixture = gaussian.interpolated(phi, y, of_all, priors, shrinkage, identity)
        (means[rows], covariance), share = mixture
        shares.append(share)
        return [*theta, means, covariance]

    assert_means(simulation, trained, part=lambda server: server)
    assert labels == "few" or len(set(shares)) > 1


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
    noisy = pfl.with_dp(algorithm, participation, num_rounds=9, noise_multiplier=3.0, clip_norm=2.0)
    with pfl.Simulation(noisy, tiny_clients, participation, "in_process") as simulation:
        for _ in range(3):
            simulation.run_round()
        covariance = simulation.server_state.method.covariance
        np.testing.assert_allclose(covariance, np.transpose(covariance), atol=1e-5)
        assert np.linalg.eigvalsh(covariance).min() > -1e-4 * np.abs(covariance).max()
        assert np.isfinite(simulation.evaluate().train_loss).all()
