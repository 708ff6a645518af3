"""Linear discriminant analysis: the head for features that are Gaussian within each class."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from tf_pflego.core import nests

Estimates: TypeAlias = "tuple[tf.Tensor, tf.Tensor]"  # means [K, M] and covariance [M, M]
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


def discriminant(
    means: tf.Tensor, covariance: tf.Tensor, log_priors: tf.Tensor, shrinkage: float
) -> tf.Tensor:
    """Returns the head [..., K, M + 1] of means [..., K, M] and a covariance [..., M, M] of all.

    Its logits are the logs of the classes' probabilities, up to what all of them have in common.
    The covariance is shrunk to a sphere's by a share above 0, and equations are solved in
    float64: where examples are fewer than features, they are near to having no solution.
    """
    means, covariance, log_priors = (
        tf.cast(x, tf.float64) for x in (means, covariance, log_priors)
    )
    size = covariance.shape[-1]
    radius = shrinkage * tf.linalg.trace(covariance) / size + 1e-9  # Not 0 if all features are.
    sphere = radius[..., None, None] * tf.eye(size, dtype=tf.float64)
    factor = tf.linalg.cholesky((1 - shrinkage) * covariance + sphere)
    rows = tf.linalg.cholesky_solve(factor, tf.linalg.matrix_transpose(means))
    rows = tf.linalg.matrix_transpose(rows)
    biases = log_priors - tf.reduce_sum(rows * means, axis=-1) / 2
    return tf.cast(tf.concat([rows, biases[..., None]], axis=-1), tf.float32)


def estimates(
    features: tf.Tensor, members: tf.Tensor, otherwise: Estimates, identity: float
) -> Estimates:
    """Returns the estimates from the examples in `members`; the covariance has `identity` I.

    It is [n, K], 1 at an example's class, and 0 for excluded examples. A class without examples has
    the mean of `otherwise`. With fewer than two examples the covariance is also from `otherwise`.
    """
    count, total = tf.reduce_sum(members, axis=0)[:, None], tf.reduce_sum(members)
    sums = tf.linalg.matmul(members, features, transpose_a=True)
    means = tf.where(count > 0, sums / tf.maximum(count, 1.0), otherwise[0])
    own = tf.reduce_sum(members, axis=1, keepdims=True)
    apart = own * features - tf.linalg.matmul(members, means)
    scatter = tf.linalg.matmul(apart, apart, transpose_a=True)
    covariance = scatter / tf.maximum(total - 1, 1.0) + identity * tf.eye(scatter.shape[-1])
    return means, tf.where(total > 1, covariance, otherwise[1])


def interpolated(
    features: tf.Tensor,
    members: tf.Tensor,
    of_all: Estimates,
    head_of: Callable[..., tf.Tensor],
    identity: float,
) -> Estimates:
    """Returns share * own + (1 - share) * of_all, with own estimates from features [n, M].

    It is the value of `SHARES` with the least cross-entropy when each half of the examples is
    predicted from estimates of the other half. A class's examples are assigned to both halves in
    turn.
    """
    shares, losses = tf.constant(SHARES), 0.0
    place = tf.argsort(tf.argsort(tf.argmax(members, axis=1), stable=True))
    odd = tf.cast(place % 2, tf.float32)[:, None]
    for half in (odd, 1 - odd):
        own = estimates(features, half * members, of_all, identity)
        heads = head_of(*nests.mix(shares[:, None, None], own, of_all))  # [5, K, M + 1]
        logits = tf.linalg.matmul(features, heads[..., :-1], transpose_b=True)
        log_shares = tf.nn.log_softmax(logits + heads[:, None, :, -1])
        losses -= tf.reduce_sum((1 - half) * members * log_shares, axis=[1, 2])
    own = estimates(features, members, of_all, identity)
    return nests.mix(tf.gather(shares, tf.argmin(losses)), own, of_all)
