"""Sums of integers: what leaves a client, what the server gets of it, and who is left out."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.aggregation.probe import Received, probe
from tests.algorithms.test_contract import build
from tests.comparison import assert_near
from tests.engines.agreement import ENGINES
from tf_pflego.aggregation.secure import centred, modulo, rounded, with_secure_aggregation
from tf_pflego.core.algorithm import Client
from tf_pflego.core.participation import Participation
from tf_pflego.simulation.simulation import Simulation

SEED = 6
WEIGHTS = np.array([3, 7, 5]) / 15  # of the tiny clients


@pytest.mark.parametrize("bits", [5, 24, 32])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_the_sum_modulo_is_that_of_the_integers(count, bits):
    largest = (2 ** (bits - 1) - 1) // count
    integers = np.random.default_rng(0).integers(-largest, largest + 1, (count, 50), np.int32)
    integers[:, 0], integers[:, 1] = largest, -largest
    sent = np.stack([modulo(tf.constant(one), bits).numpy() for one in integers])
    assert bits == 32 or (sent.min() >= 0 and sent.max() < 2**bits)
    total = sent.astype(np.int64).sum(axis=0).astype(np.int32)  # as engines add
    np.testing.assert_array_equal(
        centred(tf.constant(total), bits).numpy(), integers.sum(axis=0).astype(np.float32)
    )


def test_rounding_has_no_bias():
    numbers = np.array([0.0, 3.0, -2.0, 0.25, -0.25, 1e-3, -7.9, 2.0**20 + 0.5], np.float32)
    draws = 40_000
    client = Client(*[None] * 5, seed=tf.constant([1, 2]))
    each = rounded(tf.repeat(tf.constant(numbers), draws), client).numpy()
    each = each.reshape(len(numbers), draws)
    assert np.abs(each - numbers[:, None]).max() < 1
    share = numbers.astype(float) - np.floor(numbers)
    deviation = np.sqrt(share * (1 - share) / draws)
    assert (np.abs(each.mean(axis=1) - numbers.astype(float)) <= 5 * deviation).all()


def sums_of(model, clients, vectors, engine="in_process", wrap=True, **options):
    """What the server receives of three clients that upload these vectors, and the record."""
    options = {"bits": 24, "clip_norm": 1.0} | options
    algorithm = probe(model, np.asarray(vectors, np.float32), np.shape(vectors)[1])
    if wrap:
        algorithm = with_secure_aggregation(algorithm, **options)
    with Simulation(algorithm, clients, Participation(3, 3), engine, SEED) as simulation:
        record = simulation.run_round()
        state = simulation.server_state
        return Received(*map(np.asarray, state.method if wrap else state)), record


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_sums_on_all_engines_are_those_of_rounded_uploads(tiny_model, tiny_clients, engine):
    """Each number is in steps of C / L; the weighted mean is as it was, but for rounding."""
    vectors = np.random.default_rng(1).normal(0, 0.05, (3, 60))
    received, record = sums_of(tiny_model, tiny_clients, vectors, engine, bits=12)
    step = 1 / ((2**11 - 1) // 3) / 3  # for one I-th
    integers = received.summed / (step * (1 + 1e-5))
    np.testing.assert_allclose(integers, np.round(integers), atol=2e-3)
    expected = (WEIGHTS[:, None] * vectors).sum(axis=0)
    assert np.abs(received.summed - expected).max() < 3 * step * (1 + 1e-4)
    assert np.std(received.summed - expected) == pytest.approx(step * np.sqrt(3 / 6), rel=0.25)
    weights = 1 + 3 / (2**11 - 4)  # Their sum is rounded too.
    assert np.abs(received.averaged - expected).max() < 3 * step * 1.01 + 0.2 * (weights - 1)
    assert received.count == 3
    length = 60 + 60 + 1
    assert record["bytes_up"] == 3 * -(-length * 12 // 8)


def test_many_bits_change_nothing_and_a_bound_clips_one_vector(tiny_model, tiny_clients):
    vectors = np.random.default_rng(1).normal(size=(3, 60)) * [[0.01], [1], [100]]
    plain, _ = sums_of(tiny_model, tiny_clients, vectors, wrap=False)
    received, _ = sums_of(tiny_model, tiny_clients, vectors, bits=32, clip_norm=4000.0)
    assert_near(received, plain, atol=4e-3)
    received, _ = sums_of(tiny_model, tiny_clients, vectors, bits=32, clip_norm=2.0)
    norms = 3 * WEIGHTS * np.sqrt(2) * np.linalg.norm(vectors, axis=1)
    clipped = vectors * np.minimum(1, 2 / norms)[:, None]
    expected = (WEIGHTS[:, None] * clipped).sum(axis=0)
    np.testing.assert_allclose(received.summed, expected, atol=2e-6)
    np.testing.assert_allclose(received.averaged, expected, atol=2e-6)


def test_a_methods_messages_to_single_clients_pass(tiny_model, tiny_clients):
    """They are beside the number of participants, and each client has its own."""
    plain = probe(tiny_model, np.ones([3, 4], np.float32), 4)
    (exchange,) = plain.exchanges

    def client_update(message, state, client, round_):
        factor = tf.cast(client.message, tf.float32) + 1
        result = exchange.client_update(message, state, client, round_)
        return result._replace(summed=factor * result.summed, averaged=factor * result.averaged)

    changed = dataclasses.replace(
        exchange, client_update=client_update, client_messages=lambda server, ids, round_: 10 * ids
    )
    algorithm = with_secure_aggregation(
        dataclasses.replace(plain, exchanges=(changed,)), bits=32, clip_norm=200
    )
    with Simulation(algorithm, tiny_clients, Participation(3, 3), "in_process") as simulation:
        simulation.run_round()
        expected = WEIGHTS @ [1, 11, 21]
        np.testing.assert_allclose(simulation.server_state.method.averaged, expected, rtol=1e-5)


def test_weights_that_are_too_small_for_few_bits_leave_a_finite_mean(tiny_model, tiny_clients):
    received, _ = sums_of(tiny_model, tiny_clients, np.zeros([3, 2]), bits=4)
    np.testing.assert_array_equal(received.averaged, 0)


def test_bits_that_would_let_a_sum_wrap_around_are_refused(tiny_model, tiny_clients):
    algorithm = with_secure_aggregation(build("pflego", tiny_model), bits=3, clip_norm=1)
    message = "`bits` must be at least 4, so that sums over 3 clients do not wrap .*; got 3"
    with pytest.raises(ValueError, match=message):
        Simulation(algorithm, tiny_clients, Participation(3, 1, "binomial"), "in_process")
