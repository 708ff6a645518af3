"""Robust sums: the uploads of a few clients move the server by a bounded amount.

A client uploads u_i as in `privacy`: I times its method's sums, and its averages, computed with the
equal weight 1 / I. A client therefore cannot gain weight by claiming more examples. The server uses
a centre m of the c participants' uploads as their mean, and the method receives the result of c
uploads of m. With a of the participants attacking:

  sum               m                                                    source  bounded for
  norm_bound        mean of u_i min(1, C / |u_i|)                        (1)     any a, by 2 C a / c
  median            median of each number                                (2)     a < c / 2
  trimmed_mean      mean of each number, without its floor(s c) largest  (2)     a <= floor(s c)
                    and smallest values
  geometric_median  minimum over m of sum_i |u_i - m|, smoothed          (3)     a < c / 2

With more attackers they choose m. With fewer, its distance from the honest mean is of the order of
the distances between honest uploads. With different kinds of data at the clients this is far even
without attackers: a median excludes uploads of few clients, such as gradients of a rare class.
Participants are sampled, and a round may have a larger share of attackers than the federation.

`norm_bound` needs only the sum of the clipped uploads. With the remaining sums the server sees
every single upload, and they cannot be combined with secure or private sums.

The geometric median follows from Weiszfeld's steps, starting at the median: w_i = 1 / max(nu, |u_i
- m|), m <- sum_i w_i u_i / sum_i w_i. All u_i have equal weights here, and in source (3) the
weights of their examples.

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
from tf_pflego.aggregation.declared import Choice, Number
from tf_pflego.aggregation.wrapping import Wrapper
from tf_pflego.core import nests
from tf_pflego.core.algorithm import Algorithm, Sums
from tf_pflego.core.nests import Structure
from tf_pflego.system import values

ROBUST_SUMS = NORM_BOUND, MEDIAN, TRIMMED_MEAN, GEOMETRIC_MEDIAN = (
    *("norm_bound", "median", "trimmed_mean", "geometric_median"),
)
_TRIMMED_SHARE = Number("trimmed_share", 0.1, {"at_least": 0, "below": 0.5})
CHOICE = Choice(
    "robust_sum",
    "replacement of the mean over participants: the mean of uploads of a bounded norm "
    "(norm_bound), the median of each number (median), its mean without a share at each end "
    "(trimmed_mean:0.1) or the geometric median of whole uploads (geometric_median); or none",
    {**dict.fromkeys(ROBUST_SUMS), TRIMMED_MEAN: _TRIMMED_SHARE},
)
_STEPS, _SMOOTHING = 10, 1e-6  # Source (3) takes fewer steps, each of which costs it messages.


def with_robust_aggregation(
    algorithm: Algorithm,
    robust_sum: str,
    *,
    clip_norm: float | None = None,
    trimmed_share: float = 0.1,
) -> Algorithm:
    """Returns an algorithm that limits the influence of a few participants on the server.

    All clients have equal weights, at any numbers of examples. With fewer attackers in a round than
    the sum tolerates, the server follows the majority's uploads.

    Args:
      algorithm: A method that adds up uploads and needs no single upload at the server.
      robust_sum: norm_bound (each upload is scaled down to the norm `clip_norm`; bounds the effect
        of any number of attackers, and needs only sums), median (of each number; tolerates less
        than half of the participants), trimmed_mean (of each number without its largest and least
        values; tolerates `trimmed_share` of the participants) or geometric_median (the point with
        the least sum of distances; tolerates less than half). All except norm_bound let the server
        see every single upload.
      clip_norm: With norm_bound, the largest norm C, above 0, of a client's upload: I times its
        method's sums, and its averages, all numbers as one vector.
      trimmed_share: With trimmed_mean, the excluded share of the participants at either end, in [0,
        0.5). Their number is rounded down.

    Raises:
      TypeError: `algorithm` is no `Algorithm`.
      ValueError: There is no such sum, a number is out of its range or missing, or the method's
        server must see the uploads of single clients.

    Example, explained in docs/aggregation.md#attacks-and-robust-sums:
      >>> pfl.with_robust_aggregation(algorithm, "trimmed_mean", trimmed_share=0.2)
      Algorithm(pflego, 1 exchange per round, serves personalized)
    """
    values.instance("algorithm", algorithm, Algorithm, "Make one with `build_algorithm`.")
    is_sum = values.one_of("robust_sum", robust_sum, ROBUST_SUMS) == NORM_BOUND
    bound = values.number("clip_norm", clip_norm, above=0) if is_sum else np.inf
    share = _TRIMMED_SHARE.checked("trimmed_share", trimmed_share)

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


DECLARED = CHOICE.declared(
    3,
    lambda algorithm, kind, run, **share: with_robust_aggregation(
        algorithm, kind, clip_norm=run.clip_norm, **share
    ),
)


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
