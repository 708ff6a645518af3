"""A client's linear head: its logits z = W (phi, 1) and the heads that training starts from.

Source: PFLEGO, section 3.1.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tf_pflego.core import seeds

# The logit of a class that a client does not have. Its probability is exactly 0 in float32, and
# with it every gradient of its row of a head: the row never moves and changes nothing.
ABSENT_LOGIT = -1e9


def logits(head: tf.Tensor, features: tf.Tensor, classes: tf.Tensor | None = None) -> tf.Tensor:
    """Returns [n, K] logits from a head [K, M + 1] and features [n, M].

    `classes` [K] int32 is the class of each row: rows with a negative class are absent. Without it
    all are present.
    """
    bias = head[:, -1]
    if classes is not None:
        bias = tf.where(classes >= 0, bias, ABSENT_LOGIT)
    return tf.linalg.matmul(features, head[:, :-1], transpose_b=True) + bias


def logits_of_many(
    heads: tf.Tensor, features: tf.Tensor, owner: tf.Tensor, classes: tf.Tensor | None = None
) -> tf.Tensor:
    """Returns [n, K] logits, or [n, T, K], of the examples of c clients with heads [c, K, M + 1].

    The features are [n, M], or [n, T, M], and `owner` [n] int32 is the client of each example.
    `classes` [c, K] is as in `logits`. Clients may have one head [K, M + 1] together.
    """
    kernel, bias = heads[..., :-1], heads[..., -1]
    if classes is not None:
        bias = tf.where(classes >= 0, bias, ABSENT_LOGIT)
    if bias.shape.rank == 2:
        bias = tf.gather(bias, owner)
    if features.shape.rank == 3:
        bias = bias[..., None, :]
    if heads.shape.rank == 2:
        return tf.linalg.matmul(features, kernel, transpose_b=True) + bias
    kernel = tf.gather(kernel, owner)
    if features.shape.rank == 2:
        return tf.linalg.matvec(kernel, features) + bias
    return tf.linalg.matmul(features, kernel, transpose_b=True) + bias


def add_to_bias(head: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Returns the head [K, M + 1] with `logits` [K] added to all logits that it gives."""
    return tf.concat([head[:, :-1], head[:, -1:] + logits[:, None]], axis=1)


def uniform(seed: tf.Tensor, classes: tf.Tensor, num_features: int) -> tf.Tensor:
    """Returns a head [K, M + 1] from Uniform[0, 1) for the client's classes, 0 for the others.

    The seed is [2] int32, and `classes` is as in `logits`. Source: PFLEGO, section 3.2.
    """
    drawn = tf.random.stateless_uniform([classes.shape[0], num_features + 1], seed)
    return tf.where((classes >= 0)[:, None], drawn, 0.0)


def glorot(seed: int, num_classes: int, num_features: int) -> tf.Tensor:
    """Returns a head [num_classes, M + 1] from Glorot's uniform distribution, with biases of 0."""
    limit = (6.0 / (num_features + num_classes)) ** 0.5
    kernel = seeds.generator(seed, "classifier").uniform(-limit, limit, (num_classes, num_features))
    return tf.constant(np.pad(kernel, [(0, 0), (0, 1)]), tf.float32)


def orthogonal(seed: int, num_classes: int, num_features: int) -> np.ndarray:
    """Returns a head [num_classes, M + 1] of random orthonormal rows with biases of 0.

    If there are more classes than features, its columns are orthonormal instead. Source: FedBABU.
    """
    longer, shorter = max(num_classes, num_features), min(num_classes, num_features)
    q, r = np.linalg.qr(seeds.generator(seed, "orthogonal_head").normal(size=(longer, shorter)))
    q *= np.sign(np.diag(r))  # This makes it uniform among all such matrices.
    kernel = q.T if num_classes < num_features else q
    return np.pad(kernel, [(0, 0), (0, 1)]).astype(np.float32)
