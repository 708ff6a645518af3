"""Gradient descent on a head over fixed features: the inner loop of PFLEGO."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tf_pflego.core import optimizers
from tf_pflego.core.local_training import loop
from tf_pflego.models.heads.objective import HeadObjective

# Steps per turn of the loop, since a turn costs as much as several operations of a small step.
_UNROLLED_STEPS = 7


def gradient_descent(
    objective: HeadObjective,
    head: tf.Tensor,
    steps: int | tf.Tensor,
    rate: float | tf.Tensor,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> tf.Tensor:
    """Returns the head [K, M + 1] after `steps` full-batch gradient steps of `rate`.

    The rows of absent classes stay as they are. For momentum and weight decay see `optimizers.sgd`.
    """
    if objective.is_of_two_classes and not momentum and not weight_decay:
        return _descend_two_classes(objective, head, steps, rate)
    return minimize(objective, head, steps, optimizers.sgd(rate, momentum, weight_decay))


def minimize(
    objective: HeadObjective,
    head: tf.Tensor,
    steps: int | tf.Tensor,
    optimizer: optimizers.Optimizer,
) -> tf.Tensor:
    """Returns the head after `steps` full-batch steps of an optimiser with a new state."""
    if are_none(steps) or objective.is_constant:
        return head

    def step(wide, state):
        return optimizer.apply(objective.gradient_at(wide), state, wide)

    wide = objective.widen(head)
    return objective.narrow(repeat(step, (wide, optimizer.init(wide)), steps)[0], head)


def are_none(steps: int | tf.Tensor) -> bool:
    """Returns whether `steps` is known to be 0 while a graph is being built."""
    return not tf.is_tensor(steps) and steps == 0


def _descend_two_classes(objective, head, steps, rate):
    """Follows only d = W_1 - W_0, a vector, since the gradient's rows are each other's negative.

    The error of class 1 is sigmoid(d . phi) - y, and d moves twice as far as either row.
    """
    if are_none(steps):
        return head
    targets, rates = objective.targets[1][:, None], 2 * rate * objective.example_weight

    def step(difference):
        error = tf.sigmoid(tf.linalg.matmul(objective.inputs, difference)) - targets
        moved = tf.linalg.matmul(objective.inputs, rates * error, transpose_a=True)
        return (difference - moved,)

    wide = objective.widen(head)
    start = (wide[1] - wide[0])[:, None]
    (end,) = repeat(step, (start,), steps)
    half = tf.transpose(end - start) / 2
    return objective.narrow(tf.concat([wide[:1] - half, wide[1:] + half], axis=0), head)


def repeat(
    step: Callable[..., tuple], carry: tuple[tf.Tensor, ...], steps: int | tf.Tensor
) -> tuple[tf.Tensor, ...]:
    """Returns step(*step(*... carry)), `steps` times, a number or a tensor."""

    def several(carry, count):
        for _ in range(count):
            carry = step(*carry)
        return carry

    known = not tf.is_tensor(steps)
    unrolled = _UNROLLED_STEPS if known else 1
    turns, left_over = divmod(steps, unrolled) if known else (steps, 0)
    if not known or turns:
        carry = loop(lambda k, carry: several(carry, unrolled), carry, turns)
    return several(carry, left_over)
