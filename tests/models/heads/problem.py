"""Features, labels and a head of each task, and its loss in float64."""

import numpy as np
import tensorflow as tf

import tf_pflego as pfl
from tests.oracles import network
from tf_pflego.models.heads.objective import HeadObjective

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
    "classification": ("classification", "classification", network.losses),
    "multi_label": ("multi_label", "multi_label", network.losses),
    "regression": (pfl.regression(**STANDARDIZED), "regression", network.losses),
    "counts": ("counts", "counts", network.losses),
    "huber": (pfl.regression(huber=HUBER), "regression", huber_losses),
    "log-cosh": (pfl.Task(log_cosh, **STANDARDIZED), "regression", log_cosh_losses),
    "own classes": (OWN_CLASSES, "classification", network.losses),
}


def float32(array):
    return tf.constant(array, tf.float32)


class Problem:
    """Features, labels and a head, of two outputs or some classes, and the loss in float64."""

    def __init__(self, case, penalty=0.0, examples=EXAMPLES, num_features=FEATURES, outputs=2):
        rng = np.random.default_rng(0)
        self.task, form, self.losses = TASKS[case]
        self.features = np.float32(rng.normal(size=(examples, num_features)))
        if examples > 2 * EXAMPLES:  # The curvatures of rectified ones are further apart.
            self.features = np.maximum(self.features, 0)
        self.labels = {
            "classification": lambda: rng.integers(0, outputs, examples),
            "multi_label": lambda: rng.integers(0, 2, (examples, 2)),
            "regression": lambda: np.float32(rng.normal(network.MEAN, 1, (examples, 2))),
            "counts": lambda: np.float32(rng.poisson(2, (examples, 2))),
        }[form]()
        self.head = rng.normal(size=(outputs, num_features + 1)) / 2
        self.inputs = np.hstack([self.features, np.ones((examples, 1))]).astype(np.float64)
        self.penalty = penalty * np.append(np.ones(num_features), 0)

    def loss(self, head):
        losses, *_ = self.losses(self.inputs @ head.T, self.labels)
        return np.mean(losses) + np.sum(self.penalty * head**2) / 2

    def errors(self, head):
        return self.losses(self.inputs @ head.T, self.labels)[1] / len(self.labels)

    def gradient(self, head):
        return self.errors(head).T @ self.inputs + self.penalty * head

    def curved(self, head, direction, h=1e-5):
        """Returns the product of the Hessian with a direction, by differences."""
        ahead, behind = (self.gradient(head + step * direction) for step in (h, -h))
        return (ahead - behind) / (2 * h)

    def objective(self):
        return objective_of(self.features, self.labels, len(self.head), None, self.task, self)

    @property
    def smoothness(self):
        """The largest eigenvalue of X^T X / n."""
        return np.linalg.eigvalsh(self.inputs.T @ self.inputs / len(self.inputs))[-1]


def objective_of(features, labels, rows, classes=None, task="classification", problem=None):
    data = tf.constant(features, tf.float32), tf.constant(labels)
    penalty = 0.0 if problem is None else float(problem.penalty[0])
    return HeadObjective(*data, rows, classes, task, penalty)
