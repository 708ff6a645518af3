"""Heads that predict labels, quantities or counts, or learn from a loss of one's own."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.methods import each_of, thorough
from tests.oracles import network
from tf_pflego.models.heads.objective import HeadObjective
from tf_pflego.models.heads.solvers import STEPWISE, automatic_rate, solve

TOLERANCE = 5e-6  # float32 against float64, values of order 1.
EXAMPLES, FEATURES = 12, 5
HUBER = 0.7
STANDARDIZED = {"mean": network.MEAN, "deviation": network.DEVIATION}


def log_cosh(logits, labels):
    error = logits - labels
    return tf.reduce_sum(error + tf.nn.softplus(-2 * error) - tf.math.log(2.0), axis=1)


def log_cosh_losses(z, y):
    error = z - (y - network.MEAN) / network.DEVIATION
    return np.log(np.cosh(error)).sum(axis=1), np.tanh(error), None


def huber_losses(z, y):
    error = z - y
    slope = np.clip(error, -HUBER, HUBER)
    return (slope * (error - slope / 2)).sum(axis=1), slope, 1.0


def cross_entropy(logits, labels):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


OWN_CLASSES = pfl.Task(cross_entropy, labels="classification")
# The task, of what form its labels are, and (logits, labels) -> losses, their slopes and a bound.
TASKS = {
    "multi_label": ("multi_label", "multi_label", network.losses),
    "regression": (pfl.regression(**STANDARDIZED), "regression", network.losses),
    "counts": ("counts", "counts", network.losses),
    "huber": (pfl.regression(huber=HUBER), "regression", huber_losses),
    "log-cosh": (pfl.Task(log_cosh, **STANDARDIZED), "regression", log_cosh_losses),
    "own classes": (OWN_CLASSES, "classification", network.losses),
}


class Problem:
    """Features, labels and a head, of two outputs, and the loss in float64."""

    def __init__(self, case, penalty=0.0, examples=EXAMPLES, num_features=FEATURES):
        rng = np.random.default_rng(0)
        self.task, form, self.losses = TASKS[case]
        self.features = np.float32(rng.normal(size=(examples, num_features)))
        self.labels = {
            "classification": lambda: rng.integers(0, 2, examples),
            "multi_label": lambda: rng.integers(0, 2, (examples, 2)),
            "regression": lambda: np.float32(rng.normal(network.MEAN, 1, (examples, 2))),
            "counts": lambda: np.float32(rng.poisson(2, (examples, 2))),
        }[form]()
        self.head = rng.normal(size=(2, num_features + 1)) / 2
        self.inputs = np.hstack([self.features, np.ones((examples, 1))]).astype(np.float64)
        self.penalty = penalty * np.append(np.ones(num_features), 0)

    def loss(self, head):
        losses, *_ = self.losses(self.inputs @ head.T, self.labels)
        return np.mean(losses) + np.sum(self.penalty * head**2) / 2

    def errors(self, head):
        return self.losses(self.inputs @ head.T, self.labels)[1] / len(self.labels)

    def gradient(self, head):
        return self.errors(head).T @ self.inputs + self.penalty * head

    def objective(self):
        labels = tf.constant(self.labels)
        return HeadObjective(
            tf.constant(self.features), labels, 2, task=self.task, penalty=self.penalty[0]
        )


def float32(array):
    return tf.constant(array, tf.float32)


@pytest.mark.parametrize("penalty", [0.0, 0.3])
@pytest.mark.parametrize("case", TASKS)
def test_the_loss_and_its_derivatives_are_those_in_float64(case, penalty):
    problem = Problem(case, penalty)
    objective, head = problem.objective(), problem.head
    near = functools.partial(np.testing.assert_allclose, atol=TOLERANCE, rtol=TOLERANCE)
    near(objective.loss(float32(head)), problem.loss(head))
    near(objective.errors(float32(head)), problem.errors(head).T)
    of_head, of_features = objective.gradients(float32(head), 3.0)
    near(of_head, problem.gradient(head))
    near(of_features, 3 * problem.errors(head) @ head[:, :-1])
    direction, h = np.random.default_rng(1).normal(size=head.shape), 1e-5
    ahead, behind = (problem.gradient(head + step * direction) for step in (h, -h))
    product = objective.hessian_at(objective.widen(float32(head)))
    found = product(objective.widen(float32(direction)))[:, : head.shape[1]]
    near(found, (ahead - behind) / (2 * h))


@pytest.mark.parametrize("case", TASKS)
def test_the_bound_of_the_curvature_is_that_of_the_loss(case):
    problem = Problem(case, penalty=0.3)
    *_, bound = problem.losses(problem.inputs @ problem.head.T, problem.labels)
    smoothness = problem.objective().smoothness()
    if case in ("counts", "log-cosh", "own classes"):
        assert smoothness is None
    else:
        largest = np.linalg.eigvalsh(problem.inputs.T @ problem.inputs / EXAMPLES)[-1]
        assert 0.98 * bound * largest < float(smoothness) - 0.3 <= bound * largest * (1 + 1e-5)


@functools.partial(tf.function, autograph=False)
def traced(features, labels, head, steps, rate, solver, task, penalty):
    objective = HeadObjective(features, labels, 2, task=task, penalty=penalty)
    if rate is None:
        rate = automatic_rate(objective, head, solver, np.inf)
    return solve(objective, head, steps, solver, rate)


def run(problem, solver, head, steps, rate):
    """Returns the head after some steps, in float64; a rate of None is the automatic one."""
    data = tf.constant(problem.features), tf.constant(problem.labels), float32(head)
    rate = rate if rate is None else tf.constant(rate)
    penalty = float(problem.penalty[0])
    return traced(*data, steps, rate, solver, problem.task, penalty).numpy().astype(np.float64)


@pytest.mark.parametrize("solver", each_of(STEPWISE, ("gd",)))
@pytest.mark.parametrize(
    "case", each_of([case for case in TASKS if case != "own classes"], ("counts",))
)
def test_the_loss_does_not_rise_whatever_the_rate(case, solver):
    problem = Problem(case, penalty=0.1)
    for rate in (1e4, 1e30, *([None] if solver != "adam" else [])):
        for start in (problem.head, 10 * problem.head):
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


# More examples than features, and fewer.
SIZES = [(EXAMPLES, FEATURES), (4, 9)]


def least_squares(problem):
    return network.ridge(problem.features.astype(float), problem.labels, problem.penalty[0])


@pytest.mark.parametrize("penalty", [0.0, 0.3])
@pytest.mark.parametrize("size", SIZES)
def test_least_squares_are_those_of_numpy(size, penalty):
    problem = Problem("regression", penalty, *size)
    expected = least_squares(problem)
    np.testing.assert_allclose(problem.objective().least_squares(), expected, atol=1e-5)
    np.testing.assert_allclose(run(problem, "exact", problem.head, 1, 0.1), expected, atol=1e-5)
    assert problem.loss(expected) < problem.loss(problem.head)


@pytest.mark.parametrize(
    ("solver", "steps"), [thorough("gd", 4000), thorough("momentum", 1000), ("newton", 40)]
)
def test_solvers_agree_with_the_exact_one(solver, steps):
    problem = Problem("regression", 0.3)
    found = run(problem, solver, problem.head, steps, None)
    np.testing.assert_allclose(found, least_squares(problem), atol=1e-5)
