"""Prototypes, the mean features of classes, and the head that predicts the nearest of them."""

from __future__ import annotations

import tensorflow as tf

_NEVER = -1e4  # The logit of a class of which a client has no example.


def class_sums(features: tf.Tensor, classes: tf.Tensor, count: int) -> tf.Tensor:
    """Returns [count, M + 1]: for each class the sum of its features, and their number."""
    with_ones = tf.pad(features, [(0, 0), (0, 1)], constant_values=1.0)
    return tf.math.unsorted_segment_sum(with_ones, classes, count)


def class_means(features: tf.Tensor, classes: tf.Tensor, count: int) -> tf.Tensor:
    """Returns [count, M + 1]: for each class the mean of its features, and 1; 0 without any."""
    sums = class_sums(features, classes, count)
    return tf.math.divide_no_nan(sums, sums[:, -1:])


def head_of(prototypes: tf.Tensor, known: tf.Tensor) -> tf.Tensor:
    """Returns the head [K, M + 1] that predicts the nearest of prototypes [K, M] that are known.

    Minus the squared distance |f - C|^2 / M is linear in the features f, but for |f|^2, which all
    classes share: 2 C / M, and the bias -|C|^2 / M.
    """
    num_features = float(prototypes.shape[1])
    bias = -tf.reduce_sum(tf.square(prototypes), axis=1) / num_features
    bias = tf.where(known > 0, bias, _NEVER)
    return tf.concat([2 * prototypes / num_features, bias[:, None]], axis=1)
