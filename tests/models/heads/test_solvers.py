import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.methods import each_of, thorough
from tf_pflego.models.heads.objective import HeadObjective
from tf_pflego.models.heads.solvers import STEPWISE, automatic_rate, solve

TOLERANCE = 5e-6  # float32 against float64 over some tens of steps on weights of order 1.


def problem(classes, examples=40, num_features=6, seed=0):
    """Features, labels and a head, in float64."""
    rng = np.random.default_rng(seed)
    features = np.maximum(rng.normal(size=(examples, num_features)), 0)
    return features, rng.integers(0, classes, examples), rng.random((classes, num_features + 1))


def objective_of(features, labels, rows, classes=None):
    data = tf.constant(features, tf.float32), tf.constant(labels, tf.int32)
    return HeadObjective(*data, rows, classes)


def inputs_of(features):
    return np.hstack([features, np.ones((len(features), 1))])


def probabilities(features, head):
    z = inputs_of(features) @ head.T
    p = np.exp(z - z.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def loss_of(features, labels, head):
    return -np.mean(np.log(probabilities(features, head)[np.arange(len(labels)), labels]))


def gradient_of(features, labels, head):
    errors = (probabilities(features, head) - np.eye(len(head))[labels]) / len(labels)
    return errors.T @ inputs_of(features)


@functools.partial(tf.function, autograph=False)
def traced(features, labels, head, classes, steps, solver, rate):
    objective = HeadObjective(features, labels, head.shape[0], classes)
    if isinstance(rate, str):  # The automatic one, unlimited.
        rate = automatic_rate(objective, head, solver, np.inf)
    return solve(objective, head, steps, solver, rate)


def run(solver, data, head, steps, rate, classes=None):
    """The head after some steps; traced once for all rates that are numbers."""
    data = tf.constant(data[0], tf.float32), tf.constant(data[1], tf.int32)
    rate = rate if rate == "auto" else tf.constant(rate)
    return traced(*data, tf.constant(head, tf.float32), classes, steps, solver, rate).numpy()


@pytest.mark.parametrize("classes", [thorough(2), 3])
def test_momentum_is_heavy_ball(classes):
    *data, head = problem(classes)
    expected, velocity = head, np.zeros_like(head)
    for _ in range(12):
        velocity = 0.9 * velocity + gradient_of(*data, expected)
        expected = expected - 0.05 * velocity
    np.testing.assert_allclose(run("momentum", data, head, 12, 0.05), expected, atol=TOLERANCE)


@pytest.mark.parametrize("classes", [thorough(2), 3])
def test_adam_is_adam(classes):
    *data, head = problem(classes)
    expected, first, second = head, np.zeros_like(head), np.zeros_like(head)
    for k in range(1, 13):
        g = gradient_of(*data, expected)
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
        expected = expected - 0.05 * (first / (1 - 0.9**k)) / (
            np.sqrt(second / (1 - 0.999**k)) + 1e-7 / np.sqrt(1 - 0.999**k)
        )
    np.testing.assert_allclose(run("adam", data, head, 12, 0.05), expected, atol=2e-5)


@pytest.mark.parametrize("classes", [thorough(2), 3])
def test_newton_reaches_the_minimum_that_gradient_descent_does_not(classes):
    """Newton leaves a thousandth of the gradient, in float64, that as many gradient steps leave."""
    *data, head = problem(classes)
    left = {
        solver: np.abs(
            gradient_of(*data, run(solver, data, head, 60, "auto").astype(np.float64))
        ).max()
        for solver in ("gd", "newton")
    }
    assert left["newton"] < 1e-3 * left["gd"]


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_smoothness_is_half_the_largest_eigenvalue(classes):
    features, labels, _ = problem(classes)
    x = inputs_of(features)
    largest = np.linalg.eigvalsh(x.T @ x / len(x))[-1] / 2
    actual = float(objective_of(features, labels, classes).smoothness())
    assert 0.98 * largest < actual <= largest * (1 + 1e-5)


def test_hessian_product_is_the_derivative_of_the_gradient():
    *data, head = problem(3)
    direction = np.random.default_rng(1).normal(size=head.shape)
    h = 1e-5
    expected = (
        gradient_of(*data, head + h * direction) - gradient_of(*data, head - h * direction)
    ) / (2 * h)
    objective = objective_of(*data, 3)
    product = objective.hessian_at(objective.widen(tf.constant(head, tf.float32)))
    actual = product(objective.widen(tf.constant(direction, tf.float32)))[:, : head.shape[1]]
    np.testing.assert_allclose(actual, expected, atol=TOLERANCE)


@pytest.mark.parametrize(("solver", "share"), [("gd", 1), ("momentum", 0.1), ("newton", 1)])
def test_automatic_rate_is_one_over_the_curvature_at_the_head_or_the_most(solver, share):
    """The curvature is compared with that of a Hessian from differences of the float64 gradient."""
    *data, head = problem(3)
    h, columns = 1e-5, []
    for direction in np.eye(head.size).reshape(-1, *head.shape):
        difference = gradient_of(*data, head + h * direction) - gradient_of(
            *data, head - h * direction
        )
        columns.append(difference.ravel() / (2 * h))
    curvature = np.linalg.eigvalsh(np.array(columns))[-1]
    objective, start = objective_of(*data, 3), tf.constant(head, tf.float32)
    np.testing.assert_allclose(
        automatic_rate(objective, start, solver, np.inf), share / curvature, rtol=0.02
    )
    np.testing.assert_allclose(
        automatic_rate(objective, start, solver, 0.01), share * 0.01, rtol=1e-6
    )


@functools.cache
def minimum(classes):
    *data, head = problem(classes)
    return run("newton", data, head, 200, "auto").astype(np.float64)


@pytest.mark.parametrize("rate", [thorough(1e4), 1e30, thorough("auto")])
@pytest.mark.parametrize("solver", STEPWISE)
@pytest.mark.parametrize("classes", [thorough(2), 3])
def test_the_loss_does_not_rise_whatever_the_rate(classes, solver, rate):
    """The starts are a random head, a large one and the minimum, where all but tiny steps go up."""
    *data, head = problem(classes)
    for start in (head, 10 * head, minimum(classes)):
        ended = run(solver, data, start, 15, rate).astype(np.float64)
        assert loss_of(*data, ended) <= loss_of(*data, start) * (1 + 1e-6) + 1e-7


@pytest.mark.parametrize("solver", each_of(STEPWISE, ("newton",)))
def test_absent_classes_do_not_move(solver):
    features, labels, present = problem(2)
    head = np.concatenate([present, np.full([2, present.shape[1]], 7.0)])
    classes, rate = tf.constant([0, 1, -1, -1]), "auto" if solver != "adam" else 0.1
    moved = run(solver, (features, labels), head, 20, rate, classes)
    np.testing.assert_array_equal(moved[2:], head[2:])
    assert (moved[:2] != head[:2].astype(np.float32)).any()
