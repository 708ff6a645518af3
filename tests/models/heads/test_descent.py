import numpy as np
import pytest
import tensorflow as tf

from tf_pflego.models.heads import head as head_lib
from tf_pflego.models.heads.descent import gradient_descent
from tf_pflego.models.heads.objective import HeadObjective

TOLERANCE = 2e-6  # float32 against float64 over fifty steps, weights of order 1.
RATE = 0.1


def oracle(head, features, labels, steps):
    x = np.hstack([features, np.ones((len(features), 1))])
    for _ in range(steps):
        z = x @ head.T
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        head = head - RATE / len(x) * (p - np.eye(len(head))[labels]).T @ x
    return head


@pytest.mark.parametrize("steps", [0, 1, 6, 7, 8, 49])
@pytest.mark.parametrize("classes", [1, 2, 3, 10])
@pytest.mark.parametrize("examples", [1, 16, 100])
def test_matches_plain_gradient_descent_in_float64(steps, classes, examples):
    rng = np.random.default_rng(classes)
    head, features = rng.random((classes, 9)), rng.normal(size=(examples, 8))
    labels = rng.integers(0, classes, examples)
    objective = HeadObjective(tf.constant(features, tf.float32), tf.constant(labels), classes)
    moved = gradient_descent(objective, tf.constant(head, tf.float32), steps, RATE)
    np.testing.assert_allclose(moved, oracle(head, features, labels, steps), atol=TOLERANCE)


@pytest.mark.parametrize("classes", [[0, -1], [-1, 1], [3, 5, -1], [-1, 1, -1, -1, 4]])
def test_absent_classes_do_not_move(classes):
    rng = np.random.default_rng(0)
    head = head_lib.uniform(tf.constant([1, 2]), tf.constant(classes), 8)
    own = np.flatnonzero(np.array(classes) >= 0)
    features, labels = rng.normal(size=(12, 8)), rng.integers(0, len(own), 12)
    data = tf.constant(features, tf.float32), tf.constant(own[labels])
    objective = HeadObjective(*data, len(classes), classes=tf.constant(classes))
    moved = gradient_descent(objective, head, 20, RATE).numpy()
    np.testing.assert_array_equal(np.delete(moved, own, axis=0), np.delete(head, own, axis=0))
    expected = oracle(head.numpy()[own].astype(np.float64), features, labels, 20)
    np.testing.assert_allclose(moved[own], expected, atol=TOLERANCE)
