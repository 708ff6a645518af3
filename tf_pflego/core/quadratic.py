"""Small convex quadratic programmes over the simplex, many at once: weights of a mean."""

from __future__ import annotations

import tensorflow as tf

_RIDGE, _TOLERANCE = 1e-10, 1e-12  # of the largest number of a programme


def on_simplex(quadratic: tf.Tensor, linear: tf.Tensor) -> tf.Tensor:
    """Returns the x [..., n], at least 0 and of sum 1, of the least x^T P x / 2 + q^T x.

    `quadratic` has the P [b, n, n], symmetric and positive semidefinite, and `linear` the q [b, n].
    Among several solutions it is about the solution with the least norm.

    An active set method in float64. It takes the largest step towards the minimum over the free
    numbers that keeps them at least 0, and a number that blocks it becomes 0. At the minimum, the
    number at 0 along which the value falls fastest becomes free. It begins at the best corner. Each
    turn lowers the value or frees or fixes a number, mostly each once: 4 n turns are the limit.
    """
    p, q = tf.cast(quadratic, tf.float64), tf.cast(linear, tf.float64)
    n = p.shape[-1] or tf.shape(p)[-1]
    scale = tf.maximum(tf.reduce_max(tf.abs(p), [1, 2]), tf.reduce_max(tf.abs(q), 1))
    scale = tf.where(scale > 0, scale, tf.ones_like(scale))[:, None]
    eye = tf.eye(n, dtype=tf.float64)
    p, q = p / scale[..., None] + _RIDGE * eye, q / scale

    def turn(x, free, _):
        # The minimum y over the free numbers: P y + q = level where they are, and sum y = 1.
        mask = tf.cast(free, tf.float64)
        block = mask[:, :, None] * p * mask[:, None] + (1 - mask)[:, None] * eye
        top = tf.concat([block, mask[:, :, None]], axis=2)
        bottom = tf.pad(mask[:, None], [(0, 0), (0, 0), (0, 1)])
        right = tf.concat([-mask * q, tf.ones_like(q[:, :1])], axis=1)
        solved = tf.linalg.solve(tf.concat([top, bottom], axis=1), right[..., None])[..., 0]
        y, level = mask * solved[:, :-1], -solved[:, -1:]
        ratios = tf.math.divide_no_nan(x, x - y)
        ratios = tf.where(free & (y < 0), ratios, 2 * tf.ones_like(x))
        step = tf.minimum(tf.reduce_min(ratios, axis=1, keepdims=True), 1)
        x = x + step * (y - x)
        is_blocked = free & (ratios <= step)
        slope = tf.linalg.matvec(p, x) + q - level
        falls = tf.where(free | (step < 1), tf.zeros_like(x), slope)
        steepest = tf.reduce_min(falls, axis=1, keepdims=True)
        is_next = tf.one_hot(tf.argmin(falls, axis=1), n, True, False) & (steepest < -_TOLERANCE)
        changed = (free & ~is_blocked) | is_next
        return tf.where(is_blocked, tf.zeros_like(x), x), changed, tf.reduce_any(changed != free)

    corner = tf.argmin(tf.linalg.diag_part(p) / 2 + q, axis=1)
    start = tf.one_hot(corner, n, dtype=tf.float64), tf.one_hot(corner, n, True, False), True
    x, *_ = tf.while_loop(lambda x, free, goes_on: goes_on, turn, start, maximum_iterations=4 * n)
    x = tf.nn.relu(x)
    return tf.cast(x / tf.reduce_sum(x, axis=1, keepdims=True), tf.float32)
