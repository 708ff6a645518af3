"""The loss of a head over fixed features, laid out for the inner loops of PFLEGO and others.

With X = (features, 1), [n, M + 1], logits Z = W X^T, [K, n], and errors E = slope(Z, Y) / n, the
slope of the task's loss, which of a canonical link is mean(Z) - Y (see `core.tasks`):

    l(W) = mean_j loss(Z_j, Y_j) + (penalty/2) |W[:, :M]|^2 + (strength/2n) |W - mean|^2
    dl/dW = E X + penalty (W[:, :M], 0) + (strength/n) (W - mean),   dl/dfeatures = E^T W[:, :M]

The outputs come first in Z and E, so that the thin side of every product comes first, and X has
additional columns of 0, which make it as wide as whole cache lines. With so few rows, both make the
products several times faster than in the layout of `models.heads.head`. A head in this layout is
called wide.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tf_pflego.core import tasks
from tf_pflego.models.heads.head import ABSENT_LOGIT

_POWER_ITERATIONS = 10
_FLOATS_PER_CACHE_LINE = 16
_LEAST_RIDGE = 1e-11  # of the trace: with less, float64 cannot tell which minimum is the least


class HeadObjective:
    """The mean loss of one client as a function of its head.

    Args:
      features: [n, M] float32, or [n, T, M] for the positions of sequences, where each labelled
        position is an example.
      labels: As the task takes them.
      rows: K, the number of rows of a head.
      classes: [K] int32, the class of each row. Rows with a negative class are absent: they have no
        probability and do not change. None if all are present.
      task: The task (see `core.tasks`).
      penalty: Weight of half the squared norm of the head without its biases.

    Attributes:
      inputs: X, [n, M'] float32. M' is M + 1 rounded up to whole cache lines.
      targets: The labels as the task's loss takes them, such as [K, n] float32.
      example_weight: [] float32, 1 / n.
      rows, task: The arguments.
    """

    def __init__(
        self,
        features: tf.Tensor,
        labels: tf.Tensor,
        rows: int,
        classes: tf.Tensor | None = None,
        task: str | tasks.Task = tasks.CLASSIFICATION,
        penalty: float = 0.0,
    ):
        self._sequences = None if features.shape.rank == 2 else (tf.shape(features), labels)
        features, labels = tasks.flat(features, labels)
        self._width = features.shape[1] + 1
        count = tf.shape(labels)[0]
        surplus = tf.one_hot(tf.zeros([count], tf.int32), 1 + -self._width % _FLOATS_PER_CACHE_LINE)
        self.inputs = tf.concat([features, surplus], axis=1)
        self.rows, self.task = rows, tasks.task_of(task)
        self.targets = self.task.targets(labels, rows)
        self.example_weight = 1.0 / tf.cast(count, tf.float32)
        self._present = None if classes is None else (classes >= 0)[:, None]
        self._penalty, self._toward = penalty, None

    @property
    def is_constant(self) -> bool:
        """Whether no head can change the loss, as with a single class."""
        return self.rows == 1 and self.task.is_softmax

    @property
    def is_of_two_classes(self) -> bool:
        """Whether the loss depends only on the difference of the two rows of a head."""
        has_penalty = self._penalty or self._toward is not None
        return self.rows == 2 and self.task.is_softmax and not has_penalty

    def pulled(self, mean: tf.Tensor, strength: tf.Tensor) -> HeadObjective:
        """Adds (strength/2n) |W - mean|^2 to the loss, for a mean head [K, M + 1]; returns self."""
        self._toward, self._pull = mean, self.example_weight * strength
        return self

    def errors(self, head: tf.Tensor) -> tf.Tensor:
        """Returns E [K, n], the gradient of the loss in the logits, at a head [K, M + 1]."""
        return self.errors_at(self.widen(head))

    def head_gradient(self, errors: tf.Tensor) -> tf.Tensor:
        """Returns dl/dW [K, M + 1], without the penalty."""
        return self.wide_gradient(errors)[:, : self._width]

    def features_gradient(self, errors: tf.Tensor, head: tf.Tensor) -> tf.Tensor:
        """Returns dl/dfeatures, in the shape of the features."""
        gradient = tf.linalg.matmul(errors, head[:, :-1], transpose_a=True)
        if self._sequences is None:
            return gradient
        shape, labels = self._sequences
        return tf.scatter_nd(tf.where(labels >= 0), gradient, tf.cast(shape, tf.int64))

    def gradients(
        self, head: tf.Tensor, features_weight: float | tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the joint gradient: dl/dW [K, M + 1] and features_weight dl/dfeatures."""
        errors = self.errors(head)
        g_head = self.head_gradient(errors)
        if self._penalty:
            g_head += self._penalty * self._without_bias(head)
        return g_head, self.features_gradient(features_weight * errors, head)

    def loss(self, head: tf.Tensor) -> tf.Tensor:
        """Returns [] l(W)."""
        return self.loss_at(self.widen(head))

    def slope_at(self, head: tf.Tensor) -> tf.Tensor:
        """Returns [] the norm of dl/dW at a head [K, M + 1]."""
        return _norm(self.gradient_at(self.widen(head)))

    def smoothness(self) -> tf.Tensor | None:
        """Returns [] L, a Lipschitz constant of dl/dW, or None if the task's loss has none.

        It is the bound of the loss' second derivatives in the logits times the largest eigenvalue
        of X^T X / n, plus the penalty.
        """
        if self.task.outputs_first.bound is None:
            return None

        def gram(vector):
            product = tf.linalg.matmul(self.inputs, vector)
            return tf.linalg.matmul(self.inputs, self.example_weight * product, transpose_a=True)

        # The mean of X is close to the eigenvector if no feature is negative.
        mean = tf.reduce_mean(self.inputs, axis=0)[:, None]
        largest = self.task.outputs_first.bound * _largest_eigenvalue(gram, mean)
        largest = largest + self._penalty if self._penalty else largest
        return largest if self._toward is None else largest + self._pull

    def curvature(self, head: tf.Tensor) -> tf.Tensor:
        """Returns [] the largest eigenvalue of the Hessian of l at a head [K, M + 1].

        It is at most L, and usually far below it.
        """
        wide = self.widen(head)
        return _largest_eigenvalue(self.hessian_at(wide), self.gradient_at(wide))

    def least_squares(self) -> tf.Tensor:
        """Returns the head [K, M + 1] of the least loss, for a task of least squares.

        It solves (X^T X / n + penalty D) W^T = X^T Y / n in float64, by Cholesky's method, where D
        is the identity except for a 0 at the bias. A tiny multiple of the identity selects the
        minimum with the least norm if there are several, as with more features than examples.
        """
        inputs = tf.cast(self.inputs[:, : self._width], tf.float64)
        targets, weight = (tf.cast(t, tf.float64) for t in (self.targets, self.example_weight))
        gram = weight * tf.linalg.matmul(inputs, inputs, transpose_a=True)
        least = _LEAST_RIDGE * tf.linalg.trace(gram)
        all_but_bias = tf.one_hot(self._width - 1, self._width, 0.0, 1.0, dtype=tf.float64)
        ridge = tf.fill([self._width], least) + self._penalty * all_but_bias
        right = weight * tf.linalg.matmul(inputs, targets, transpose_a=True, transpose_b=True)
        if self._toward is not None:
            pull = tf.cast(self._pull, tf.float64)
            ridge += pull
            right += pull * tf.cast(tf.transpose(self._toward), tf.float64)
        factor = tf.linalg.cholesky(gram + tf.linalg.diag(ridge))
        return tf.cast(tf.transpose(tf.linalg.cholesky_solve(factor, right)), tf.float32)

    # The methods below are for inner loops, which work on heads as wide as X.

    def widen(self, head: tf.Tensor) -> tf.Tensor:
        """Returns [K, M'] for a head [K, M + 1]; absent classes get a bias that excludes them."""
        if self._present is not None:
            bias = tf.where(self._present, head[:, -1:], ABSENT_LOGIT)
            head = tf.concat([head[:, :-1], bias], axis=1)
        return self.pad(head)

    def pad(self, head: tf.Tensor) -> tf.Tensor:
        """Returns a head [K, M + 1] as wide as X, [K, M']. Its absent rows do not change."""
        return tf.pad(head, [(0, 0), (0, -self._width % _FLOATS_PER_CACHE_LINE)])

    def narrow(self, wide: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
        """Returns [K, M + 1] for a head [K, M'] that was `start` [K, M + 1] before its steps."""
        return self.where_present(wide[:, : self._width], start)

    def where_present(self, values: tf.Tensor, otherwise: tf.Tensor | float) -> tf.Tensor:
        """Returns `values` [K, ...], with `otherwise` in the rows of absent classes."""
        return values if self._present is None else tf.where(self._present, values, otherwise)

    def logits_at(self, wide: tf.Tensor) -> tf.Tensor:
        """Returns Z [K, n] of a head [K, M']."""
        return tf.linalg.matmul(wide, self.inputs, transpose_b=True)

    def errors_at(self, wide: tf.Tensor) -> tf.Tensor:
        """Returns E [K, n] at a head [K, M']."""
        return self.errors_of(self.logits_at(wide))

    def errors_of(self, logits: tf.Tensor) -> tf.Tensor:
        """Returns E [K, n] for logits [K, n]."""
        return self.example_weight * self.task.outputs_first.slope(logits, self.targets)

    def wide_gradient(self, errors: tf.Tensor) -> tf.Tensor:
        """Returns E X [K, M'], with 0 in the surplus columns."""
        return tf.linalg.matmul(errors, self.inputs)

    def gradient_at(self, wide: tf.Tensor) -> tf.Tensor:
        """Returns dl/dW [K, M'] at a head [K, M']."""
        gradient = self.wide_gradient(self.errors_at(wide))
        if self._toward is not None:
            gradient += self._pull * self._from_mean(wide)
        return gradient + self._penalty * self._without_bias(wide) if self._penalty else gradient

    def _from_mean(self, wide):
        """Returns W - mean [K, M'], with 0 in the rows of absent classes."""
        return self.where_present(wide - self.pad(self._toward), 0.0)

    def _without_bias(self, head):
        """Returns a head [K, M + 1] or [K, M'] with biases of 0."""
        return tf.pad(head[:, : self._width - 1], [(0, 0), (0, head.shape[1] - self._width + 1)])

    def loss_at(self, wide: tf.Tensor) -> tf.Tensor:
        """Returns [] l(W) at a head [K, M']."""
        loss = self.loss_of(self.logits_at(wide))
        if self._penalty:
            loss += self._penalty / 2 * tf.reduce_sum(tf.square(self._without_bias(wide)))
        if self._toward is not None:
            loss += self._pull / 2 * tf.reduce_sum(tf.square(self._from_mean(wide)))
        return loss

    def loss_of(self, logits: tf.Tensor) -> tf.Tensor:
        """Returns [] the mean loss for logits [K, n], without the penalty."""
        return tf.reduce_mean(self.task.outputs_first.values(logits, self.targets))

    def mean_square(self) -> tf.Tensor:
        """Returns [] the mean over the examples of |x|^2, x their rows of X."""
        return self.example_weight * tf.reduce_sum(tf.square(self.inputs))

    def spread_of(self, logits: tf.Tensor) -> tf.Tensor:
        """Returns [] the mean over the examples of |z - mean of z|^2, for logits [K, n].

        Absent classes do not count. Without a softmax the mean counts too: this is |z|^2 then.
        """
        if not self.task.is_softmax:
            deviations = logits
        elif self._present is None:
            deviations = logits - tf.reduce_mean(logits, axis=0)
        else:
            count = tf.reduce_sum(tf.cast(self._present, tf.float32))
            mean = tf.reduce_sum(tf.where(self._present, logits, 0.0), axis=0) / count
            deviations = tf.where(self._present, logits - mean, 0.0)
        return self.example_weight * tf.reduce_sum(tf.square(deviations))

    def hessian_at(self, wide: tf.Tensor) -> Callable[[tf.Tensor], tf.Tensor]:
        """Returns the product of the Hessian at a head [K, M'] with any [K, M']."""
        along = self.task.outputs_first.curve(self.logits_at(wide), self.targets)

        def product(direction):
            bent = along(tf.linalg.matmul(direction, self.inputs, transpose_b=True))
            curved = self.wide_gradient(self.example_weight * bent)
            if self._toward is not None:
                curved += self._pull * self.where_present(direction, 0.0)
            return (
                curved + self._penalty * self._without_bias(direction) if self._penalty else curved
            )

        return product


def _norm(tensor):
    """Returns [] the root of the sum of squares.

    `tf.norm` squeezes axes, which `tf.vectorized_map` gets wrong for a single client. A quotient
    by the root of the sum of `tf.square` is a norm along the last axis in TFLite.
    """
    return tf.sqrt(tf.reduce_sum(tensor * tensor))


def _largest_eigenvalue(product, start):
    """Returns [] a positive semidefinite matrix's largest eigenvalue, estimated from below.

    The power iteration starts from the elements of `start`, taken as one vector.
    """
    vector = start
    for _ in range(_POWER_ITERATIONS):
        vector = product(tf.math.divide_no_nan(vector, _norm(vector)))
    return _norm(vector)
