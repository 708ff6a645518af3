"""A head that is a gate times a shared head, plus its own correction.

A client's rows of the shared head V [C, M + 1], which is fixed here, are R = S V, [K, M + 1].
With a gate g in [0, 1] and a correction U [K, M + 1], its head is W = g R + U.
`CorrectedHead.descend` moves U and g over fixed features, to lower

    F(U, g) = l(g R + U) + (lambda_i / 2) |U|^2

where l is the client's mean loss. For X, Z and E see `models.heads.objective`. With classes, the
penalty grows with the shared head's knowledge of them, lambda_i = lambda max(1, l(0) / l(R))^p: if
little is left to correct, a correction would mostly fit the client's few examples. With Z = R X^T
the logits are g Z + U X^T, and Z is computed once. A step with rates b and c is

    U <- (U - b E X) / (1 + b lambda_i),  g <- min(max(g - c sum_kj E_kj Z_kj, 0), 1)

where the same errors E are used for both. It is a gradient step on l, followed by the proximal step
of the penalty and of the interval.

The bound of a step: the Hessian of the loss in the logits is at most h, which is 1/2 for the
cross-entropy of classes. The curvature of F in U is therefore at most h A + lambda, where A is the
mean of |x|^2 over the rows of X, and the curvature in g is at most h B, where B is the mean of
|z|^2 over the examples. With classes it is the mean of |z - mean of z|^2, since a common term in
all logits of an example changes nothing. For both together, the curvature is at most twice as large
in each. A step with the rates 1 / (2 h A + lambda) for U and 1 / (2 h B) for g therefore does not
raise F at any lambda_i, since the step of the penalty is proximal.
"""

from __future__ import annotations

import tensorflow as tf

from tf_pflego.models.heads.descent import are_none, repeat
from tf_pflego.models.heads.objective import HeadObjective

CAPS = ("correction", "joint", "none")


def corrected(
    shared_head: tf.Tensor, classes: tf.Tensor, correction: tf.Tensor, gate: tf.Tensor
) -> tf.Tensor:
    """Returns W = g S V + U, [K, M + 1], for a client with `classes` [K] (see `Client`)."""
    return gate * _rows_of(shared_head, classes) + correction


def _rows_of(shared_head, classes):
    """Returns S V [K, M + 1], with 0 for absent classes."""
    rows = tf.gather(shared_head, tf.maximum(classes, 0))
    return tf.where((classes >= 0)[:, None], rows, 0.0)


class CorrectedHead:
    """The objective F of one client, over fixed features.

    Args:
      objective: The client's loss l.
      shared_head: [C, M + 1], V.
      classes: [K] int32, the row of V for each row of the head; negative for absent classes.
      penalty: lambda.
      growth: p.
      learns_correction: Whether U moves.
      learns_gate: Whether g moves.
    """

    def __init__(
        self,
        objective: HeadObjective,
        shared_head: tf.Tensor,
        classes: tf.Tensor,
        penalty: float,
        growth: float = 0.0,
        learns_correction: bool = True,
        learns_gate: bool = True,
    ):
        self._objective = objective
        self._shared_head, self._classes = shared_head, classes
        rows = _rows_of(shared_head, classes)
        self._logits = objective.logits_at(objective.pad(rows))
        self._least_penalty, self._penalty = penalty, self._grown(rows, penalty, growth)
        self._twice_bound = 2 * (objective.task.outputs_first.bound or 0.0)
        self._moves_correction = float(learns_correction)
        self._moves_gate = float(learns_gate)

    def _grown(self, rows, penalty, growth):
        """Returns lambda_i; l(R) counts as a ten-thousandth of l(0) at least."""
        objective = self._objective
        if not growth or not objective.task.has_classes or objective.is_constant:
            return penalty
        absent = objective.logits_at(objective.widen(tf.zeros_like(rows)))
        nothing, shared = (objective.loss_of(one + absent) for one in (0.0, self._logits))
        known = tf.math.divide_no_nan(nothing, tf.maximum(shared, 1e-4 * nothing))
        return penalty * tf.maximum(known, 1.0) ** growth

    def head(self, correction: tf.Tensor, gate: tf.Tensor) -> tf.Tensor:
        """Returns W = g S V + U, [K, M + 1]."""
        return corrected(self._shared_head, self._classes, correction, gate)

    def shared_gradient(self, gradient: tf.Tensor) -> tf.Tensor:
        """Returns S^T G [C, M + 1] for a gradient G [K, M + 1] in the client's rows of V."""
        present = tf.where((self._classes >= 0)[:, None], gradient, 0.0)
        places = tf.maximum(self._classes, 0)[:, None]
        return tf.scatter_nd(places, present, self._shared_head.shape)

    def value(self, correction: tf.Tensor, gate: tf.Tensor) -> tf.Tensor:
        """Returns [] F(U, g)."""
        added = self._objective.logits_at(self._objective.widen(correction))
        penalty = self._penalty / 2 * tf.reduce_sum(tf.square(correction))
        return self._objective.loss_of(gate * self._logits + added) + penalty

    def rate(self, largest: float, cap: str) -> tf.Tensor:
        """Returns [] the rate of both U and g, at most `largest`.

        The cap is 1 / (h A + lambda), one over the curvature in U (correction), 1 / (h A + h B +
        lambda), where no step raises F (joint), or no cap (none).
        """
        if cap == "none":
            return tf.constant(largest)
        twice_curvature = self._twice_bound * self._objective.mean_square()
        twice_curvature += 2 * self._least_penalty
        if cap == "joint":
            twice_curvature += self._twice_bound * self._objective.spread_of(self._logits)
        return tf.minimum(largest, 2 / twice_curvature)

    def descend(
        self, correction: tf.Tensor, gate: tf.Tensor, steps: int, rate: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (U, g) with F no larger than at the arguments. Absent rows do not change.

        If F has risen after `steps` steps of `rate`, or is not a number, they are repeated from the
        start with rates where no step raises it.
        """
        if are_none(steps) or self._objective.is_constant:
            return correction, gate
        reached = self._steps(correction, gate, steps, rate, rate)
        started, ended = self.value(correction, gate), self.value(*reached)

        def again():
            safe = 1 / (self._twice_bound * self._objective.mean_square() + self._least_penalty)
            spread = self._twice_bound * self._objective.spread_of(self._logits)
            safe_for_gate = tf.math.divide_no_nan(1.0, spread)
            return self._steps(correction, gate, steps, safe, safe_for_gate)

        # The comparison is false also if `ended` is not a number.
        return tf.cond(ended <= started, lambda: reached, again)

    def correction_after(
        self, correction: tf.Tensor, gradient: tf.Tensor, rate: tf.Tensor
    ) -> tf.Tensor:
        """Returns U after one step along dl/dU [K, M + 1]."""
        if not self._moves_correction:
            return correction
        return (correction - rate * gradient) / (1 + rate * self._penalty)

    def _steps(self, correction, gate, steps, rate, gate_rate):
        """Returns (U, g) after the steps."""
        rate, gate_rate = self._moves_correction * rate, self._moves_gate * gate_rate
        objective = self._objective
        if objective.is_of_two_classes:
            return self._two_class_steps(correction, gate, steps, rate, gate_rate)
        # The bias that excludes an absent class does not shrink.
        shrink = objective.where_present(
            tf.fill([objective.rows, 1], 1 / (1 + rate * self._penalty)), 1.0
        )

        def step(wide, gate):
            errors = objective.errors_of(gate * self._logits + objective.logits_at(wide))
            moved = gate - gate_rate * tf.reduce_sum(errors * self._logits)
            return shrink * (wide - rate * objective.wide_gradient(errors)), _clipped(moved)

        wide, gate = repeat(step, (objective.widen(correction), gate), steps)
        return objective.narrow(wide, correction), gate

    def _two_class_steps(self, correction, gate, steps, rate, gate_rate):
        """Follows only d = U_1 - U_0, as `head_descent` does, with z = Z_1 - Z_0.

        The gradients of the two rows are each other's negative. Their mean therefore only shrinks,
        and the error e of class 1 is sufficient: dl/dg is the sum of e z. If one class is absent,
        the loss and e are 0.
        """
        objective = self._objective
        both_present = tf.reduce_min(objective.where_present(tf.ones([2, 1]), 0.0))
        example_weight = both_present * objective.example_weight
        shrink = 1 / (1 + rate * self._penalty)
        targets = objective.targets[1][:, None]
        logits = (self._logits[1] - self._logits[0])[:, None]

        def step(difference, gate):
            both = gate * logits + tf.linalg.matmul(objective.inputs, difference)
            error = example_weight * (tf.sigmoid(both) - targets)
            slope = tf.linalg.matmul(objective.inputs, error, transpose_a=True)
            moved = gate - gate_rate * tf.reduce_sum(error * logits)
            return shrink * (difference - 2 * rate * slope), _clipped(moved)

        wide = objective.pad(correction)
        start = (wide[1] - wide[0])[:, None]
        difference, gate = repeat(step, (start, gate), steps)
        half = tf.transpose(difference) / 2
        mean = (wide[:1] + wide[1:]) / 2 * shrink ** tf.cast(steps, tf.float32)
        return objective.narrow(tf.concat([mean - half, mean + half], axis=0), correction), gate


def _clipped(gate):
    return tf.clip_by_value(gate, 0.0, 1.0)
