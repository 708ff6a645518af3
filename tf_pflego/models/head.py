"""A client's linear head: logits, loss and its closed-form gradients. Source: PFLEGO, section 3.1.

    z = W (phi, 1),  l = sum_j weight_j * cross_entropy(softmax(z_j), y_j)

With R = weight * (softmax(z) - onehot(y)), [n, K], the gradients are R^T (phi, 1) for W and R W[:, :M] for phi.
"""

import numpy as np
import tensorflow as tf

from tf_pflego.core import seeds

# The bias of a class that a client does not have, in a head with more rows than the client has classes. Its probability
# is exactly 0 in float32, and with it every gradient of its row: the row never moves and changes nothing.
ABSENT_CLASS_BIAS = -1e9


def logits(head: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
    """Returns [n, K] logits from a head [K, M + 1] and features [n, M]."""
    return tf.linalg.matmul(features, head[:, :-1], transpose_b=True) + head[:, -1]


def example_losses(head: tf.Tensor, features: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns [n] cross-entropies."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits(head, features))


def residuals(head: tf.Tensor, features: tf.Tensor, labels: tf.Tensor, example_weights: tf.Tensor) -> tf.Tensor:
    """Returns R [n, K], the gradient of the loss in the logits."""
    error = tf.nn.softmax(logits(head, features)) - tf.one_hot(labels, tf.shape(head)[0])
    return example_weights[:, None] * error


def head_gradient(residual: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
    """Returns the gradient [K, M + 1] of the loss in W."""
    return tf.concat([tf.linalg.matmul(residual, features, transpose_a=True), tf.reduce_sum(residual, axis=0)[:, None]], axis=1)


def features_gradient(residual: tf.Tensor, head: tf.Tensor) -> tf.Tensor:
    """Returns the gradient [n, M] of the loss in the features."""
    return tf.linalg.matmul(residual, head[:, :-1])


def uniform(seed: tf.Tensor, num_classes: tf.Tensor, rows: int, num_features: int) -> tf.Tensor:
    """Returns a head [rows, M + 1] of Uniform[0, 1) in the client's classes. Source: PFLEGO, section 3.2 as ruled.

    Args:
      seed: [2] int32.
      num_classes: [] int32, K_i <= rows; the rows from K_i on are absent classes.
      rows: The largest number of classes of any client.
      num_features: M.
    """
    drawn = tf.random.stateless_uniform([rows, num_features + 1], seed)
    absent = tf.concat([tf.zeros([rows, num_features]), tf.fill([rows, 1], ABSENT_CLASS_BIAS)], axis=1)
    return tf.where((tf.range(rows) < num_classes)[:, None], drawn, absent)


def glorot(seed: int, num_classes: int, num_features: int) -> tf.Tensor:
    """Returns a head [num_classes, M + 1] of Glorot and Bengio's uniform distribution, its biases 0."""
    limit = (6.0 / (num_features + num_classes)) ** 0.5
    kernel = seeds.generator(seed, "classifier").uniform(-limit, limit, (num_classes, num_features))
    return tf.constant(np.pad(kernel, [(0, 0), (0, 1)]), tf.float32)
