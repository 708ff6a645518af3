"""Sums of integers modulo 2^b: the arithmetic of secure sums.

In a simulation nothing hides an upload from the server, which adds integers as a secure sum would:
the result, its rounding and the bytes of an upload are the same.

With c participants, client i has the numbers u_i, I times its sums and I alpha_i times its
averages, and its weight alpha_i:

  1. It scales u_i to the norm C if it is longer, so that each number is in [-C, C].
  2. It rounds at random, up or down, to integers q_i that are u_i L / C on average. With L =
     floor((2^(b - 1) - 1) / c) no sum of c of them wraps around. The alpha_i have a sum of at most
     1, and 2^(b - 1) - 1 - c steps.
  3. It uploads q_i modulo 2^b. The server centres the sum modulo 2^b, and scales it back.

A client with infinite or NaN numbers is excluded, and the remaining clients upload again.

Source: Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (CCS
2017), for sums modulo a number of integers that are hidden by masks.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.aggregation import privacy, wrapping
from tf_pflego.aggregation.declared import Declared
from tf_pflego.core import nests
from tf_pflego.core.algorithm import Algorithm, Client, Federation, Sums
from tf_pflego.core.nests import Structure
from tf_pflego.core.release import NOTHING
from tf_pflego.system import values

BITS, MOST_BITS = 24, 32
_FLOAT_LEVELS = 2**24  # There are no more in a float32.
_WITHIN = 1 - 1e-5  # Norms are sums of float32, so that a number may be a little above C.


class SecureUpload(NamedTuple):
    """The upload of a client."""

    integers: Structure  # int32, each modulo 2^b
    reports: tf.Tensor  # [] float32, 0; NaN of a client that the engine has to leave out


def with_secure_aggregation(
    algorithm: Algorithm, *, bits: int = BITS, clip_norm: float
) -> Algorithm:
    """Returns an algorithm with integers of a secure sum as uploads (see `aggregation.secure`).

    Args:
      algorithm: A method that only adds up uploads over the participants.
      bits: b, the bits of an integer that is uploaded in the place of a number.
      clip_norm: C, the largest norm of an upload. A longer upload is scaled to it. It is the norm
        of I alpha_i times the `averaged` part, where I alpha_i is 1 on average, and of I times the
        `summed` part.

    Raises:
      TypeError: `algorithm` is of another class.
      ValueError: An argument does not take its value. The algorithm's `init_server` raises it if
        the server of the method must see single uploads, or `bits` are too few for the clients.

    Example, explained in docs/aggregation.md#secure-sums:
      >>> pfl.with_secure_aggregation(algorithm, clip_norm=1.0)
      Algorithm(pflego, 1 exchange per round, serves personalized)
    """
    values.instance("algorithm", algorithm, Algorithm, "Make one with `build_algorithm`.")
    bits = values.whole("bits", bits, 2, MOST_BITS)
    bound = values.number("clip_norm", clip_norm, above=0)
    largest = 2 ** (bits - 1) - 1

    def steps(count):
        """Returns how many steps there are for a number of 1, and for a weight of 1."""
        levels = tf.minimum(largest // tf.maximum(count, 1), _FLOAT_LEVELS)
        of_numbers = _WITHIN * tf.cast(levels, tf.float32) / bound
        return of_numbers, tf.cast(tf.minimum(largest - count, _FLOAT_LEVELS), tf.float32)

    def at_client(result, earlier_state, message, state, client, round_):
        sums = Sums.share(result, client.client_weight)
        weighted = result._replace(summed=(sums.summed, sums.weighted), averaged=())
        (numbers, _), _, finite = privacy.clipped(weighted, bound, round_)
        of_numbers, of_weight = steps(client.message)
        summed, weighted = nests.scale(of_numbers, numbers)
        sums = Sums(summed, weighted, nests.scale(of_weight, sums.weight))
        integers = modulo(rounded(nests.flat(sums), client), bits)
        upload = SecureUpload(nests.like(sums, integers), tf.where(finite, 0.0, np.nan))
        return result._replace(summed=upload, averaged=()), state

    def at_server(uploads, state, round_):
        of_numbers, of_weight = steps(tf.size(uploads.client_ids))
        total = centred(uploads.summed.integers, bits)
        # The mean is finite even if all weights were so small that they were rounded to 0.
        weight = tf.nest.map_structure(lambda leaf: tf.maximum(leaf, 1) / of_weight, total.weight)
        summed, weighted = nests.scale(round_.equal_weight / of_numbers, total[:2])
        mean = Sums(summed, weighted, weight).mean()
        return uploads._replace(summed=summed, averaged=mean), state

    wrapper = wrapping.Wrapper(
        client_messages=lambda state, ids, round_: tf.fill([tf.size(ids)], tf.size(ids)),
        at_client=at_client,
        at_server=at_server,
        upload_bytes=lambda sums, single, inner: upload_bytes(sums.summed.integers, bits),
        is_outermost=True,
    )
    result = wrapping.wrapped(algorithm, wrapper)

    def init_server(federation):
        refuse_few_bits(bits, federation)
        return result.init_server(federation)

    return dataclasses.replace(result, init_server=init_server)


def _asked_for(algorithm, run, participation):
    # A wrapper that goes around nothing else, such as skellam's, has summed the integers already.
    if not run.secure_sum_bits or algorithm.release is not NOTHING:
        return algorithm
    refuse_few_bits(run.secure_sum_bits, participation.federation)
    return with_secure_aggregation(algorithm, bits=run.secure_sum_bits, clip_norm=run.clip_norm)


DECLARED = Declared(4, _asked_for, {"bits": "secure_sum_bits"})


def refuse_few_bits(bits: int, federation: Federation) -> None:
    """Raises ValueError if sums over the largest number of participants could wrap around."""
    most = federation.max_clients_per_round
    if 2 ** (bits - 1) - 1 < 2 * most:
        raise ValueError(
            f"`bits` must be at least {(2 * most).bit_length() + 1}, so that sums over {most} "
            f"clients do not wrap around; got {bits}. Raise `bits`."
        )


def rounded(numbers: tf.Tensor, client: Client) -> tf.Tensor:
    """Returns numbers [d] float32 as int32, rounded up or down at random without a bias."""
    seed = wrapping.seed_of(client.seed, "rounding")
    below = tf.floor(numbers)
    goes_up = tf.random.stateless_uniform(numbers.shape, seed) < numbers - below
    return tf.cast(below, tf.int32) + tf.cast(goes_up, tf.int32)


def modulo(integers: tf.Tensor, bits: int) -> tf.Tensor:
    """Returns int32 modulo 2^b, in [0, 2^b) but for b = 32, where they wrap around as int32 do."""
    return tf.bitwise.bitwise_and(integers, np.uint32(2**bits - 1).view(np.int32))


def centred(total: Structure, bits: int) -> Structure:
    """Returns sums modulo 2^b as float32, each the number in [-2^(b - 1), 2^(b - 1)) that it is."""
    half = 2 ** (bits - 1)

    def of(leaf):
        number = tf.math.floormod(tf.cast(leaf, tf.int64) + half, 2**bits) - half
        return tf.cast(number, tf.float32)

    return tf.nest.map_structure(of, total)


def upload_bytes(integers: Structure, bits: int) -> int:
    """Returns the bytes of an upload of integers of b bits each."""
    return -(-nests.size(integers) * bits // 8)
