"""Quadratic programmes over the simplex against all supports tried, in float64."""

import numpy as np
import pytest
import tensorflow as tf

from tests.oracles.quadratic import by_all_supports
from tf_pflego.core.quadratic import on_simplex


def solved(p, q):
    return on_simplex(tf.constant(p, tf.float32), tf.constant(q, tf.float32)).numpy()


@pytest.mark.parametrize("n", [1, 2, 3, 6])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 1e3])
def test_it_is_the_best_of_all_supports(n, spread):
    """Programmes of many sizes of their diagonals, so that from one to all numbers are above 0."""
    rng = np.random.default_rng(n)
    roots = rng.normal(size=(40, n, n + 1))
    p = roots @ roots.transpose(0, 2, 1) * spread
    p += np.eye(n) * np.logspace(-3, 3, 40)[:, None, None]
    q = rng.normal(size=(40, n)) * np.sqrt(spread)
    p, q = (np.asarray(np.asarray(one, np.float32), np.float64) for one in (p, q))
    found = solved(p, q)
    assert found.dtype == np.float32
    expected = np.array([by_all_supports(*one) for one in zip(p, q, strict=True)])
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert n < 3 or len({(x > 0).sum() for x in expected}) >= 3


def test_of_equal_solutions_it_is_that_of_the_least_norm():
    """With nothing to choose by, all count alike; and so do two that are the same."""
    np.testing.assert_allclose(solved(np.zeros((1, 4, 4)), np.zeros((1, 4))), [[0.25] * 4])
    p = np.array([[1.0, 1, 0], [1, 1, 0], [0, 0, 1]])[None]
    np.testing.assert_allclose(solved(p, np.zeros((1, 3))), [[0.25, 0.25, 0.5]], atol=1e-6)


def test_of_many_numbers_it_fulfils_what_a_minimum_must():
    """The slope is the same along all that are above 0, and no lower along the others."""
    rng = np.random.default_rng(0)
    roots = rng.normal(size=(5, 60, 20))
    p, q = roots @ roots.transpose(0, 2, 1), rng.normal(size=(5, 60))
    x = solved(p, q)
    np.testing.assert_allclose(x.sum(axis=1), 1, atol=1e-6)
    assert x.min() >= 0
    for slope, one in zip(np.einsum("bij,bj->bi", p, x) + q, x, strict=True):
        above = one > 0
        np.testing.assert_allclose(slope[above], slope[above].mean(), atol=1e-4)
        assert slope[~above].min() > slope[above].mean() - 1e-4


def test_in_a_graph_for_a_number_that_is_not_known_before():
    spec = tf.TensorSpec([None, None, None]), tf.TensorSpec([None, None])
    traced = tf.function(on_simplex, input_signature=spec)
    p, q = tf.eye(3)[None], tf.constant([[0.0, 0.0, 9.0]])
    np.testing.assert_allclose(traced(p, q), [[0.5, 0.5, 0]], atol=1e-7)
    np.testing.assert_array_equal(traced(p, q), on_simplex(p, q))
