"""Solvers for a head over fixed features: alternatives to PFLEGO's tau - 1 gradient steps.

PFLEGO, section 3.2, admits any solver that does not raise the client's loss. This is checked here:
if a solver ends with a larger loss than at its start, or with a loss that is not a number, its
result is replaced by gradient descent's with the rate 1 / L, which cannot raise the loss. A loss
without such an L, such as the loss of counts, uses one over the curvature instead. If that raises
the loss too, the head does not change.

A step of each solver takes one product with the features and one with their transpose: equal
`steps` cost about the same. `exact`, only for least squares, solves the linear equations of the
minimum instead, at any number of steps.
"""

from __future__ import annotations

import tensorflow as tf

from tf_pflego.core import optimizers
from tf_pflego.core.local_training import loop
from tf_pflego.models.heads.descent import are_none, gradient_descent, minimize
from tf_pflego.models.heads.objective import HeadObjective

WITH_RATE = ("gd", "momentum", "adam")
STEPWISE = (*WITH_RATE, "newton")
SOLVERS = (*STEPWISE, "exact")
_CONJUGATE_STEPS = 9
# The Hessian of a separable problem tends to 0, so this share of L is added to its diagonal.
_NEWTON_DAMPING = 1e-4
_MOST_HALVINGS = 10


def solve(
    objective: HeadObjective,
    head: tf.Tensor,
    steps: int | tf.Tensor,
    solver: str,
    rate: float | tf.Tensor,
) -> tf.Tensor:
    """Returns a head [K, M + 1] with a client's loss no larger than at `head`.

    The rows of absent classes stay as they are. Newton takes one Newton step, by conjugate
    gradients, per ten steps, and needs no rate.
    """
    if are_none(steps) or objective.is_constant:
        return head
    if solver == "exact":
        solved = objective.least_squares()
    elif solver == "newton":
        solved = _newton(objective, head, steps)
    elif solver == "adam":
        solved = minimize(objective, head, steps, optimizers.adam(rate))
    else:
        momentum = optimizers.MOMENTUM if solver == "momentum" else 0.0
        solved = gradient_descent(objective, head, steps, rate, momentum)
    started, ended = objective.loss(head), objective.loss(solved)

    def again():
        smoothness = objective.smoothness()
        if smoothness is not None:
            return gradient_descent(objective, head, steps, 1 / smoothness)
        slower = gradient_descent(objective, head, steps, 1 / objective.curvature(head))
        return tf.where(objective.loss(slower) <= started, slower, head)

    # The comparison is false also if `ended` is not a number.
    return tf.cond(ended <= started, lambda: solved, again)


def automatic_rate(
    objective: HeadObjective, head: tf.Tensor, solver: str, largest: float | tf.Tensor
) -> tf.Tensor:
    """Returns [] a learning rate for `solve` that needs no tuning: min(1/c, largest).

    Here c is the curvature of the loss at `head`. Proposition 2 requires a rate below 2/L, where L
    bounds the curvature at any head. If a client predicts with confidence, L is so far above c that
    with a rate of 1/L the head falls behind the features. The rate used here may be larger, because
    `solve` ensures that the loss does not rise. Before the features have grown, c is small, and the
    head would run ahead of the features: `largest` limits it. PFLEGO passes rho I/r, the rate of
    its last step on the head in round 1. Momentum m moves 1 / (1 - m) times as far, and its rate is
    smaller by that factor. Adam has no such rate: its rate has another meaning than gradient
    descent's.
    """
    rate = tf.minimum(1 / objective.curvature(head), largest)
    return rate * (1 - optimizers.MOMENTUM) if solver == "momentum" else rate


def _newton(objective, head, steps):
    smoothness = objective.smoothness()
    scale = objective.curvature(head) if smoothness is None else smoothness
    damping = _NEWTON_DAMPING * scale

    def step(k, wide):
        gradient, hessian = objective.gradient_at(wide), objective.hessian_at(wide)
        direction = _conjugate_gradients(lambda v: hessian(v) + damping * v, gradient)
        started = objective.loss_at(wide)

        def too_far(halvings, share):
            return tf.logical_and(
                halvings < _MOST_HALVINGS, objective.loss_at(wide - share * direction) > started
            )

        _, share = tf.while_loop(
            too_far, lambda halvings, share: (halvings + 1, share / 2), (0, 1.0)
        )
        return wide - share * direction

    least, most = (tf.minimum, tf.maximum) if tf.is_tensor(steps) else (min, max)
    newton_steps = least(steps, most(1, steps // (_CONJUGATE_STEPS + 1)))
    return objective.narrow(loop(step, objective.widen(head), newton_steps), head)


def _conjugate_gradients(matrix, target):
    """Returns an approximate solution x of matrix(x) = target, for a positive definite matrix."""

    def step(k, carry):
        solution, residual, direction, squared = carry
        product = matrix(direction)
        length = squared / tf.maximum(tf.reduce_sum(direction * product), 1e-30)
        solution, residual = solution + length * direction, residual - length * product
        new_squared = tf.reduce_sum(tf.square(residual))
        direction = residual + new_squared / tf.maximum(squared, 1e-30) * direction
        return solution, residual, direction, new_squared

    squared = tf.reduce_sum(tf.square(target))
    return loop(step, (tf.zeros_like(target), target, target, squared), _CONJUGATE_STEPS)[0]
