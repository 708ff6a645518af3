"""Solvers for a head over fixed features: what may stand in the place of PFLEGO's tau - 1 gradient steps.

PFLEGO, section 3.2, admits any that does not raise the client's loss. Here that is checked: where a solver ends with a larger
loss than it started from, or with none, gradient descent takes its place, with the rate 1 / L that cannot raise it.

A step of each is one product with the features and one with their transpose, so that equal `steps` cost about the same.
"""

import tensorflow as tf

from tf_pflego.models.head_descent import gradient_descent
from tf_pflego.models.head_objective import HeadObjective

SOLVERS = ("gd", "momentum", "adam", "newton")

_MOMENTUM = 0.9
_ADAM_DECAYS, _ADAM_EPSILON = (0.9, 0.999), 1e-7
_CONJUGATE_STEPS = 9
# The Hessian of a separable problem tends to 0: a share of L is added to its diagonal.
_NEWTON_DAMPING = 1e-4
_MOST_HALVINGS = 10


def solve(objective: HeadObjective, head: tf.Tensor, steps: int, solver: str, rate: "float | str") -> tf.Tensor:
    """Returns a head at which the client's loss is no larger than at `head`.

    Args:
      objective: The client's loss.
      head: [K, M + 1], where to start; rows of absent classes stay as they are.
      steps: How many.
      solver: One of `SOLVERS`. `newton` takes a Newton step, by conjugate gradients, for every ten steps.
      rate: The learning rate, or "auto" for 1 / L (Proposition 2 asks for less than 2 / L); newton needs none.
    """
    if steps == 0 or objective.num_classes == 1:
        return head
    if rate == "auto":
        rate = 1 / objective.smoothness()
    run = {"gd": gradient_descent, "momentum": _momentum, "adam": _adam, "newton": _newton}[solver]
    solved = run(objective, head, steps, rate)
    started, ended = objective.loss(head), objective.loss(solved)
    return tf.cond(
        ended <= started,  # False, too, where it is not a number.
        lambda: solved,
        lambda: gradient_descent(objective, head, steps, 1 / objective.smoothness()),
    )


def _momentum(objective, head, steps, rate):
    def step(k, wide, velocity):
        velocity = _MOMENTUM * velocity + objective.wide_gradient(objective.errors_at(wide))
        return k + 1, wide - rate * velocity, velocity

    wide = objective.widen(head)
    return objective.narrow(_loop(step, steps, wide, tf.zeros_like(wide)))


def _adam(objective, head, steps, rate):
    first_decay, second_decay = _ADAM_DECAYS

    def step(k, wide, first, second):
        gradient = objective.wide_gradient(objective.errors_at(wide))
        first = first_decay * first + (1 - first_decay) * gradient
        second = second_decay * second + (1 - second_decay) * tf.square(gradient)
        count = tf.cast(k + 1, tf.float32)
        corrected = rate * tf.sqrt(1 - second_decay**count) / (1 - first_decay**count)
        return k + 1, wide - corrected * first / (tf.sqrt(second) + _ADAM_EPSILON), first, second

    wide = objective.widen(head)
    return objective.narrow(_loop(step, steps, wide, tf.zeros_like(wide), tf.zeros_like(wide)))


def _newton(objective, head, steps, rate):
    del rate
    damping = _NEWTON_DAMPING * objective.smoothness()

    def step(k, wide):
        errors, hessian = objective.errors_at(wide), objective.hessian_at(wide)
        gradient = objective.wide_gradient(errors)
        direction = _conjugate_gradients(lambda v: hessian(v) + damping * v, gradient)
        started = objective.loss_at(wide)

        def too_far(halvings, share):
            return tf.logical_and(halvings < _MOST_HALVINGS, objective.loss_at(wide - share * direction) > started)

        _, share = tf.while_loop(too_far, lambda halvings, share: (halvings + 1, share / 2), (0, 1.0))
        return k + 1, wide - share * direction

    newton_steps = max(1, steps // (_CONJUGATE_STEPS + 1))
    return objective.narrow(_loop(step, newton_steps, objective.widen(head)))


def _conjugate_gradients(matrix, target):
    """Returns an approximate solution x of matrix(x) = target, for a positive definite matrix."""

    def step(k, solution, residual, direction, squared):
        product = matrix(direction)
        length = squared / tf.maximum(tf.reduce_sum(direction * product), 1e-30)
        solution, residual = solution + length * direction, residual - length * product
        new_squared = tf.reduce_sum(tf.square(residual))
        return k + 1, solution, residual, residual + new_squared / tf.maximum(squared, 1e-30) * direction, new_squared

    return _loop(step, _CONJUGATE_STEPS, tf.zeros_like(target), target, target, tf.reduce_sum(tf.square(target)))


def _loop(step, steps, *start):
    """Returns the first of the values that `step` carries from turn to turn."""
    return tf.while_loop(lambda k, *_: k < steps, step, (tf.constant(0), *start), maximum_iterations=steps)[1]
