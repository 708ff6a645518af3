"""Robust sums against NumPy, without attackers and with one who uploads whatever it likes."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.aggregation.probe import probe
from tests.conftest import make_clients
from tests.methods import thorough
from tf_pflego.aggregation import compression
from tf_pflego.aggregation.robust import ROBUST_SUMS, with_robust_aggregation
from tf_pflego.core.participation import Participation
from tf_pflego.simulation.simulation import Simulation

SIZE, BOUND, SHARE = 30, 4.0, 0.2
FLOAT32 = 2e-6
STEPS = 1e-4  # what ten of Weiszfeld's steps leave
of_all_sums = pytest.mark.parametrize("name", ROBUST_SUMS)
SIX = make_clients((3, 7, 5, 4, 6, 5), (2,) * 6, (2,) * 6)


@pytest.fixture(scope="module")
def received(tiny_model):
    """A function from six clients' vectors to what the probe's server receives, and the record."""
    options = {"clip_norm": BOUND, "trimmed_share": SHARE}

    @functools.cache
    def traced(name):
        uploads = tf.Variable(tf.zeros([6, SIZE]))
        algorithm = with_robust_aggregation(probe(tiny_model, uploads, SIZE), name, **options)
        return uploads, Simulation(algorithm, SIX, Participation(6, 6), "in_process", 3)

    def received(name, vectors):
        uploads, simulation = traced(name)
        uploads.assign(vectors)
        record = simulation.run_round()
        return simulation.server_state.method, record

    return received


def centre(name, uploads):
    """What float64 says, of uploads [c, n]."""
    if name == "norm_bound":
        norms = np.linalg.norm(uploads, axis=1, keepdims=True)
        return np.mean(uploads * np.minimum(1, BOUND / norms), axis=0)
    if name == "median":
        return np.median(uploads, axis=0)
    if name == "trimmed_mean":
        return np.sort(uploads, axis=0)[1:-1].mean(axis=0)  # a fifth of five or of six
    point = uploads.mean(axis=0)
    for _ in range(2000):
        weights = 1 / np.linalg.norm(uploads - point, axis=1)
        point = weights @ uploads / weights.sum()
    return point


def vectors_of(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=SIZE) + rng.normal(size=(6, SIZE)) * rng.uniform(0.2, 2, size=(6, 1))


@of_all_sums
def test_a_robust_sum_is_what_numpy_says(name, received):
    vectors = vectors_of(0)
    result, record = received(name, vectors)
    both = np.concatenate([vectors, vectors], axis=1)  # what it sums, and what it averages
    expected = np.split(centre(name, both), 2)
    tolerance = STEPS if name == "geometric_median" else FLOAT32
    np.testing.assert_allclose(result.averaged, expected[1], atol=tolerance)
    np.testing.assert_allclose(result.summed, expected[0], atol=tolerance)
    assert result.count == 6
    assert record["bytes_up"] == 6 * 2 * SIZE * 4


@of_all_sums
@pytest.mark.parametrize("huge", [thorough(1e17), 1e30])
def test_one_attacker_does_not_move_it_far(name, huge, received):
    honest = vectors_of(1)
    vectors = np.concatenate([[huge * np.sign(honest[0])], honest[1:]])
    result, record = received(name, vectors)
    # The norm of the largest is no float32, so that the engine leaves it out.
    assert record["not_finite"] == (huge == 1e30)
    spread = np.linalg.norm(honest[1:] - honest[1:].mean(axis=0), axis=1).max()
    limit = 2 * BOUND / 6 if name == "norm_bound" else spread
    start = centre("norm_bound", honest[1:]) if name == "norm_bound" else honest[1:].mean(axis=0)
    assert np.linalg.norm(result.averaged - start) <= limit
    assert np.isfinite(result.summed).all()


@of_all_sums
def test_the_centre_of_equal_uploads_is_their_mean(name, received):
    vectors = np.tile(np.linspace(-0.3, 0.3, SIZE), (6, 1))
    result, _ = received(name, vectors)
    np.testing.assert_allclose(result.averaged, vectors[0], rtol=FLOAT32)
    np.testing.assert_allclose(result.summed, vectors[0], rtol=FLOAT32)


@of_all_sums
def test_who_uploads_what_is_not_finite_is_left_out_of_the_round(name, received):
    vectors = vectors_of(3)
    vectors[2, :2] = np.nan, np.inf
    result, record = received(name, vectors)
    assert record["not_finite_clients"] == [2]
    expected = centre(name, np.tile(np.delete(vectors, 2, axis=0), 2))
    np.testing.assert_allclose(result.averaged, expected[:SIZE], atol=STEPS)
    # A sum is of the participants' parts, each 1 / I of the centre, whatever their examples.
    np.testing.assert_allclose(result.summed, 5 / 6 * expected[:SIZE], atol=STEPS)
    assert result.count == 5


@pytest.mark.parametrize("name", ["median", thorough("norm_bound")])
def test_the_bytes_of_compressed_uploads_are_those_that_are_sent(name, tiny_model):
    compressed = compression.with_compression(probe(tiny_model, np.ones([6, 512]), 512), bits=8)
    sent = []
    for algorithm in (compressed, with_robust_aggregation(compressed, name, clip_norm=BOUND)):
        with Simulation(algorithm, SIX, Participation(6, 5), "in_process") as simulation:
            sent.append(simulation.run_round()["bytes_up"])
    assert sent[0] - sent[1] == 5 * 4  # Nobody says how many examples it has.
    assert sent[1] < 2 * 5 * 512 * 1.1


def test_a_robust_sum_inside_of_another_is_refused(tiny_model):
    median = with_robust_aggregation(probe(tiny_model, np.ones([3, 4]), 4), "median")
    with pytest.raises(ValueError, match="must see the uploads of single clients"):
        with_robust_aggregation(median, "norm_bound", clip_norm=1)
