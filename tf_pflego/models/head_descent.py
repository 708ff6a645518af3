"""Gradient descent on a head over fixed features: the inner loop of PFLEGO."""

import tensorflow as tf

from tf_pflego.models.head_objective import HeadObjective

# More steps in one turn of the loop: a turn costs as much as several of a small step's operations.
_UNROLLED_STEPS = 7


def gradient_descent(
    objective: HeadObjective, head: tf.Tensor, steps: int, rate: "float | tf.Tensor", momentum: float = 0.0
) -> tf.Tensor:
    """Returns the head after `steps` full-batch gradient steps of `rate`.

    Args:
      objective: The client's loss.
      head: [K, M + 1]; rows of absent classes stay as they are, since their gradient is exactly 0.
      steps: How many steps; none returns the head as it is.
      rate: The learning rate.
      momentum: m; a step moves by -rate v, where v <- m v + gradient starts from 0.
    """
    if steps == 0 or objective.num_classes == 1:  # One class alone has no loss.
        return head
    if momentum:
        return _descend_with_momentum(objective, head, steps, rate, momentum)
    if objective.num_classes == 2:
        return _descend_two_classes(objective, head, steps, rate)

    def step(wide):
        return wide - rate * objective.wide_gradient(objective.errors_at(wide))

    return objective.narrow(_repeat(step, objective.widen(head), steps))


def _descend_with_momentum(objective, head, steps, rate, momentum):
    def step(k, wide, velocity):
        velocity = momentum * velocity + objective.wide_gradient(objective.errors_at(wide))
        return k + 1, wide - rate * velocity, velocity

    wide = objective.widen(head)
    start = (tf.constant(0), wide, tf.zeros_like(wide))
    return objective.narrow(tf.while_loop(lambda k, *_: k < steps, step, start, maximum_iterations=steps)[1])


def _descend_two_classes(objective, head, steps, rate):
    """Follows d = W_1 - W_0 alone, by products with a vector: the two rows of the gradient are opposite.

    The error of class 1 is sigmoid(d . phi) - y, that of class 0 its opposite, so d moves twice as far as either.
    """
    targets, rates = objective.targets[1][:, None], (2 * rate * objective.example_weights)[:, None]

    def step(difference):
        error = tf.sigmoid(tf.linalg.matmul(objective.inputs, difference)) - targets
        return difference - tf.linalg.matmul(objective.inputs, rates * error, transpose_a=True)

    wide = objective.widen(head)
    start = (wide[1] - wide[0])[:, None]
    half = objective.narrow(tf.transpose(_repeat(step, start, steps) - start) / 2)[0]
    return tf.stack([head[0] - half, head[1] + half])


def _repeat(step, value, steps):
    """Returns step(step(... value)), `steps` times."""

    def block(k, value):
        for _ in range(_UNROLLED_STEPS):
            value = step(value)
        return k + 1, value

    blocks, rest = divmod(steps, _UNROLLED_STEPS)
    _, value = tf.while_loop(lambda k, _: k < blocks, block, (tf.constant(0), value), maximum_iterations=blocks)
    for _ in range(rest):
        value = step(value)
    return value
