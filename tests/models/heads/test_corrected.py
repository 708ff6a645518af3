import numpy as np
import pytest
import tensorflow as tf

from tests.comparison import assert_near
from tests.methods import thorough
from tests.oracles import network
from tf_pflego.models.heads.corrected import CorrectedHead
from tf_pflego.models.heads.objective import HeadObjective

TOLERANCE = 5e-6  # float32 against float64 over fifty steps, weights of order 1.
FEATURES, EXAMPLES = 8, 12


# By task, the bound of the second derivatives in the logits.
BOUNDS = {"classification": 1 / 2, "multi_label": 1 / 4, "regression": 1}


class Problem:
    """Random features, labels, R, U and g; rows whose class is negative are absent."""

    def __init__(self, classes, task="classification", reference_scale=1.0):
        rng = np.random.default_rng(0)
        self.classes, self.task = np.array(classes), task
        self.own = np.flatnonzero(self.classes >= 0)
        self.features = rng.normal(size=(EXAMPLES, FEATURES))
        self.labels = rng.integers(0, len(self.own), EXAMPLES)
        if task != "classification":
            self.labels = rng.integers(0, 2, (EXAMPLES, len(classes)))
        self.reference = reference_scale * rng.normal(size=(len(self.own), FEATURES + 1))
        self.correction = 0.3 * rng.normal(size=(len(self.own), FEATURES + 1))
        self.gate = 0.8

    @property
    def inputs(self):
        return np.hstack([self.features, np.ones((EXAMPLES, 1))])

    def rows(self, own):
        """Returns [K, M + 1] float32, with 0 for absent classes."""
        rows = np.zeros((len(self.classes), FEATURES + 1), np.float32)
        rows[self.own] = own
        return tf.constant(rows)

    def head(self, penalty, **learns):
        """Returns the class under test."""
        features, classes = tf.constant(self.features, tf.float32), tf.constant(self.classes)
        if self.task == "classification":
            labels, absent = tf.constant(self.own[self.labels], tf.int32), classes
        else:
            labels, absent = tf.constant(self.labels, tf.int32), None
        objective = HeadObjective(features, labels, len(self.classes), absent, self.task)
        shared = np.zeros((self.classes.max() + 1, FEATURES + 1), np.float32)
        shared[self.classes[self.own]] = self.reference
        return CorrectedHead(objective, tf.constant(shared), classes, penalty, **learns)

    def descended(self, penalty, steps, rate, **learns):
        """Returns the rows of U of the client's own classes, and g, after `descend`."""
        start = self.rows(self.correction), tf.constant(self.gate, tf.float32)
        rate = tf.constant(rate, tf.float32)
        correction, gate = self.head(penalty, **learns).descend(*start, steps, rate)
        assert not np.delete(correction.numpy(), self.own, axis=0).any()
        return correction.numpy()[self.own], gate.numpy()

    def losses(self, correction, gate):
        """Returns l in float64, and its slopes in the logits of all examples."""
        z, y = self.inputs @ (gate * self.reference + correction).T, self.labels
        if self.task == "regression":
            return np.sum((z - y) ** 2) / 2 / EXAMPLES, (z - y) / EXAMPLES
        losses, slopes, _ = network.losses(z, y)
        return losses.mean(), slopes / EXAMPLES

    def value(self, correction, gate, penalty):
        """Returns F in float64."""
        return self.losses(correction, gate)[0] + penalty / 2 * np.sum(correction**2)

    def steps(self, penalty, steps, rate, gate_rate, learns_correction=True, learns_gate=True):
        """Returns (U, g) after so many steps in float64."""
        u, g = self.correction, self.gate
        for _ in range(steps):
            _, slopes = self.losses(u, g)
            of_u, of_g = slopes.T @ self.inputs, np.sum(slopes * (self.inputs @ self.reference.T))
            if learns_correction:
                u = (u - rate * of_u) / (1 + rate * penalty)
            if learns_gate:
                g = np.clip(g - gate_rate * of_g, 0, 1)
        return u, g

    def hessian(self, correction, gate):
        """Returns the Hessian of l in the elements of U, by rows, and in g."""
        total = 0.0
        for x in self.inputs:
            z = (gate * self.reference + correction) @ x
            p = np.exp(z) / np.exp(z).sum()
            second = {
                "classification": np.diag(p) - np.outer(p, p),
                "multi_label": np.diag(1 / (2 + np.exp(z) + np.exp(-z))),
                "regression": np.eye(len(z)),
            }[self.task]
            logits_by_both = np.hstack([np.kron(np.eye(len(p)), x), (self.reference @ x)[:, None]])
            total += logits_by_both.T @ second @ logits_by_both
        return total / EXAMPLES

    def sums(self):
        """Returns 2 h A and 2 h B."""
        z = self.inputs @ self.reference.T
        if self.task == "classification":
            z -= z.mean(axis=1, keepdims=True)
        return [2 * BOUNDS[self.task] * np.sum(one**2) / EXAMPLES for one in (self.inputs, z)]


# Of two rows, of more, and with absent ones.
CLASSES = [(0, 1), (3, 5, 1), (-1, 1, -1, 4), tuple(range(10))]
# The same, and what is no class, of two outputs and of more.
PROBLEMS = [(classes, "classification") for classes in CLASSES]
PROBLEMS += [((0, 1), "multi_label"), ((0, 1, 2), "multi_label"), ((0, 1), "regression")]


@pytest.mark.parametrize(("classes", "task"), PROBLEMS)
def test_matches_plain_steps_in_float64(classes, task):
    problem, rate = Problem(classes, task), 0.05
    for steps, penalty in ((0, 30.0), (1, 0.01), (8, 0.01), (8, 30.0), (49, 0.01), (49, 30.0)):
        expected = problem.steps(penalty, steps, rate, rate)
        assert_near(problem.descended(penalty, steps, rate), expected, atol=TOLERANCE)
        assert (problem.gate != expected[1]) == (steps > 0)


@pytest.mark.parametrize(
    ("classes", "task"), [PROBLEMS[0], *(thorough(*one) for one in PROBLEMS[2:5:2])]
)
def test_the_penalty_grows_with_what_the_shared_head_knows_of_classes(classes, task):
    problem, penalty = Problem(classes, task), 0.1
    start, zeros = problem.correction, 0 * problem.correction
    problem.correction = zeros
    problem.reference, _ = problem.steps(0.0, 200, 0.5, 0.0)  # It is fitted, as far as it can be.
    problem.correction = start
    known = problem.losses(zeros, 0.0)[0] / problem.losses(zeros, 1.0)[0]
    expected = penalty * known**2 if task == "classification" else penalty
    assert task != "classification" or expected > 1.4 * penalty
    found = problem.descended(penalty, 20, 0.05, growth=2.0)
    assert_near(found, problem.steps(expected, 20, 0.05, 0.05), atol=TOLERANCE)


def test_beside_a_shared_head_that_knows_all_a_correction_becomes_0():
    problem = Problem((0, 1, 2))
    problem.features[:, :3] = 1e4 * np.eye(3)[problem.labels]
    problem.reference = np.eye(3, FEATURES + 1)
    correction, gate = problem.descended(1.0, 20, 1e-4, growth=2.0)
    assert np.abs(correction).max() < 1e-6
    assert gate == np.float32(problem.gate)


@pytest.mark.parametrize("classes", CLASSES[:2])
@pytest.mark.parametrize("fixed", ["learns_gate", "learns_correction"])
def test_what_is_not_learnt_stays(classes, fixed):
    problem, learns = Problem(classes), {fixed: False}
    found = problem.descended(0.1, 9, 0.05, **learns)
    assert_near(found, problem.steps(0.1, 9, 0.05, 0.05, **learns), atol=TOLERANCE)
    start = {"learns_gate": problem.gate, "learns_correction": problem.correction}
    np.testing.assert_allclose(found[fixed == "learns_gate"], start[fixed], atol=1e-7)


@pytest.mark.parametrize("penalty", [0.01, 30.0])
@pytest.mark.parametrize("classes", [(0, 1), (0, -1), (-1, 0)])
def test_two_rows_move_as_they_do_beside_an_absent_one(classes, penalty):
    """Those of one class alone shrink, since its loss is 0."""
    problem, beside = Problem(classes), Problem((*classes, -1))
    found, expected = (p.descended(penalty, 49, 0.05) for p in (problem, beside))
    assert_near(found, expected, atol=TOLERANCE)
    if -1 in classes:
        shrunk = problem.correction * (1 + 0.05 * penalty) ** -49
        np.testing.assert_allclose(found[0], shrunk, atol=TOLERANCE)


@pytest.mark.parametrize(("classes", "task"), PROBLEMS)
def test_no_rate_raises_the_value(classes, task):
    """With this one, plain steps do, so that they are taken again, with 1 / (2 h A + lambda)."""
    problem, rate, penalty = Problem(classes, task, reference_scale=3.0), 500.0, 0.01
    started = problem.value(problem.correction, problem.gate, penalty)
    assert problem.value(*problem.steps(penalty, 20, rate, rate), penalty) > 2 * started
    correction, gate = problem.descended(penalty, 20, rate)
    assert problem.value(correction, gate, penalty) < started
    of_correction, of_gate = problem.sums()
    expected = problem.steps(penalty, 20, 1 / (of_correction + penalty), 1 / of_gate)
    assert_near((correction, gate), expected, atol=TOLERANCE)


def test_a_head_of_one_row_stays_and_a_value_that_is_no_number_is_not_kept():
    problem = Problem((4,))
    correction, gate = problem.descended(0.1, 5, 0.05)
    np.testing.assert_array_equal(correction, problem.correction.astype(np.float32))
    assert gate == np.float32(problem.gate)
    problem = Problem((0, 1, 2))
    correction, gate = problem.descended(0.01, 5, 1e38)
    started = problem.value(problem.correction, problem.gate, 0.01)
    assert problem.value(correction, gate, 0.01) < started


@pytest.mark.parametrize(("classes", "task"), PROBLEMS)
def test_the_rate_is_at_most_what_the_curvature_allows(classes, task):
    """And the bounds of the curvature hold: the Hessian of F is computed in float64."""
    problem, penalty = Problem(classes, task), 0.7
    of_correction, of_gate = problem.sums()
    head, count = problem.head(penalty), problem.correction.size
    expected = {
        "none": 9.0,
        "correction": 2 / (of_correction + 2 * penalty),
        "joint": 2 / (of_correction + of_gate + 2 * penalty),
    }
    for cap, rate in expected.items():
        assert float(head.rate(9.0, cap)) == pytest.approx(rate, rel=1e-5)
        assert float(head.rate(1e-3, cap)) == pytest.approx(1e-3)
    for scale in (0.0, 0.3, 3.0):
        hessian = problem.hessian(scale * problem.correction, scale * problem.gate)
        assert hessian[-1, -1] <= of_gate / 2
        hessian[:count, :count] += penalty * np.eye(count)
        largest = np.linalg.eigvalsh(hessian[:count, :count])[-1]
        assert largest <= of_correction / 2 + penalty
        assert np.linalg.eigvalsh(hessian)[-1] <= (of_correction + of_gate) / 2 + penalty
        safe = np.diag([*np.full(count, of_correction + penalty), of_gate])
        assert np.linalg.eigvalsh(safe - hessian)[0] >= 0
