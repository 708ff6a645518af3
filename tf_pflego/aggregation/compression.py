"""Fewer bytes up: uploads are rounded, or a part of them is not sent.

Each array of at least 32 numbers is compressed separately, since arrays differ in size by orders of
magnitude: the rounding of a large array would be larger than the numbers of a small array. Uploads
stay arrays of floats, the server's decoded values. The bytes of a round are the compressed bytes.
For n numbers:

  quantized  Blocks of 1024 numbers, padded with 0, have their signs flipped at random and are
             rotated by a Hadamard matrix, which makes their range narrow (1). Each number is
             rounded up or down to one of 2^bits levels between the least and the largest of its
             block, at random so that its mean stays. Sent: the levels, and two floats per block.
  masked     The array is cut into ceil(share n) parts; of each part of m numbers one is drawn and
             sent m-fold (2). The client and the server draw from the same seed.
  top_k      The ceil(share n) numbers of largest size are sent with their positions. The rest
             stays in the client's state and is added to its next upload (3), (4).

With the first two, the mean over all random outcomes is the upload itself, and an unbiased method
stays unbiased (Proposition 1 of PFLEGO's paper). `top_k` is biased, and sends the rest later. A
client's state grows by the size of an upload.

(1) Suresh et al., "Distributed Mean Estimation with Limited Communication" (ICML 2017). (2) Konečný
et al., "Federated Learning: Strategies for Improving Communication Efficiency" (2016). Here the
mask is sampled part by part, which takes as many random numbers as sent numbers. (3) Stich,
Cordonnier and Jaggi, "Sparsified SGD with Memory" (NeurIPS 2018). (4) Karimireddy et al., "Error
Feedback Fixes SignSGD and other Gradient Compression Schemes" (ICML 2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.aggregation.declared import Choice, Number
from tf_pflego.aggregation.wrapping import Wrapper, seed_of, wrapped
from tf_pflego.core import nests
from tf_pflego.core.algorithm import Algorithm, num_bytes
from tf_pflego.system import values

_BITS = Number("bits", 8, {"at_least": 1, "at_most": 16})
_SHARE = Number("share", 0.01, {"above": 0, "at_most": 1})
CHOICE = Choice(
    "compression",
    "compression of uploads: numbers rounded at random to a few bits (quantized:8), a random "
    "share of the numbers (masked:0.01) or the largest numbers first and the rest later "
    "(top_k:0.01); or none",
    {"quantized": _BITS, "masked": _SHARE, "top_k": _SHARE},
)
_FEWEST = 32  # Numbers in an array below which to compress it gains nothing.
_BLOCK_BITS = 10  # A block has at most 2^10 numbers, so that little is padded.


class _Compressor(NamedTuple):
    """The compression of an array of n numbers. Infinite or NaN input gives such output."""

    decoded: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # (vector [n], seed [2]) -> vector [n]
    num_bytes: Callable[[int], int]  # (n) -> what would be sent
    remembers: bool = False  # whether the client keeps what is left out


def with_compression(
    algorithm: Algorithm, compression: str = "quantized", *, bits: int = 8, share: float = 0.01
) -> Algorithm:
    """Returns an algorithm with smaller uploads.

    Args:
      algorithm: The method. Its uploads are added up over the participants. If they are to be
        private too, they are compressed first.
      compression: `quantized`, which rounds uploads to 2^bits levels, `masked`, which uploads a
        random share of the numbers, or `top_k`, which uploads the share that is largest in size,
        and the rest later. The mean of the first two is the original upload.
      bits: The bits of a quantised number, 1 to 16; without effect otherwise.
      share: The share of uploaded numbers, above 0 and at most 1; without effect on `quantized`.

    Returns:
      The `Algorithm`. Uploaded arrays of fewer than 32 numbers are not compressed. With `top_k`,
      the clients' states grow by the size of an upload.

    Raises:
      TypeError: `algorithm` is no `Algorithm`.
      ValueError: A value is out of its range, the algorithm is private already, or the server of
        the method must see the uploads of single clients.

    Example, explained in docs/aggregation.md#fewer-bytes:
      >>> smaller = pfl.with_compression(algorithm, "quantized", bits=8)
      >>> with pfl.Simulation(smaller, clients, participation, engine="in_process") as trained:
      ...     trained.run_round()["bytes_up"] < simulation.run_round()["bytes_up"]
      True
    """
    values.instance("algorithm", algorithm, Algorithm, "Make one with `build_algorithm`.")
    values.one_of("compression", compression, tuple(CHOICE.kinds))
    bits, share = _BITS.checked("bits", bits), _SHARE.checked("share", share)
    compressor = {
        "quantized": _Compressor(
            lambda vector, seed: _quantized(vector, seed, bits), lambda n: _bytes_of_levels(n, bits)
        ),
        "masked": _Compressor(
            lambda vector, seed: _masked(vector, seed, share), lambda n: 4 * math.ceil(share * n)
        ),
        "top_k": _Compressor(
            lambda vector, seed: _largest(vector, share), lambda n: 8 * math.ceil(share * n), True
        ),
    }[compression]

    def init_client(specs):
        large = filter(_is_large, tf.nest.flatten((specs.summed, specs.averaged)))
        return tuple(tf.zeros(math.prod(leaf.shape)) for leaf in large if compressor.remembers)

    def at_client(result, earlier, message, state, client, round_):
        upload = result.summed, result.averaged
        sent, left_out = list[tf.Tensor](), list[tf.Tensor]()
        for name, leaf in zip(nests.positions(upload), tf.nest.flatten(upload), strict=True):
            if _is_large(leaf):
                vector = tf.reshape(leaf, [-1])
                if compressor.remembers:
                    vector += state[len(left_out)]
                decoded = compressor.decoded(vector, seed_of(client.seed, f"compression {name}"))
                if compressor.remembers:
                    left_out.append(vector - decoded)
                leaf = tf.reshape(decoded, leaf.shape)
            sent.append(leaf)
        summed, averaged = tf.nest.pack_sequence_as(upload, sent)
        return result._replace(summed=summed, averaged=averaged), tuple(left_out)

    def upload_bytes(sums, single, inner):
        return sum(
            compressor.num_bytes(math.prod(leaf.shape)) if _is_large(leaf) else num_bytes(leaf)
            for leaf in tf.nest.flatten(sums)
        )

    return wrapped(
        algorithm, Wrapper(init_client=init_client, at_client=at_client, upload_bytes=upload_bytes)
    )


DECLARED = CHOICE.declared(
    2, lambda algorithm, how, run, **number: with_compression(algorithm, how, **number)
)


def _is_large(leaf):
    return tf.as_dtype(leaf.dtype) == tf.float32 and math.prod(leaf.shape) >= _FEWEST


def _block_of(size):
    """Returns the rows and columns, powers of two, of a block of a vector."""
    bits = min(_BLOCK_BITS, math.ceil(math.log2(size)))
    return 2 ** (bits // 2), 2 ** (bits - bits // 2)


def _bytes_of_levels(size, bits):
    block = math.prod(_block_of(size))
    blocks = math.ceil(size / block)
    return math.ceil(blocks * block * bits / 8) + 8 * blocks


def _uniform(shape, seed, dtype="float32"):
    return tf.random.stateless_uniform(shape, seed, dtype=dtype)


def _hadamard(size):
    """Returns the symmetric rotation [size, size] of entries 1 and -1 over sqrt(size)."""
    matrix = np.ones([1, 1], np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.sqrt(np.float32(size))


def _quantized(vector, seed, bits):
    """Returns a vector after rotating its blocks and rounding them at random."""
    (size,), steps = vector.shape, 2.0**bits - 1
    rows, columns = _block_of(size)
    left, right = _hadamard(rows), _hadamard(columns)  # Their Kronecker product is the rotation.
    coin, drawn = tf.unstack(_uniform([2, rows, columns], seed))
    signs = tf.where(coin < 0.5, -1.0, 1.0)
    padded = tf.pad(vector, [[0, -size % (rows * columns)]])
    rotated = left @ (signs * tf.reshape(padded, [-1, rows, columns])) @ right
    least = tf.reduce_min(rotated, axis=[1, 2], keepdims=True)
    width = tf.reduce_max(rotated, axis=[1, 2], keepdims=True) - least
    exact = steps * tf.math.divide_no_nan(rotated - least, width)
    # To draw each number alone takes longer than all else. Any two of these are independent too, so
    # that no mean and no variance differs.
    drawn += _uniform([exact.shape[0], 1, 1], seed_of(seed, "blocks"))
    # A sum just below a whole number may be rounded to it, above the last level.
    levels = tf.minimum(tf.floor(exact + (drawn - tf.floor(drawn))), steps)
    rounded = least + (width / steps) * levels
    return tf.reshape(signs * (left @ rounded @ right), [-1])[:size]


def _masked(vector, seed, share):
    """Returns a vector of zeros but for one number of each part, times the size of its part."""
    (size,) = vector.shape
    count = math.ceil(share * size)
    starts = np.arange(count + 1) * size // count
    sizes = np.diff(starts)
    # In float64, in which all numbers of a part are drawn alike.
    offsets = tf.floor(sizes * _uniform([count], seed, tf.float64))
    places = starts[:-1] + tf.cast(offsets, tf.int64)
    sent = sizes.astype(np.float32) * tf.gather(vector, places)
    return tf.scatter_nd(places[:, None], sent + _zero_if_finite(vector), [size])


def _largest(vector, share):
    """Returns a vector of zeros but for the share of its numbers that is largest in size."""
    (size,) = vector.shape
    _, places = tf.math.top_k(tf.abs(vector), math.ceil(share * size), sorted=False)
    sent = tf.gather(vector, places) + _zero_if_finite(vector)
    return tf.scatter_nd(places[:, None], sent, [size])


def _zero_if_finite(vector):
    """Returns 0, or infinity or NaN if the sum is: unsent numbers must have this effect too."""
    total = tf.reduce_sum(vector)
    return tf.where(tf.math.is_finite(total), 0.0, total)
