"""Positions of sequences are examples; those without a label change nothing."""

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.comparison import assert_near
from tests.conftest import build_method
from tests.methods import each_of

layers = tf.keras.layers
LENGTH, INPUTS, CLASSES = 6, 4, 3
METHODS = ("pflego", "fedavg", "pflego_shared_head", "fedrod", "moon", "fedproto", "feddbe")
METHODS += ("fedas", "fedcp", "pfedfda", "fedpac")


def sequences(count, rng):
    """Sequences of different lengths, each with a label in its first position."""
    labels = rng.integers(0, CLASSES, (count, LENGTH))
    labels[:, 1:][rng.random((count, LENGTH - 1)) < 0.4] = -1
    return rng.normal(size=(count, LENGTH, INPUTS)).astype(np.float32), labels


def padded_pairs():
    rng = np.random.default_rng(3)
    return [[sequences(count, rng) for count in counts] for counts in ((4, 2, 5), (3, 2, 2))]


def clients_of(pairs):
    return pfl.from_arrays(*pairs, label_space="global", num_classes=CLASSES)


def separate(pair):
    examples, labels = pair
    return examples[labels >= 0], labels[labels >= 0]


def body(shape):
    tf.keras.utils.set_random_seed(2)
    first = tf.keras.Input(shape)
    return tf.keras.Sequential([first, layers.Dense(5, activation="tanh", name="dense")])


@pytest.fixture(scope="module", name="padded")
def padded_fixture():
    return clients_of(padded_pairs())


@pytest.fixture(scope="module", name="model")
def model_fixture():
    return pfl.SplitModel(body((LENGTH, INPUTS)), CLASSES, seed=1)


@pytest.fixture(scope="module", name="of_examples")
def of_examples_fixture():
    clients = clients_of([[separate(pair) for pair in pairs] for pairs in padded_pairs()])
    return clients, pfl.SplitModel(body((INPUTS,)), CLASSES, seed=1, statistics=STATISTICS)


STATISTICS = ("accuracy", "perplexity")


def after_rounds(method, model, clients, rounds=2):
    # All positions of a client are in one batch.
    whole = {} if "pflego" in method else {"batch_size": 0}
    algorithm = build_method(method, model, **whole)
    with pfl.Simulation(algorithm, clients, pfl.Participation(3, 3), "in_process") as simulation:
        simulation.run(rounds)
        weights = [simulation.served_weights(client) for client in range(3)]
        return weights, simulation.evaluate().metrics()


def alone(pair):
    """Each position with a label in a sequence of its own, whose other examples are 0."""
    labels = pair[1]
    apart = [np.zeros((np.sum(labels >= 0), *array.shape[1:]), array.dtype) for array in pair]
    apart[1][:] = -1
    for row, (sequence, position) in enumerate(np.argwhere(labels >= 0)):
        place = (position + sequence) % LENGTH
        for target, array in zip(apart, pair, strict=True):
            target[row, place] = array[sequence, position]
    return apart


@pytest.mark.parametrize("method", each_of(METHODS, ("pflego",)))
def test_padded_sequences_are_as_their_positions_one_by_one(method, padded, model, of_examples):
    """As examples without an axis for positions, or as sequences with one label each.

    The latter need no other trace. They differ in what stands at positions without a label.
    """
    clients, of_each = of_examples
    if method not in ("pflego", "fedavg"):
        of_each = model
        clients = clients_of([[alone(pair) for pair in pairs] for pairs in padded_pairs()])
    np.testing.assert_array_equal(padded.client_weights, clients.client_weights)
    actual, metrics = after_rounds(method, model, padded)
    expected, expected_metrics = after_rounds(method, of_each, clients)
    assert_near(tf.nest.flatten(actual), tf.nest.flatten(expected), atol=1e-6)
    assert metrics == pytest.approx(expected_metrics, rel=1e-5)
    assert {f"test_{name}/client_mean" for name in STATISTICS} < metrics.keys()


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["pflego", "fedavg"])
def test_blocks_are_as_one_pass(method, padded, model):
    actual, metrics = after_rounds(method, model._in_blocks(block_bytes=1), padded)
    expected, expected_metrics = after_rounds(method, model, padded)
    assert_near(tf.nest.flatten(actual), tf.nest.flatten(expected), atol=1e-6)
    assert metrics == pytest.approx(expected_metrics, rel=1e-5)


def test_sequences_and_examples_are_not_mixed(padded, model, of_examples):
    clients, of_each = of_examples
    for one, data in ((model, clients), (of_each, padded)):
        with pytest.raises(ValueError, match="one class per example, or per position"):
            after_rounds("pflego", one, data)
