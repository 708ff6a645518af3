"""What compressed uploads are, against NumPy, and that the mean over all draws is exact."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf
from scipy.linalg import hadamard

from tests.aggregation.probe import probe
from tests.algorithms.test_contract import simulation_of
from tests.algorithms.test_identities import TOLERANCE, Chosen, joint_gradient
from tests.comparison import assert_identical, assert_near
from tests.conftest import INPUTS, build_method, built
from tests.oracles import network
from tf_pflego import models
from tf_pflego.aggregation import compression
from tf_pflego.aggregation.compression import with_compression
from tf_pflego.core.algorithm import Client, ClientResult, Federation, Round
from tf_pflego.simulation.simulation import Simulation

SEED = tf.constant([3, 4])
JUST_BELOW_1 = np.nextafter(np.float32(1), np.float32(0))


def bytes_of_levels(blocks, bits):
    """Of blocks of so many numbers each: the levels, packed, the least and the largest of each."""
    return -(-sum(blocks) * bits // 8) + 8 * len(blocks)


def outcomes_of_rounding(gradient, signs):
    """All ways to round 4 numbers to 2 levels: (what to draw, how likely it is)."""
    rotated = hadamard(4) / 2 @ (signs * gradient)
    exact = (rotated - rotated.min()) / np.ptp(rotated)
    open_ones = np.flatnonzero((exact != 0) & (exact != 1))
    for rounded_up in itertools.product((False, True), repeat=len(open_ones)):
        drawn = np.zeros(4, np.float32)
        drawn[open_ones[list(rounded_up)]] = JUST_BELOW_1
        chances = np.where(rounded_up, exact[open_ones], 1 - exact[open_ones])
        yield drawn, np.prod(chances)


def outcomes_of_masking(gradient, signs):
    """All ways to choose one of each of two pairs of numbers."""
    for drawn in itertools.product((0.25, 0.75), repeat=2):
        yield np.float32([*drawn, 0, 0]), 1 / 4


@pytest.mark.parametrize(
    ("name", "outcomes", "options"),
    [
        ("quantized", outcomes_of_rounding, {"bits": 1}),
        ("masked", outcomes_of_masking, {"share": 0.5}),
    ],
)
def test_proposition_1_holds_over_cohorts_and_draws(
    name, outcomes, options, tiny_clients, monkeypatch
):
    """The mean step over all cohorts, and all that may be drawn in them, is the gradient of L.

    The probabilities are those of the float64 gradients; which outcome happens is told by what is
    drawn, once for each client.
    """
    draws, signs = tf.Variable(tf.zeros([3, 4])), np.array([1.0, -1.0, -1.0, 1.0])

    def drawn(shape, seed, dtype=tf.float32):
        if shape == [1, 1, 1]:  # what is added to all draws of a block
            return tf.zeros(shape)
        numbers = tf.gather(draws, seed[1])
        if shape == [2, 2, 2]:  # the coin of each sign, and the draws
            coins = tf.constant(0.5 + 0.25 * signs, tf.float32)
            return tf.reshape(tf.stack([coins, numbers]), shape)
        return tf.cast(numbers[: shape[0]], dtype)

    monkeypatch.setattr(compression, "_FEWEST", 4)
    # Its theta has 4 + 1 numbers; the 4 are compressed.
    model = models.SplitModel(models.mlp((INPUTS,), seed=5, units=1), num_outputs=3, seed=3)
    monkeypatch.setattr(compression, "_uniform", drawn)
    monkeypatch.setattr(compression, "seed_of", lambda seed, purpose: seed)  # (number, client)
    one_step = {"local_steps": 1, "head_step_scale": "exact"}
    sgd = {"server_learning_rate": 1.0, "server_optimizer": "sgd"}
    algorithm = with_compression(built("pflego", model, **one_step, **sgd), name, **options)
    simulation = Simulation(algorithm, tiny_clients, Chosen(3, 2), "in_process", seed=5)
    start, states = simulation.server_state, simulation.client_states(range(3))
    theta = [np.asarray(w, np.float64) for w in start.method.theta]
    counts = tiny_clients.num_classes
    heads = {k: np.float64(states.method.head[k, :count]) for k, count in enumerate(counts)}
    own = {client: [head] for client, head in heads.items()}
    expected, _ = joint_gradient(tiny_clients, model.parts, theta, own)
    alone = [
        network.gradients(theta, heads[k], *network.of_client(tiny_clients.train, k))[0][0].ravel()
        for k in range(3)
    ]
    cohorts = list(itertools.combinations(range(3), 2))
    mean, total, different = [np.zeros_like(w) for w in theta], 0.0, set()
    for cohort in cohorts:
        possible = (list(outcomes(alone[client], signs)) for client in cohort)
        for chosen in itertools.product(*possible):
            for client, (numbers, _) in zip(cohort, chosen, strict=True):
                draws.scatter_nd_update([[client]], numbers[None])
            simulation.participation = Chosen(3, 2, clients_per_round_range=cohort)
            simulation.server_state = start
            simulation.set_client_states(range(3), states)
            simulation.run_round()
            chance = np.prod([one for _, one in chosen]) / len(cohorts)
            total += chance
            stepped = simulation.server_state.method.theta
            different.add(np.asarray(stepped[0]).tobytes())
            for one, w, before in zip(mean, stepped, theta, strict=True):
                one += chance * (before - np.asarray(w, np.float64))
    assert total == pytest.approx(1)
    assert len(different) == 3 * 4 * 4
    assert_near(mean, expected, atol=TOLERANCE)


@pytest.mark.parametrize(("size", "block"), [(33, 64), (1024, 1024), (2500, 1024)])
def test_rounding_stays_within_a_step_and_has_the_variance_of_coins(size, block):
    """The rotation keeps lengths, so that all errors can be seen before or behind it."""
    vector, bits = np.random.default_rng(1).normal(size=size).astype(np.float32), 3
    blocks, errors, variances = np.zeros([-(-size // block), block]), 0.0, 0.0
    blocks.flat[:size] = vector
    rotation = hadamard(block) / np.sqrt(block)
    kept = np.diff([*range(0, size, block), size])[:, None] / block
    for seed in range(20):
        seed = tf.constant([seed, 4])
        signs = np.where(np.ravel(compression._uniform([2, block], seed)[0]) < 0.5, -1, 1)
        rotated = (signs * blocks) @ rotation
        least = rotated.min(axis=1, keepdims=True)
        step = np.ptp(rotated, axis=1, keepdims=True) / (2**bits - 1)
        decoded = compression._quantized(tf.constant(vector), seed, bits).numpy()
        if size == block:  # Nothing is padded, so that the levels can be seen.
            levels = ((signs * decoded) @ rotation - least) / step
            np.testing.assert_allclose(levels, np.round(levels), atol=1e-4)
            assert (levels.min().round(), levels.max().round()) == (0, 2**bits - 1)
            assert (abs(levels - (rotated - least) / step) < 1 + 1e-4).all()
        share = (rotated - least) / step % 1
        variances += np.sum(kept * step**2 * share * (1 - share))
        errors += np.sum((decoded - vector) ** 2)
    assert errors == pytest.approx(variances, rel=0.1)


def test_blocks_that_are_alike_are_not_rounded_alike():
    vector = np.tile(np.random.default_rng(1).normal(size=1024), 2).astype(np.float32)
    products = np.zeros([2, 2])
    for seed in range(50):
        errors = compression._quantized(tf.constant(vector), tf.constant([seed, 4]), 3) - vector
        errors = errors.numpy().reshape(2, 1024)
        products += errors @ errors.T
    assert abs(products[0, 1]) < 0.1 * products[0, 0]


@pytest.mark.parametrize("size", [32, 100, 1025])
def test_what_is_sent_of_a_mask_is_one_number_of_each_part(size):
    vector = np.arange(1, size + 1).astype(np.float32)
    count = -(-size * 3 // 10)
    for seed in ([1, 2], [1, 3]):
        decoded = compression._masked(tf.constant(vector), tf.constant(seed), 0.3).numpy()
        (places,) = np.nonzero(decoded)
        starts = [j * size // count for j in range(count + 1)]
        np.testing.assert_array_equal(np.histogram(places, starts)[0], 1)
        np.testing.assert_array_equal((decoded / vector)[places], np.diff(starts))
    kept = compression._masked(tf.constant(vector), SEED, 1.0)
    np.testing.assert_array_equal(kept, vector)


def test_bytes_are_those_that_would_be_sent(tiny_model, tiny_clients):
    """Arrays of 64, 16 and 51 numbers, of which 51 are padded, and a weight."""

    def client_update(message, state, client, round_):
        return ClientResult((), state, averaged=[tf.ones([size]) for size in (64, 16, 51)])

    told, as_it_is = probe(tiny_model, np.zeros([3, 1]), 1), 4 * (16 + 1)
    changed = {"client_update": client_update, "server_update": lambda server, *_: server}
    exchange = dataclasses.replace(told.exchanges[0], **changed)
    plain = dataclasses.replace(told, exchanges=(exchange,))
    for algorithm, expected in (
        (with_compression(plain, bits=3), 2 * bytes_of_levels([64], 3)),
        (with_compression(plain, "masked", share=0.3), 4 * (20 + 16)),  # 3 of 10, rounded up
        (with_compression(plain, "top_k", share=0.3), (4 + 4) * (20 + 16)),
    ):
        record = simulation_of(algorithm, tiny_clients).run_round()
        assert record["bytes_up"] == 2 * (expected + as_it_is)
    assert compression._bytes_of_levels(2500, 3) == bytes_of_levels([1024] * 3, 3)


def test_what_is_left_out_is_sent_later(tiny_clients):
    """Sent and remembered are the upload and what was remembered, and the largest is sent.

    The model has an array of 64 numbers, which is compressed, and one of 16, which is not.
    """
    model = models.SplitModel(models.mlp((INPUTS,), seed=3, units=16), num_outputs=3, seed=3)
    plain = build_method("pflego", model, local_steps=2)
    algorithm = with_compression(plain, "top_k", share=0.1)
    federation = Federation(num_clients=3, mean_clients_per_round=2.0, max_clients_per_round=2)
    server = algorithm.init_server(federation)
    round_ = Round(tf.constant(1), SEED, tf.constant(1.5), tf.constant(3), tf.constant(2.0))
    examples, labels = map(tf.constant, tiny_clients.train.of(1))
    classes = tf.constant([0, 1, 2])
    client = Client(examples, labels, tf.constant(7), classes, tf.constant(0.4), SEED)
    state = algorithm.init_client(server, SEED, classes)
    for _ in range(3):
        (before,) = state.wrapper[0]
        message = algorithm.exchanges[0].broadcast(server, round_)
        upload = plain.exchanges[0].client_update(message.method, state.method, client, round_)
        result = algorithm.exchanges[0].client_update(message, state, client, round_)
        state, (after,) = result.state, result.state.wrapper[0]
        wanted, sent = (
            np.ravel(leaf) for leaf in (tf.nest.flatten(one.summed)[0] for one in (upload, result))
        )
        wanted = wanted + before.numpy()
        np.testing.assert_array_equal(sent + after, wanted)
        assert np.count_nonzero(sent) == 7  # a tenth of 64, rounded up
        assert set(np.flatnonzero(sent)) == set(np.argsort(-abs(wanted))[:7])
        assert_identical(tf.nest.flatten(result.summed)[1:], tf.nest.flatten(upload.summed)[1:])


def test_what_is_not_finite_stays_so():
    """Also if it is in the part that is not sent, so that the engine leaves the client out."""
    for value in (np.nan, np.inf, -np.inf):
        vector = np.ones(2000, np.float32)
        vector[1234] = value
        for compress in (
            lambda vector: compression._quantized(vector, SEED, 8),
            lambda vector: compression._masked(vector, SEED, 0.01),
            lambda vector: compression._largest(vector, 0.01),
        ):
            assert not np.isfinite(compress(tf.constant(vector))).all()
