"""Passes of many examples in blocks, for clients with activations larger than the memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_pflego.core import nests
from tf_pflego.core.local_training import loop, value_and_gradient
from tf_pflego.core.nests import Structure
from tf_pflego.models.body.body import Body


def features_and_pull_back(
    body: Body, block: int, theta: Sequence[tf.Tensor], examples: tf.Tensor, keep: bool = False
) -> tuple[tf.Tensor, Callable[[tf.Tensor], list]]:
    """Does the same as `SplitModel.features_and_pull_back`, in blocks of `block` examples.

    Unless `keep`, going back passes each block forward again.
    """
    theta, count = list(theta), tf.shape(examples)[0]
    num_blocks = (count + block - 1) // block

    def rows(k):
        return slice(k * block, tf.minimum((k + 1) * block, count))

    def write(k, arrays):
        features, saved = body.forward(theta, examples[rows(k)])
        results = [features, *saved] if keep else [features]
        return [array.write(k, result) for array, result in zip(arrays, results, strict=True)]

    specs = [tf.TensorSpec([None, *body.feature_shape])]
    if keep:
        specs += body.saved_specs
    arrays = [
        tf.TensorArray(spec.dtype, num_blocks, infer_shape=False, element_shape=spec.shape)
        for spec in specs
    ]
    features, *kept = loop(write, arrays, num_blocks, os.cpu_count() or 1)

    def pull_back(features_gradient):
        def add(k, total):
            some = examples[rows(k)]
            saved = [array.read(k) for array in kept]
            if not keep:
                _, saved = body.forward(theta, some)
            gradient = body.backward(theta, some, saved, features_gradient[rows(k)])
            return nests.add(total, gradient)

        return loop(add, nests.zeros_like(theta), num_blocks, os.cpu_count() or 1)

    return features.concat(), pull_back


def total(
    part: Callable[[tf.Tensor, tf.Tensor, Structure], tf.Tensor],
    block: int,
    count: tf.Tensor,
    weights: Structure,
) -> tf.Tensor:
    """Returns the sum of part(first, last, weights) over blocks of at most `block` examples.

    Each block's gradient is computed with its value, without a second computation. If only one of
    the two is read, only that one is computed: TensorFlow drops unused results of a loop.
    """
    num_blocks = (count + block - 1) // block
    size = (count + num_blocks - 1) // num_blocks

    @tf.custom_gradient
    def in_blocks(*leaves):
        # If the tape outside saw this, it would prepare for second derivatives, and each block
        # would pass backward twice.
        fixed = tf.nest.pack_sequence_as(weights, [tf.stop_gradient(leaf) for leaf in leaves])

        def add(k, totals):
            first, last = k * size, tf.minimum((k + 1) * size, count)
            both = value_and_gradient(lambda weights: part(first, last, weights), fixed)
            return nests.add(totals, both)

        start = (tf.zeros([]), nests.zeros_like(fixed))
        value, gradient = loop(add, start, num_blocks, os.cpu_count() or 1)
        return value, lambda upstream: tf.nest.flatten(nests.scale(upstream, gradient))

    return in_blocks(*tf.nest.flatten(weights))
