"""The attackers are those that are named, they do what is said, and nobody else changes."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.aggregation.probe import probe
from tests.algorithms.test_contract import build, everyone, whole_state
from tests.comparison import assert_identical
from tests.conftest import of_tasks
from tests.methods import each_of
from tf_pflego.aggregation.attacks import ATTACKS, attackers_of, with_attackers
from tf_pflego.aggregation.wrapping import Wrapped
from tf_pflego.core.algorithm import Client, ClientResult, Round
from tf_pflego.core.participation import Participation
from tf_pflego.simulation.simulation import Simulation

SIZE, SHARE, SEED = 400, 0.3, 4
IDS = np.arange(40)


def uploads(algorithm, round_seed=7, labels=(0, 2, 1), classes=(0, 1, 2)):
    """What each of forty clients of a probe uploads in a round, a row for each."""
    zero = tf.constant(0)
    round_ = Round(zero, tf.zeros([2], tf.int32), tf.zeros([]), zero, tf.zeros([]))
    rows, (exchange,) = [], algorithm.exchanges
    for identity in IDS:
        client = Client(
            examples=tf.zeros([len(labels), 4]),
            labels=tf.constant(labels),
            num_examples=tf.constant(len(labels)),
            classes=tf.constant(classes),
            client_weight=tf.constant(0.5),
            seed=tf.constant([round_seed, identity], tf.int32),
        )
        state = Wrapped(tf.zeros([]), ((),))
        result = exchange.client_update(Wrapped((), ()), state, client, round_)
        rows.append(np.concatenate([np.ravel(result.summed), np.ravel(result.averaged)]))
    return np.stack(rows)


@pytest.fixture(scope="module")
def honest():
    vectors = np.random.default_rng(0).normal(size=(len(IDS), SIZE)).astype(np.float32)
    return np.concatenate([vectors / 2, vectors], axis=1)  # The weight of a client is 1/2.


@pytest.fixture(scope="module")
def attackers():
    chosen = attackers_of(IDS, SHARE, SEED)
    assert abs(chosen.sum() - SHARE * len(IDS)) <= 2
    return chosen


def test_attackers_upload_minus_four_times_what_they_should(tiny_model, honest, attackers):
    algorithm = with_attackers(
        probe(tiny_model, honest[:, SIZE:], SIZE), "sign_flip", SHARE, seed=SEED
    )
    expected = np.where(attackers[:, None], -4 * honest, honest)
    np.testing.assert_array_equal(uploads(algorithm), expected)


def test_attackers_upload_noise_of_ten_times_the_length(tiny_model, honest, attackers):
    algorithm = with_attackers(probe(tiny_model, honest[:, SIZE:], SIZE), "noise", SHARE, seed=SEED)
    first, next_round = uploads(algorithm), uploads(algorithm, round_seed=8)
    for sent in (first, next_round):
        np.testing.assert_array_equal(sent[~attackers], honest[~attackers])
    for half in np.split(np.arange(2 * SIZE), 2):
        times = np.linalg.norm(first[:, half], axis=1) / np.linalg.norm(honest[:, half], axis=1)
        np.testing.assert_allclose(times[attackers], 10, rtol=0.2)
    # All draws differ: between rounds, clients, and what is summed and averaged.
    drawn = np.concatenate([*np.split(first[attackers], 2, axis=1), next_round[attackers]], axis=1)
    parts = np.concatenate(np.split(drawn, 4, axis=1))
    alike = np.abs(np.corrcoef(parts) - np.eye(len(parts)))
    assert alike.max() < 0.3


@pytest.mark.parametrize(
    ("labels", "classes", "flipped"),
    [
        ((0, 2, 1), (0, 1, 2), (2, 0, 1)),
        ((0, 1, 0), (5, 7, -1), (1, 0, 1)),  # It has two of the three rows of a head,
        ((0, 2, 2), (0, -1, 2), (2, 0, 0)),  # with a class mask any two.
        (((0, -1), (2, 1)), (0, 1, 2), ((2, -1), (0, 1))),  # Positions, one without a label.
    ],
)
def test_attackers_train_on_wrong_labels(labels, classes, flipped, tiny_model, attackers):
    def client_update(message, state, client, round_):
        return ClientResult((), state, averaged=tf.cast(client.labels, tf.float32))

    told = probe(tiny_model, np.zeros([len(IDS), 1]), 1)
    exchange = dataclasses.replace(told.exchanges[0], client_update=client_update)
    told = dataclasses.replace(told, exchanges=(exchange,))
    algorithm = with_attackers(told, "label_flip", SHARE, seed=SEED)
    expected = np.where(attackers[:, None], np.ravel(flipped), np.ravel(labels))
    np.testing.assert_array_equal(uploads(algorithm, labels=labels, classes=classes), expected)


def test_who_attacks_follows_from_identity_share_and_seed():
    identities = np.random.default_rng(1).permutation(2**31 - 1 - np.arange(500))
    chosen = attackers_of(identities, 0.2, 5)
    assert abs(chosen.sum() - 100) <= 2
    np.testing.assert_array_equal(attackers_of(identities[:50], 0.2, 5), chosen[:50])
    assert (attackers_of(identities, 0.2, 6) != chosen).any()
    # More attackers are the same ones and others.
    assert attackers_of(identities, 0.4, 5)[chosen].all()
    assert not attackers_of(identities, 0.0, 5).any()
    assert attackers_of(identities, 1.0, 5).all()


def after_a_round(algorithm, clients):
    """All states after a round of all clients, and those of the clients."""
    with Simulation(algorithm, clients, Participation(3, 3), "in_process", 6) as simulation:
        simulation.run_round()
        return whole_state(simulation), everyone(simulation)


@pytest.mark.parametrize("attack", each_of(ATTACKS, ("noise",)))
def test_who_does_not_attack_does_what_it_did(attack, tiny_model, tiny_clients):
    plain = build("pflego", tiny_model)
    everything, clients = after_a_round(plain, tiny_clients)
    share, seed = 0.4, 1
    chosen = attackers_of(tiny_clients.identities, share, seed)
    assert chosen.sum() == 1
    changed, others = after_a_round(with_attackers(plain, attack, share, seed=seed), tiny_clients)
    assert any((a != b).any() for a, b in zip(changed[:2], everything[:2], strict=True))
    # What an attacker keeps is changed by wrong labels alone.
    kept = np.logical_not(chosen) if attack == "label_flip" else slice(None)
    assert_identical([leaf[kept] for leaf in others], [leaf[kept] for leaf in clients])


@of_tasks("regression")
def test_only_classes_are_flipped(tiny_model, tiny_clients):
    with pytest.raises(ValueError, match="`attack` must be sign_flip or noise without classes"):
        with_attackers(build("pflego", tiny_model), "label_flip", 0.2)
