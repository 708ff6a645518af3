"""The loss of a head over fixed features, laid out for the inner loops of PFLEGO and others.

With X = (features, 1), [n, M + 1], logits Z = W X^T, [K, n], and errors
E_kj = (softmax(Z)_kj - [y_j = k]) / n:

    l(W) = mean_j cross_entropy(softmax(Z_j), y_j),  dl/dW = E X,  dl/dfeatures = E^T W[:, :M]

The classes come first in Z and E, so that the thin side of every product comes first, and X has
additional columns of 0, which make it as wide as whole cache lines. With so few rows, both make the
products several times faster than in the layout of `models.heads.head`. A head in this layout is
called wide.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tf_pflego.models.heads.head import ABSENT_LOGIT

_POWER_ITERATIONS = 10
_FLOATS_PER_CACHE_LINE = 16


class HeadObjective:
    """The mean loss of one client as a function of its head.

    Args:
      features: [n, M] float32.
      labels: [n] int32.
      rows: K, the number of rows of a head.
      classes: [K] int32, the class of each row; rows whose class is negative are absent: they have
        no probability and stay as they are. None if all are present.

    Attributes:
      inputs: X, [n, M'] float32; M' is M + 1 rounded up to whole cache lines.
      targets: [K, n] float32, one-hot labels.
      example_weight: [] float32, 1 / n.
      rows: K.
    """

    def __init__(
        self,
        features: tf.Tensor,
        labels: tf.Tensor,
        rows: int,
        classes: tf.Tensor | None = None,
    ):
        self._width = features.shape[1] + 1
        surplus = tf.one_hot(tf.zeros_like(labels), 1 + -self._width % _FLOATS_PER_CACHE_LINE)
        self.inputs = tf.concat([features, surplus], axis=1)
        self.targets = tf.one_hot(labels, rows, axis=0)
        self.example_weight = 1.0 / tf.cast(tf.shape(labels)[0], tf.float32)
        self.rows = rows
        self._present = None if classes is None else (classes >= 0)[:, None]

    def errors(self, head: tf.Tensor) -> tf.Tensor:
        """Returns E [K, n], the gradient of the loss in the logits, at a head [K, M + 1]."""
        return self.errors_at(self.widen(head))

    def head_gradient(self, errors: tf.Tensor) -> tf.Tensor:
        """Returns dl/dW [K, M + 1]."""
        return self.wide_gradient(errors)[:, : self._width]

    def features_gradient(self, errors: tf.Tensor, head: tf.Tensor) -> tf.Tensor:
        """Returns dl/dfeatures [n, M]."""
        return tf.linalg.matmul(errors, head[:, :-1], transpose_a=True)

    def gradients(
        self, head: tf.Tensor, features_weight: float | tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the joint gradient: dl/dW [K, M + 1] and features_weight dl/dfeatures [n, M]."""
        errors = self.errors(head)
        return self.head_gradient(errors), self.features_gradient(features_weight * errors, head)

    def loss(self, head: tf.Tensor) -> tf.Tensor:
        """Returns [] l(W)."""
        return self.loss_at(self.widen(head))

    def smoothness(self) -> tf.Tensor:
        """Returns [] L, a Lipschitz constant of dl/dW.

        It is half the largest eigenvalue of X^T X / n, since the Hessian of the cross-entropy in
        the logits is at most 1/2.
        """

        def gram(vector):
            product = tf.linalg.matmul(self.inputs, vector)
            return tf.linalg.matmul(self.inputs, self.example_weight * product, transpose_a=True)

        # The mean of X is close to the eigenvector if no feature is negative.
        mean = tf.reduce_mean(self.inputs, axis=0)[:, None]
        return _largest_eigenvalue(gram, mean) / 2

    def curvature(self, head: tf.Tensor) -> tf.Tensor:
        """Returns [] the largest eigenvalue of the Hessian of l at a head [K, M + 1].

        It is at most L, and usually far below it.
        """
        wide = self.widen(head)
        return _largest_eigenvalue(self.hessian_at(wide), self.wide_gradient(self.errors_at(wide)))

    # The methods below are for inner loops, which work on heads as wide as X.

    def widen(self, head: tf.Tensor) -> tf.Tensor:
        """Returns [K, M'] for a head [K, M + 1]; absent classes get a bias that excludes them."""
        if self._present is not None:
            bias = tf.where(self._present, head[:, -1:], ABSENT_LOGIT)
            head = tf.concat([head[:, :-1], bias], axis=1)
        return self.pad(head)

    def pad(self, head: tf.Tensor) -> tf.Tensor:
        """Returns a head [K, M + 1] as wide as X, [K, M']; its absent rows stay as they are."""
        return tf.pad(head, [(0, 0), (0, -self._width % _FLOATS_PER_CACHE_LINE)])

    def narrow(self, wide: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
        """Returns [K, M + 1] for a head [K, M'] that was `start` [K, M + 1] before its steps."""
        return self.where_present(wide[:, : self._width], start)

    def where_present(self, values: tf.Tensor, otherwise: tf.Tensor | float) -> tf.Tensor:
        """Returns `values` [K, ...], with those of `otherwise` in the rows of absent classes."""
        return values if self._present is None else tf.where(self._present, values, otherwise)

    def logits_at(self, wide: tf.Tensor) -> tf.Tensor:
        """Returns Z [K, n] of a head [K, M']."""
        return tf.linalg.matmul(wide, self.inputs, transpose_b=True)

    def errors_at(self, wide: tf.Tensor) -> tf.Tensor:
        """Returns E [K, n] at a head [K, M']."""
        return self.errors_of(self.logits_at(wide))

    def errors_of(self, logits: tf.Tensor) -> tf.Tensor:
        """Returns E [K, n] for logits [K, n]."""
        return self.example_weight * (_softmax(logits) - self.targets)

    def wide_gradient(self, errors: tf.Tensor) -> tf.Tensor:
        """Returns dl/dW [K, M'], with 0 in the surplus columns."""
        return tf.linalg.matmul(errors, self.inputs)

    def loss_at(self, wide: tf.Tensor) -> tf.Tensor:
        """Returns [] l(W) at a head [K, M']."""
        return self.loss_of(self.logits_at(wide))

    def loss_of(self, logits: tf.Tensor) -> tf.Tensor:
        """Returns [] the mean cross-entropy for logits [K, n]."""
        losses = tf.reduce_logsumexp(logits, axis=0) - tf.reduce_sum(self.targets * logits, axis=0)
        return tf.reduce_mean(losses)

    def mean_square(self) -> tf.Tensor:
        """Returns [] the mean over the examples of |x|^2, x their rows of X."""
        return self.example_weight * tf.reduce_sum(tf.square(self.inputs))

    def spread_of(self, logits: tf.Tensor) -> tf.Tensor:
        """Returns [] the mean over the examples of |z - mean of z|^2, for logits [K, n].

        Absent classes do not count.
        """
        if self._present is None:
            deviations = logits - tf.reduce_mean(logits, axis=0)
        else:
            count = tf.reduce_sum(tf.cast(self._present, tf.float32))
            mean = tf.reduce_sum(tf.where(self._present, logits, 0.0), axis=0) / count
            deviations = tf.where(self._present, logits - mean, 0.0)
        return self.example_weight * tf.reduce_sum(tf.square(deviations))

    def hessian_at(self, wide: tf.Tensor) -> Callable[[tf.Tensor], tf.Tensor]:
        """Returns the product of the Hessian at a head [K, M'] with any [K, M']."""
        probabilities = _softmax(self.logits_at(wide))

        def product(direction):
            weighted = probabilities * tf.linalg.matmul(direction, self.inputs, transpose_b=True)
            mean = tf.reduce_sum(weighted, axis=0)
            return self.wide_gradient(self.example_weight * (weighted - probabilities * mean))

        return product


def _softmax(logits):
    """Returns [K, n]; the classes come first, for which TensorFlow has no softmax that is fast."""
    exponentials = tf.exp(logits - tf.reduce_max(logits, axis=0))
    return exponentials / tf.reduce_sum(exponentials, axis=0)


def _largest_eigenvalue(product, start):
    """Returns [] a positive semidefinite matrix's largest eigenvalue, estimated from below.

    The power iteration starts from the elements of `start`, taken as one vector.
    """
    vector = start
    for _ in range(_POWER_ITERATIONS):
        vector = product(tf.math.divide_no_nan(vector, tf.norm(vector)))
    return tf.norm(vector)
