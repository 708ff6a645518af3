"""Robust sums: what a few clients upload moves the server by a bounded amount only.

A client uploads u_i as in `privacy`: I times what its method sums, and what it averages, computed
with the equal weight 1 / I, so that nobody counts more by naming more examples. The server takes a
centre m of the uploads of the c participants for their mean, and the method receives what it would
if each of them had uploaded m. With a of the participants attacking:

  sum               m                                                    source  bounded for
  norm_bound        mean of u_i min(1, C / |u_i|)                        (1)     any a, by 2 C a / c
  median            median of each number                                (2)     a < c / 2
  trimmed_mean      mean of each number, without its floor(s c) largest  (2)     a <= floor(s c)
                    and smallest values
  geometric_median  minimum over m of sum_i |u_i - m|, smoothed          (3)     a < c / 2

With more attackers m is whatever they wish; with fewer, its distance from the honest mean is of the
order of how far honest uploads differ. Where clients have data of different kinds that is far even
without attackers: a median leaves out what few clients upload, such as gradients of a rare class.
Participants are drawn, so that a round may have a larger share of attackers than the federation.

`norm_bound` needs the sum of the clipped uploads alone. For the others the server sees every single
upload; they exclude sums that hide it, secure or private ones.

The geometric median follows from Weiszfeld's steps, which begin at the median: w_i = 1 / max(nu,
|u_i - m|), m <- sum_i w_i u_i / sum_i w_i. All u_i count alike here; source (3) weighs them by
their examples.

(1) Sun et al., "Can You Really Backdoor Federated Learning?" (2019).
(2) Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (ICML
2018).
(3) Pillutla, Kakade and Harchaoui, "Robust Aggregation for Federated Learning" (IEEE Transactions
on Signal Processing 70, 2022).
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tf_pflego.aggregation import privacy, wrapping
from tf_pflego.aggregation.wrapping import Wrapper
from tf_pflego.core import nests
from tf_pflego.core.algorithm import Algorithm, Sums
from tf_pflego.core.nests import Structure
from tf_pflego.system import values

ROBUST_SUMS = NORM_BOUND, MEDIAN, TRIMMED_MEAN, GEOMETRIC_MEDIAN = (
    *("norm_bound", "median", "trimmed_mean", "geometric_median"),
)
_STEPS, _SMOOTHING = 10, 1e-6  # Source (3) takes fewer steps, each of which costs it messages.


def robust(
    algorithm: Algorithm,
    robust_sum: str,
    *,
    clip_norm: float | None = None,
    trimmed_share: float = 0.1,
) -> Algorithm:
    """Returns an algorithm in which a few participants cannot move the server as they wish.

    All clients count alike in it, whatever their numbers of examples. With fewer attackers among
    the participants of a round than the sum bears, the server moves by what most of them upload.

    Args:
      algorithm: A method whose uploads are added up; the server may see of no client alone.
      robust_sum: norm_bound (each upload is scaled to the norm `clip_norm` if it is longer; bounds
        what any number of attackers do, and needs only sums), median (of each number; bears less
        than half of the participants), trimmed_mean (of each number without its largest and least
        values; bears `trimmed_share` of the participants) or geometric_median (the point with the
        least sum of distances; bears less than half). All but norm_bound let the server see every
        single upload.
      clip_norm: With norm_bound, the largest norm C, above 0, of what a client uploads: I times
        what its method sums, and what it averages, all numbers as one vector.
      trimmed_share: With trimmed_mean, the share of the participants that is left out at either
        end, in [0, 0.5); their number is rounded down.

    Raises:
      TypeError: `algorithm` is no `Algorithm`.
      ValueError: There is no such sum, a number is out of its range or missing, or the method's
        server must see the uploads of single clients.
    """
    values.instance("algorithm", algorithm, Algorithm, "Make one with `build_algorithm`.")
    is_sum = values.one_of("robust_sum", robust_sum, ROBUST_SUMS) == NORM_BOUND
    bound = values.number("clip_norm", clip_norm, above=0) if is_sum else np.inf
    share = values.number("trimmed_share", trimmed_share, at_least=0, below=0.5)

    def at_client(result, earlier, message, state, client, round_):
        upload, _, finite = privacy.clipped(result, bound, round_)
        # The engine leaves out of the round whoever uploads what is not finite.
        upload = nests.scale(tf.where(finite, 1.0, np.nan), upload)
        summed, single = (upload, ()) if is_sum else ((), upload)
        return result._replace(summed=summed, averaged=(), individual=single), state

    def at_server(uploads, state, round_):
        if is_sum:
            centre = nests.scale(1 / uploads.count, uploads.summed)
        elif robust_sum == GEOMETRIC_MEDIAN:
            centre = _geometric_median(uploads.individual)
        else:
            centre = _trimmed_mean(uploads.individual, share if robust_sum == TRIMMED_MEAN else 0.5)
        summed, averaged = centre
        summed = nests.scale(uploads.count * round_.equal_weight, summed)
        return uploads._replace(summed=summed, averaged=averaged, individual=()), state

    def upload_bytes(sums, single, inner):
        summed, averaged = sums.summed if is_sum else single
        return inner(Sums(summed, averaged, ()), ())

    wrapper = Wrapper(
        prepare=privacy.counted_alike,
        at_client=at_client,
        at_server=at_server,
        upload_bytes=upload_bytes,
    )
    return wrapping.wrapped(algorithm, wrapper)


def _trimmed_mean(uploads: Structure, share: float) -> Structure:
    """Returns the mean of each number without this share at both ends; 1/2 gives the median."""

    def inner_mean(leaf):
        count = tf.shape(leaf)[0]
        trimmed = tf.cast(share * tf.cast(count, tf.float64), tf.int32)
        trimmed = tf.minimum(trimmed, (count - 1) // 2)
        return tf.reduce_mean(tf.sort(leaf, axis=0)[trimmed : count - trimmed], axis=0)

    return tf.nest.map_structure(inner_mean, uploads)


def _geometric_median(uploads: Structure) -> Structure:
    """Returns the point with the least sum of distances from the uploads."""
    centre = _trimmed_mean(uploads, 0.5)
    for _ in range(_STEPS):
        differences = tf.nest.flatten(tf.nest.map_structure(tf.subtract, uploads, centre))
        squares = (tf.reduce_sum(leaf**2, axis=range(1, leaf.shape.rank)) for leaf in differences)
        weights = 1 / tf.maximum(_SMOOTHING, tf.sqrt(tf.add_n(list(squares))))
        centre = nests.weighted_sums(weights / tf.reduce_sum(weights), uploads)
    return centre
