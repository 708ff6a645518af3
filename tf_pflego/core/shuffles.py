"""Shuffles and parts of a client's examples, with the same bits in graphs that XLA compiles.

XLA needs sizes that are known when it compiles. In its graphs a client's examples have a largest
number and their own: operations on them compute as if they had their own (`sized`). XLA also makes
other floats of the same random bits than TensorFlow, and other streams of negative seeds.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import tensorflow as tf

_KEY = 0x02461E293EC8F720  # with which TensorFlow makes keys of seeds
_MOST: contextvars.ContextVar[int | None] = contextvars.ContextVar("most examples", default=None)


@contextlib.contextmanager
def compiled_for(most: int) -> Iterator[None]:
    """Builds graphs for XLA where a client has at most `most` examples."""
    token = _MOST.set(most)
    try:
        yield
    finally:
        _MOST.reset(token)


def sized(values: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Returns the first `count` of values [n, ...], in a graph that XLA compiles."""
    from tensorflow.compiler.tf2xla.python import xla  # It is not among the public operations.

    first = xla.set_dynamic_dimension_size(values, tf.constant(0), count)
    first.set_shape([None, *values.shape[1:]])
    return first


def fold_in(seed: tf.Tensor, number: int | tf.Tensor) -> tf.Tensor:
    """Returns a seed [2] int32 for a number, as TensorFlow's `stateless_fold_in` does."""
    return tf.stack([_bits(1, seed)[0], number])


def all_rows(count: tf.Tensor) -> tf.Tensor:
    """Returns [count] int32: 0 .. count - 1."""
    most = _MOST.get()
    return tf.range(count) if most is None else sized(tf.range(most), count)


def shuffled(count: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns [count] int32: 0 .. count - 1 in a random order that the seed [2] determines.

    It is the order of the numbers that TensorFlow's `stateless_uniform` draws.
    """
    most = _MOST.get()
    bits = _bits(count, seed) if most is None else sized(_bits(most, seed), count)
    return tf.argsort(bits & 0x7FFFFF)


def part(rows: tf.Tensor, start: int | tf.Tensor, count: int | tf.Tensor) -> tf.Tensor:
    """Returns rows[start : start + count], of rows [n] with n at most a client's examples."""
    most = _MOST.get()
    if most is None:
        return rows[start : start + count]
    # A slice of a size that XLA does not know would silently have its largest one.
    places = tf.range(min(count, most) if isinstance(count, int) else most)
    return sized(tf.gather(rows, start + places), tf.minimum(count, tf.size(rows) - start))


def _bits(count, seed):
    """Returns [count] int32, random words from a seed, as the seeds of TensorFlow make them."""
    if _MOST.get() is None:
        return tf.random.stateless_uniform([count], seed, minval=None, maxval=None, dtype=tf.int32)
    counter = tf.bitcast(tf.cast(seed, tf.int64), tf.uint64)
    key, counter = tf.unstack(
        tf.bitcast(tf.reshape(_words(4, tf.constant(_KEY, tf.uint64), counter), [2, 2]), tf.uint64)
    )
    return _words(count, key, tf.stack([tf.zeros([], tf.uint64), counter]))


def _words(count, key, counter):
    """Returns [count] int32, the next words of Philox from a key [] and a counter [2] uint64."""
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[count], key=[key], counter=counter, alg=1, dtype=tf.int32
    )
