"""An audit of private sums in one run: canary clients, and the detection of them in the sums.

A canary uploads a random direction d_j instead of its update, with the bound C as its norm after
clipping. Canaries are inside of privacy, private(planted(algorithm)): the server sees the sums with
their noise, and stores their total R over all rounds.

  1. The score of a canary is sqrt(D) <d_j, R> / |R| for D numbers in an upload. A direction that
     nobody uploads has a score of N(0, 1) for large D and any R.
  2. A canary is recognised if its score is above the quantile of N(0, 1) that lets a share of 0.05
     pass. The share of those that are not recognised has a Clopper-Pearson bound.
  3. Both shares bound mu of Gaussian differential privacy,
     mu = Phi^-1(1 - false positives) - Phi^-1(false negatives), and with it epsilon:
     delta = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu).

A lower bound on epsilon can only find too little noise. It is near the truth if canaries
participate in all rounds or are sampled independently in each, and if D is far larger than their
number. With cyclic participation, clients are hidden better in the total than from
observers that know their rounds.

Source: Andrew et al., "One-shot Empirical Privacy Estimation for Federated Learning" (ICLR 2024),
for canaries and their scores.
"""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from tf_pflego.aggregation import inspection, wrapping
from tf_pflego.aggregation.accounting import gaussian_epsilon
from tf_pflego.aggregation.wrapping import Wrapper
from tf_pflego.core import nests, seeds
from tf_pflego.core.algorithm import Algorithm
from tf_pflego.core.nests import Structure

_LENGTH = 1e6  # of a canary's upload before it is clipped
_FALSE_POSITIVES = 0.05


def planted(algorithm: Algorithm, first: int, seed: int) -> Algorithm:
    """Returns an algorithm with canaries as the clients with identities from `first` on."""

    def at_client(result, earlier, message, state, client, round_):
        upload = result.summed, result.averaged

        def of_canary():
            summed, averaged = nests.scale(
                _LENGTH, _direction(upload, seed, client.seed[1] - first)
            )
            return nests.scale(round_.equal_weight, summed), averaged

        summed, averaged = tf.cond(client.seed[1] >= first, of_canary, lambda: upload)
        return result._replace(summed=summed, averaged=averaged), state

    return wrapping.wrapped(algorithm, Wrapper(**inspection.SUMS, at_client=at_client))


def scores(server_state: Structure, count: int, seed: int) -> np.ndarray:
    """Returns [count] float64, the score of each canary in the sums of the last exchange."""
    *_, total = inspection.totals(server_state)
    leaves = tf.nest.flatten(total)
    scale = math.sqrt(sum(leaf.shape.num_elements() for leaf in leaves))
    scale /= float(tf.linalg.global_norm(leaves))
    product = tf.function(
        lambda number: nests.inner_product(_direction(total, seed, number), total), autograph=False
    )
    return scale * np.array([float(product(number)) for number in tf.range(count)])


def lower_bound(scores: np.ndarray, delta: float, confidence: float) -> tuple[float, int]:
    """Returns epsilon that a mechanism with such scores does not stay below, and the recognised.

    If it does stay below, the bound is wrong with probability 1 - confidence at most.
    """
    from scipy import stats  # dp-accounting brings it.

    threshold = float(stats.norm.isf(_FALSE_POSITIVES))
    recognised = int((scores > threshold).sum())
    if not recognised:
        return 0.0, 0
    share = stats.beta.ppf(1 - confidence, recognised, len(scores) - recognised + 1)
    return gaussian_epsilon(threshold + float(stats.norm.ppf(share)), delta), recognised


def _direction(like: Structure, seed: int, number: int | tf.Tensor) -> Structure:
    """Returns a random nest of norm 1."""
    own = tf.random.experimental.stateless_fold_in(seeds.server_seed(seed, "canaries"), number)
    drawn = tf.nest.map_structure(
        lambda leaf, one: tf.random.stateless_normal(leaf.shape, one),
        like,
        wrapping.split_seed(own, like),
    )
    return nests.scale(1 / tf.linalg.global_norm(tf.nest.flatten(drawn)), drawn)
