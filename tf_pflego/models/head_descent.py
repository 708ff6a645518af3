"""Gradient descent on a head over fixed features: the inner loop of PFLEGO, and where its time would go.

Three things make it fast, and none changes what it computes:

* XLA compiles all steps into one loop over matrices that stay in the cache of one core.
* The rows of the gradient of a softmax loss sum to zero. So the loop follows the differences V_k = W_k - W_0 and the row
  W_0, with K - 1 columns of logits instead of K: for two classes, products with a vector.
* XLA compiles for one shape. The number of examples is rounded up, by at most an eighth, with examples of weight 0: all
  clients between 512 and 1,023 examples share eight compilations.
"""

import tensorflow as tf

_LEAST_ROUNDING = 16


def gradient_descent(
    head: tf.Tensor,
    features: tf.Tensor,
    labels: tf.Tensor,
    example_weights: tf.Tensor,
    num_classes: tf.Tensor,
    steps: int,
    rate: float,
) -> tf.Tensor:
    """Returns the head after `steps` full-batch gradient steps of `rate` on the loss of `models.head`.

    Args:
      head: [K, M + 1].
      features: [n, M].
      labels: [n] int32, below num_classes.
      example_weights: [n].
      num_classes: [] int32, K_i; the rows from there on are absent classes.
      steps: How many steps; none returns the head as it is.
      rate: The learning rate.
    """
    if steps == 0 or head.shape[0] == 1:  # One class alone has no loss.
        return head
    padding = _rounded_up(tf.shape(features)[0]) - tf.shape(features)[0]
    features = tf.pad(features, [(0, padding), (0, 0)])
    labels = tf.pad(labels, [(0, padding)])
    example_weights = tf.pad(example_weights, [(0, padding)])
    return _descend(head, features, labels, example_weights, num_classes, tf.constant(steps), tf.constant(rate, tf.float32))


def _rounded_up(count):
    """Returns `count` rounded up to a multiple of an eighth of the power of two below it."""
    power = tf.floor(tf.math.log(tf.cast(tf.maximum(count, 1), tf.float32) + 0.5) / tf.math.log(2.0))
    unit = tf.maximum(tf.cast(2.0 ** (power - 3), tf.int32), _LEAST_ROUNDING)
    return (count + unit - 1) // unit * unit


@tf.function(jit_compile=True)
def _descend(head, features, labels, example_weights, num_classes, steps, rate):
    rows = head.shape[0]
    targets = tf.one_hot(labels, rows)[:, 1:]

    def step(k, first, differences):
        logits = tf.linalg.matmul(features, differences[:, :-1], transpose_b=True) + differences[:, -1]
        # Softmax with the logit of the first class at 0.
        largest = tf.maximum(tf.reduce_max(logits, axis=1, keepdims=True), 0.0)
        exponentials = tf.exp(logits - largest)
        total = tf.exp(-largest) + tf.reduce_sum(exponentials, axis=1, keepdims=True)
        residual = example_weights[:, None] * (exponentials / total - targets)
        gradient = tf.concat(
            [tf.linalg.matmul(residual, features, transpose_a=True), tf.reduce_sum(residual, axis=0)[:, None]], axis=1
        )
        minus_first = tf.reduce_sum(gradient, axis=0)  # The gradient of W_0, its sign turned.
        return k + 1, first + rate * minus_first, differences - rate * (gradient + minus_first)

    start = (tf.constant(0), head[0], head[1:] - head[0])
    _, first, differences = tf.while_loop(lambda k, *_: k < steps, step, start)
    moved = tf.concat([first[None], first + differences], axis=0)
    return tf.where((tf.range(rows) < num_classes)[:, None], moved, head)
