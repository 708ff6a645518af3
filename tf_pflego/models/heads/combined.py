"""Heads of several clients, combined for each by the similarity of their features."""

from __future__ import annotations

import tensorflow as tf

from tf_pflego.core import nests
from tf_pflego.core.algorithm import Client
from tf_pflego.core.quadratic import on_simplex
from tf_pflego.core.tasks import flat


def by_class(features: tf.Tensor, client: Client, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns features [n, M], and [n, count] with 1 at the global class of each example."""
    features, labels = flat(features, client.labels)
    return features, tf.one_hot(tf.gather(client.classes, labels), count)


def moments(features: tf.Tensor, members: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns for n examples the shares p [C] of the classes, h [C, M], and the variance v [].

    `members` [n, C] is 1 at the class of each. h has p times the mean features [n, M] of a class,
    and v is (mean of |phi|^2 - |h|^2) / n, the variance of h.
    """
    count = tf.cast(tf.shape(members)[0], tf.float32)
    means = tf.linalg.matmul(members, features, transpose_a=True) / count
    spread = tf.reduce_sum(tf.square(features)) / count - tf.reduce_sum(tf.square(means))
    return tf.reduce_mean(members, axis=0), means, tf.nn.relu(spread) / count


def combined(
    heads: tf.Tensor, present: tf.Tensor, means: tf.Tensor, variances: tf.Tensor
) -> tf.Tensor:
    """Returns for each of r clients a weighted mean [C, M + 1] of the heads [r, C, M + 1] of all.

    Client i weighs client j's by the a_ij, at least 0 and of sum 1, of the least sum_j a_ij^2 v_j +
    |h_i - sum_j a_ij h_j|^2, for h [r, C, M] and v [r]. A row is the mean over clients that have
    its class, `present` [r, C]. Without such clients it does not change.
    """
    h = tf.cast(tf.reshape(means, [tf.shape(means)[0], -1]), tf.float64)
    gram = tf.linalg.matmul(h, h, transpose_b=True)
    square = tf.linalg.diag_part(gram)[:, None, None]
    bias = square - gram[:, :, None] - gram[:, None, :] + gram  # <h_i - h_j, h_i - h_l> at i, j, l
    variance = tf.linalg.diag(tf.cast(variances, tf.float64))
    weights = on_simplex(bias + variance, tf.zeros_like(gram))
    total = tf.linalg.matmul(weights, present)[..., None]
    return tf.where(total > 0, nests.weighted_sums(weights, heads) / total, heads)
