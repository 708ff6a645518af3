"""The loss of a head and its derivatives, for each task and for losses of one's own."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.models.heads.problem import TASKS, Problem, float32, objective_of
from tests.oracles import network

# float32 against float64, values of order 1; counts, and what is a difference, are off by more.
TOLERANCE, OF_COUNTS = 1e-6, 5e-6


def near_within(found, expected, tolerance=TOLERANCE):
    np.testing.assert_allclose(found, expected, atol=tolerance, rtol=tolerance)


def assert_derivatives(problem, tolerance=OF_COUNTS):
    near = functools.partial(near_within, tolerance=tolerance)
    objective, head = problem.objective(), problem.head
    near(objective.loss(float32(head)), problem.loss(head))
    errors = objective.errors(float32(head))
    near(errors, problem.errors(head).T)
    near(objective.head_gradient(errors), problem.errors(head).T @ problem.inputs)
    of_features = problem.errors(head) @ head[:, :-1]
    near(objective.features_gradient(errors, float32(head)), of_features)
    both = objective.gradients(float32(head), 3.0)
    near(both[0], problem.gradient(head))
    near(both[1], 3 * of_features)
    direction = np.random.default_rng(1).normal(size=head.shape)
    product = objective.hessian_at(objective.widen(float32(head)))
    found = product(objective.widen(float32(direction)))[:, : head.shape[1]]
    near_within(found, problem.curved(head, direction), OF_COUNTS)


@pytest.mark.parametrize("penalty", [0.0, 0.3])
@pytest.mark.parametrize("case", TASKS)
def test_the_loss_and_its_derivatives_are_those_in_float64(case, penalty):
    assert_derivatives(Problem(case, penalty))


def test_the_derivatives_are_those_in_float64_in_whole_cache_lines_and_with_any_classes():
    for num_features, classes in itertools.product((5, 15, 16, 40), (1, 2, 3, 10)):
        problem = Problem("classification", examples=8, num_features=num_features, outputs=classes)
        assert_derivatives(problem, TOLERANCE)


@pytest.mark.parametrize("case", TASKS)
def test_the_bound_of_the_curvature_is_that_of_the_loss(case):
    for outputs in (2, 3, 5) if case == "classification" else (2,):
        problem = Problem(case, penalty=0.3, outputs=outputs)
        *_, bound = problem.losses(problem.inputs @ problem.head.T, problem.labels)
        smoothness = problem.objective().smoothness()
        if case in ("counts", "log-cosh", "own classes"):
            assert smoothness is None
        else:
            largest = bound * problem.smoothness
            assert 0.98 * largest < float(smoothness) - 0.3 <= largest * (1 + 1e-5)


@pytest.mark.parametrize("classes", [[4, 7, -1, -1], [-1, 1, -1, 3]])
def test_absent_classes_have_no_probability_and_no_gradient(classes):
    """This holds even if their rows hold weights of other clients, as in a shared classifier."""
    rng = np.random.default_rng(0)
    head, features = float32(rng.normal(size=(4, 6))), rng.normal(size=(6, 5))
    labels, present = np.array([0, 1, 0, 1, 1, 0]), np.flatnonzero(np.array(classes) >= 0)
    gradients, losses = [], []
    for objective, own in (
        (objective_of(features, present[labels], 4, tf.constant(classes)), head),
        (objective_of(features, labels, 2), tf.gather(head, present)),
    ):
        gradients.append(objective.head_gradient(objective.errors(own)).numpy())
        losses.append(objective.loss(own).numpy())
    assert not np.delete(gradients[0], present, axis=0).any()
    near_within(gradients[0][present], gradients[1])
    near_within(*losses)


def least_squares(problem):
    return network.ridge(problem.features.astype(float), problem.labels, problem.penalty[0])


@pytest.mark.parametrize("penalty", [0.0, 0.3])
@pytest.mark.parametrize("size", [(12, 5), (4, 9)], ids=["more examples", "more features"])
def test_least_squares_are_those_of_numpy(size, penalty):
    problem = Problem("regression", penalty, *size)
    expected = least_squares(problem)
    np.testing.assert_allclose(problem.objective().least_squares(), expected, atol=1e-5)
    assert problem.loss(expected) < problem.loss(problem.head)
