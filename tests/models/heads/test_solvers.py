"""Steps on a head against the same in float64, and what holds whatever the rate."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.methods import each_of, thorough
from tests.models.heads.problem import FEATURES, Problem, float32, objective_of
from tests.models.heads.test_objective import least_squares
from tf_pflego.models.heads import head as head_lib
from tf_pflego.models.heads.descent import gradient_descent
from tf_pflego.models.heads.objective import HeadObjective
from tf_pflego.models.heads.solvers import STEPWISE, automatic_rate, solve

TOLERANCE = 2e-6  # float32 against float64 over some tens of steps on weights of order 1.
RATE = 0.1


@functools.partial(tf.function, autograph=False)
def traced(features, labels, head, steps, rate, solver, task, penalty, classes):
    objective = HeadObjective(features, labels, head.shape[0], classes, task, penalty)
    return solve(objective, head, steps, solver, rate)


def run(problem, solver, head, steps, rate, classes=None):
    """Returns the head after some steps, in float64; a rate of None is the automatic one.

    It is traced once for all steps and rates.
    """
    data = tf.constant(problem.features), tf.constant(problem.labels), float32(head)
    if rate is None:
        of_head = problem.labels, len(head), classes, problem.task, problem
        objective = objective_of(problem.features, *of_head)
        rate = automatic_rate(objective, data[-1], solver, np.inf)
    rate = tf.convert_to_tensor(rate, tf.float32)
    of_loss = solver, problem.task, float(problem.penalty[0]), classes
    return traced(*data, tf.constant(steps), rate, *of_loss).numpy().astype(np.float64)


def descended(problem, head, steps):
    for _ in range(steps):
        head = head - RATE * problem.gradient(head)
    return head


@pytest.mark.parametrize("classes", [1, 2, 3, 10])
def test_gradient_descent_is_that_in_float64(classes):
    for examples in (1, 16, 100):
        problem = Problem("classification", 0.0, examples, 8, classes)
        start = float32(problem.head)
        for steps in (0, 1, 6, 7, 8, 49):
            moved = gradient_descent(problem.objective(), start, steps, RATE)
            expected = descended(problem, problem.head, steps)
            np.testing.assert_allclose(moved, expected, atol=TOLERANCE)


@pytest.mark.parametrize("classes", [[0, -1], [-1, 1], [3, 5, -1], [-1, 1, -1, -1, 4]])
def test_absent_classes_do_not_move_by_gradient_descent(classes):
    head = head_lib.uniform(tf.constant([1, 2]), tf.constant(classes), FEATURES)
    own = np.flatnonzero(np.array(classes) >= 0)
    problem = Problem("classification", outputs=len(own))
    labels = own[problem.labels]
    objective = objective_of(problem.features, labels, len(classes), tf.constant(classes))
    moved = gradient_descent(objective, head, 20, RATE).numpy()
    np.testing.assert_array_equal(np.delete(moved, own, axis=0), np.delete(head, own, axis=0))
    expected = descended(problem, head.numpy()[own].astype(np.float64), 20)
    np.testing.assert_allclose(moved[own], expected, atol=TOLERANCE)


def by_momentum(problem, head, steps):
    velocity = np.zeros_like(head)
    for _ in range(steps):
        velocity = 0.9 * velocity + problem.gradient(head)
        head = head - 0.05 * velocity
    return head


def by_adam(problem, head, steps):
    first, second = np.zeros_like(head), np.zeros_like(head)
    for k in range(1, steps + 1):
        g = problem.gradient(head)
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
        unbiased = np.sqrt(1 - 0.999**k)
        root = (np.sqrt(second) + 1e-7) / unbiased
        head = head - 0.05 * (first / (1 - 0.9**k)) / root
    return head


@pytest.mark.parametrize("classes", [thorough(2), 3])
@pytest.mark.parametrize(
    ("solver", "steps_of", "tolerance"),
    [("momentum", by_momentum, TOLERANCE), ("adam", by_adam, 10 * TOLERANCE)],
)
def test_steps_are_those_in_float64(solver, steps_of, tolerance, classes):
    problem = Problem("classification", examples=40, num_features=6, outputs=classes)
    expected = steps_of(problem, problem.head, 12)
    found = run(problem, solver, problem.head, 12, 0.05)
    np.testing.assert_allclose(found, expected, atol=tolerance)


@pytest.mark.parametrize("classes", [thorough(2), 3])
def test_newton_reaches_the_minimum_that_gradient_descent_does_not(classes):
    """Newton leaves a thousandth of the gradient, in float64, that as many gradient steps leave."""
    problem = Problem("classification", examples=40, num_features=6, outputs=classes)
    left = {
        solver: np.abs(problem.gradient(run(problem, solver, problem.head, 60, None))).max()
        for solver in ("gd", "newton")
    }
    assert left["newton"] < 1e-3 * left["gd"]


@pytest.mark.parametrize(("solver", "share"), [("gd", 1), ("momentum", 0.1), ("newton", 1)])
def test_automatic_rate_is_one_over_the_curvature_at_the_head_or_the_most(solver, share):
    """The curvature is compared with that of a Hessian from differences of the float64 gradient."""
    problem = Problem("classification", examples=40, num_features=6, outputs=3)
    directions = np.eye(problem.head.size).reshape(-1, *problem.head.shape)
    columns = [problem.curved(problem.head, direction).ravel() for direction in directions]
    curvature = np.linalg.eigvalsh(np.array(columns))[-1]
    for most, expected, tolerance in (
        (np.inf, share / curvature, 0.02),
        (0.01, share * 0.01, 1e-6),
    ):
        rate = automatic_rate(problem.objective(), float32(problem.head), solver, most)
        np.testing.assert_allclose(rate, expected, rtol=tolerance)


# Bounds of the curvature are there, or not, of counts and log-cosh; two classes are followed as one
# difference.
RISES = [
    *itertools.product(("classification", "counts"), STEPWISE),
    *itertools.product(("two classes", "regression"), ("gd", "newton")),
    ("log-cosh", "newton"),
]
QUICK_RISES = ("counts", "gd"), *(("classification", solver) for solver in STEPWISE)


@pytest.mark.parametrize(
    ("case", "solver"), [one if one in QUICK_RISES else thorough(*one) for one in RISES]
)
def test_the_loss_does_not_rise_whatever_the_rate(case, solver):
    """At a minimum of classes, which are starts too, all but tiny steps go up."""
    problem, starts = Problem(case, penalty=0.1) if "class" not in case else None, []
    if problem is None:
        outputs = 2 if case == "two classes" else 3
        problem = Problem("classification", examples=40, num_features=6, outputs=outputs)
        starts = [run(problem, "newton", problem.head, 200, None)]
    for rate in (1e4, 1e30, *([None] if solver != "adam" else [])):
        for start in (problem.head, 10 * problem.head, *starts):
            ended = problem.loss(run(problem, solver, start, 15, rate))
            assert ended <= problem.loss(start) * (1 + 1e-6) + 1e-7


@pytest.mark.parametrize("solver", each_of(STEPWISE, ("newton",)))
@pytest.mark.parametrize("bias", [thorough(60.0), 95.0])
def test_counts_from_where_exp_overflows(solver, bias):
    """The squares of a gradient do from 60 on; from 95 on the loss does, and the head stays."""
    problem = Problem("counts")
    start = problem.head + bias * np.append(np.zeros(FEATURES), 1)
    for rate in (0.1, 1e30):
        ended = run(problem, solver, start, 15, rate)
        assert np.isfinite(ended).all()
        assert problem.loss(ended) <= problem.loss(np.float32(start).astype(float)) * (1 + 1e-6)


@pytest.mark.parametrize("solver", each_of(STEPWISE, ("newton",)))
def test_absent_classes_do_not_move(solver):
    problem = Problem("classification")
    head = np.concatenate([problem.head, np.full([2, FEATURES + 1], 7.0)])
    rate = None if solver != "adam" else 0.1
    moved = run(problem, solver, head, 20, rate, tf.constant([0, 1, -1, -1]))
    np.testing.assert_array_equal(moved[2:], head[2:])
    assert (moved[:2] != head[:2].astype(np.float32)).any()


@pytest.mark.parametrize(
    ("solver", "steps"),
    [("exact", 1), thorough("gd", 4000), thorough("momentum", 1000), ("newton", 40)],
)
def test_solvers_find_the_least_squares(solver, steps):
    problem = Problem("regression", 0.3)
    found = run(problem, solver, problem.head, steps, 0.1 if solver == "exact" else None)
    np.testing.assert_allclose(found, least_squares(problem), atol=1e-5)
