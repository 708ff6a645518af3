"""User-level differential privacy: uploads are clipped, and their sum is noised.

The mechanism hides a client's participation in a run, with all its examples, from everybody else
who sees the server's messages. This is joint differential privacy. Only the mechanism `local`
protects against the server, since the server otherwise has all uploads before it noises their sum.
A client's own head, features and examples never leave it. An exported head is not private towards
the readers of its file.

A round:
  1. The server sends the bound C with the method's message.
  2. Client i computes its upload u_i as a method with equal weights 1 / I would, and scales it to
     the norm C if it is longer: u_i <- u_i min(1, C / |u_i|). All parts of it are one vector. If
     it is not finite it is 0, and the client keeps its earlier state.
  3. The server adds noise of deviation z C to each number of the sum, in rounds without
     participants too, and divides by the expected number r of participants. An upload that is
     lost on its way is 0.

  mechanism  noise of round t                                                        source
  gaussian   n_t ~ N(0, (z C)^2)                                                     (1)
  banded     n_t = y_t, y_t = N(0, (z C sqrt(k) |c|)^2) - sum_j c_j y_{t - j}        (2), (3)
  local      each client adds its own N(0, (z C)^2) to what it uploads

Banded noise is negatively correlated over rounds: the c_j = (1 - 1 / (2 j)) c_{j - 1}, c_0 = 1, are
the first b = floor(I / r) coefficients of (1 - x)^(-1/2), and a client participates k times at
most, with b rounds or more between two times. This needs the participation `cyclic` instead of
random participants. The claim follows from one Gaussian of multiplier z.

The bound is a number, or it follows the median of the norms (4): clients report whether their norm
was below it, and C <- C exp(-0.2 (share - 1/2)) with a noised share.

The noise of a release follows from a secret of 128 bits in the server's state and the checkpoints,
the number of the release and its participants. No two releases share it. The participants of a run
follow from the secret too, and not from the run's seed, which is published. The state also has z
and the number of releases for the computation of epsilon: a continued run keeps its z at any number
of rounds.

(1) McMahan et al., "Learning Differentially Private Recurrent Language Models" (ICLR 2018). (2)
Choquette-Choo et al., "(Amplified) Banded Matrix Factorization: A unified approach to private
training" (NeurIPS 2023), for clients that participate at least b rounds apart. (3) Kalinin and
Lampert, "Banded Square Root Matrix Factorization for Differentially Private Model Training"
(NeurIPS 2024), for the coefficients. (4) Andrew et al., "Differentially Private Learning with
Adaptive Clipping" (NeurIPS 2021).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.aggregation import wrapping
from tf_pflego.aggregation.accounting import LOCAL, Accountant
from tf_pflego.aggregation.wrapping import Wrapped, Wrapper
from tf_pflego.core import nests, seeds
from tf_pflego.core.algorithm import (
    Algorithm,
    Client,
    ClientResult,
    Round,
    Sums,
    Uploads,
    num_bytes,
)
from tf_pflego.core.nests import Structure

ADAPTIVE = "adaptive"
_FIRST_BOUND, BOUND_RATE, _QUANTILE = 0.1, 0.2, 0.5  # Of an adaptive bound, as in source (4).
SHARE_DEVIATION = 1 / 20  # of the noise on the share, times r


class PrivateUpload(NamedTuple):
    """The upload of a client."""

    clipped: Structure  # (I times what it sums, what it averages), of norm C at most
    is_below: Structure  # [] float32, 1/2 if it was not longer than C, -1/2 if it was; local: ()


class PrivateState(NamedTuple):
    """The server's state of an exchange."""

    secret: tf.Tensor  # [2] int64
    noise_multiplier: tf.Tensor  # [] float64, z
    num_rounds: tf.Tensor  # [] int32, T of the run that began
    releases: tf.Tensor  # [] int32, how many sums it has noised
    seeds: tf.Tensor  # [k, 2] int64, of this exchange's noise and share, or of each client's noise
    bound: tf.Tensor  # [] float32, C
    share_clipped: tf.Tensor  # [] float32, of the last round's participants
    signal_to_noise: tf.Tensor  # [] float32, norm of the last sum over that of its noise
    earlier: Structure  # [b - 1, d] float32, y of the last rounds, the newest first


def wrap(algorithm: Algorithm, accountant: Accountant, bound: float | str) -> Algorithm:
    """Returns a private algorithm with bound C (see `aggregation.private`)."""
    is_local, adaptive = accountant.mechanism == LOCAL, bound == ADAPTIVE
    bands = accountant.bands
    coefficients = banded_coefficients(bands)
    clients_per_round = accountant.participation.federation.mean_clients_per_round
    share_deviation = clients_per_round * SHARE_DEVIATION
    if adaptive and accountant.noise_multiplier >= 2 * share_deviation:
        raise ValueError(
            f"`clip_norm` must be a number where the noise multiplier, here "
            f"{accountant.noise_multiplier:.3g}, is not below a tenth of the {clients_per_round:g} "
            "participants per round; got adaptive. Give a number, or take more participants."
        )
    # Correlated noise is larger by this.
    growth = math.sqrt(accountant.participations) * np.linalg.norm(coefficients)
    no_seeds = tf.zeros([0 if is_local else 2, 2], tf.int64)

    def init_server(specs):
        size = nests.size((specs.summed, specs.averaged))
        zero = tf.zeros([])
        return PrivateState(
            secret=tf.constant(seeds.secret()),
            noise_multiplier=tf.constant(accountant.noise_multiplier, tf.float64),
            num_rounds=tf.constant(accountant.num_rounds),
            releases=tf.constant(0),
            seeds=no_seeds,
            bound=tf.constant(_FIRST_BOUND if adaptive else bound, tf.float32),
            share_clipped=zero,
            signal_to_noise=zero,
            earlier=tf.zeros([bands - 1, size]) if bands > 1 else (),
        )

    def seeded(state, ids, number):
        if bands > 1:
            refuse_other_rounds(accountant, int(state.num_rounds))
        secret, keys = np.asarray(state.secret), (int(state.releases), ids)
        if is_local:
            drawn = [seeds.of_secret(secret, "noise of a client", *keys, one) for one in ids]
        else:
            drawn = [seeds.of_secret(secret, purpose, *keys) for purpose in ("noise", "share")]
        return state._replace(seeds=tf.reshape(tf.constant(drawn, tf.int64), [-1, 2]))

    def broadcast(state, round_):
        return state.bound, tf.cast(state.noise_multiplier, tf.float32) if is_local else ()

    def at_client(result, earlier_state, message, state, client, round_):
        limit, multiplier = message
        upload, is_below, finite = clipped(result, limit, round_)
        below: Structure = tf.where(is_below, 0.5, -0.5)
        if is_local:
            deviation = multiplier * limit
            noise = normals(nests.size(upload), seed_on(client.message, upload, deviation))
            upload, below = with_noise(upload, deviation, noise), ()
        new_state = kept_if(finite, result.state, earlier_state)
        return result._replace(
            state=new_state, summed=PrivateUpload(upload, below), averaged=()
        ), state

    def at_server(uploads, state, round_):
        total, earlier = uploads.summed.clipped, state.earlier
        rate, signal, share_clipped = round_.mean_clients_per_round, state.signal_to_noise, 0.0
        next_bound, below = state.bound, uploads.summed.is_below
        if not is_local:
            multiplier = state.noise_multiplier
            if adaptive:  # A part of what is claimed goes to the share: section 2 of source (4).
                multiplier = (multiplier**-2 - (2 * share_deviation) ** -2) ** -0.5
                noise = normals(1, seed_on(state.seeds[1], below, total))
                noisy = below + share_deviation * tf.cast(noise[0], tf.float32)
                next_bound *= tf.exp(-BOUND_RATE * (0.5 + noisy / rate - _QUANTILE))
            deviation = growth * multiplier * tf.cast(state.bound, tf.float64)
            noise = normals(nests.size(total), seed_on(state.seeds[0], total, below, deviation))
            if bands > 1:
                noise -= tf.tensordot(coefficients[1:], tf.cast(earlier, tf.float64), 1) / deviation
                earlier = tf.concat([tf.cast(deviation * noise, tf.float32)[None], earlier[:-1]], 0)
            share_clipped = 0.5 - tf.math.divide_no_nan(below, uploads.count)
            signal = _norm(total) / tf.cast(deviation * tf.norm(noise), tf.float32)
            total = with_noise(total, deviation, noise)
        new = state._replace(
            releases=state.releases + 1,
            seeds=no_seeds,
            bound=next_bound,
            share_clipped=share_clipped,
            signal_to_noise=signal,
            earlier=earlier,
        )
        return decoded(total, uploads, round_), new

    def upload_bytes(sums, single, inner):
        if is_local:  # Noise leaves no number small or out.
            return num_bytes(sums)
        summed, averaged = sums.summed.clipped
        return inner(Sums(summed, averaged, ()), single) + num_bytes(sums.summed.is_below)

    def measures(states):
        (last,) = states[-1:]
        of_sums = {
            "privacy_clipped_share": float(last.share_clipped),
            "privacy_signal_to_noise": float(last.signal_to_noise),
        }
        return {
            **accountant.measures(float(last.noise_multiplier), states),
            "privacy_clip_norm": float(last.bound),
            **({} if is_local else of_sums),
        }

    wrapper = Wrapper(
        init_server=init_server,
        broadcast=broadcast,
        client_messages=(lambda state, ids, round_: state.seeds) if is_local else None,
        prepare=counted_alike,
        at_client=at_client,
        at_server=at_server,
        upload_bytes=upload_bytes,
        seeded=seeded,
        is_private=True,
        fits=None if is_local else lambda state, sums: _fits(sums.summed, float(state.bound)),
        measures=measures,
    )
    return wrapping.wrapped(
        algorithm,
        wrapper,
        participation=accountant.participation,
        participation_seed=participation_seed,
        claim=accountant.claim,
    )


def participation_seed(server: Wrapped) -> int:
    """Returns the seed for sampling participants."""
    secret = np.asarray(server.wrapper[0].secret)
    return int.from_bytes(seeds.of_secret(secret, "participants").tobytes(), "little")


def refuse_other_rounds(accountant: Accountant, num_rounds: int) -> None:
    """Raises ValueError if a run continues with other rounds than its noise is made for."""
    if num_rounds != accountant.num_rounds:
        raise ValueError(
            f"`num_rounds` must stay {num_rounds} with the mechanism {accountant.mechanism}, "
            f"since its noise depends on it; got {accountant.num_rounds}. Start a new run for "
            "more rounds."
        )


def counted_alike(client: Client, round_: Round) -> Client:
    """Returns a client as a method sees it with equal weights."""
    return client._replace(client_weight=round_.equal_weight)


def kept_if(finite: tf.Tensor, new: Structure, earlier: Structure) -> Structure:
    """Returns a client's new state, or its earlier state if the computed state is not finite."""
    return tf.nest.map_structure(lambda *pair: tf.where(finite, *pair), new, earlier)


def clipped(
    result: ClientResult, bound: tf.Tensor, round_: Round
) -> tuple[Structure, tf.Tensor, tf.Tensor]:
    """Returns an upload of norm C at most, whether it was so before, and whether it was finite.

    The upload is a pair: I times the client's sums, and its averages. It is 0 if not finite.
    """
    scales, parts = (1 / round_.equal_weight, 1.0), (result.summed, result.averaged)
    norms = [scale * _norm(part) for scale, part in zip(scales, parts, strict=True)]
    norm = tf.norm(tf.stack(norms))
    finite = tf.math.is_finite(norm) & nests.all_finite(result.state)
    factor = tf.where(finite, tf.minimum(1.0, bound / norm), 0.0)
    limited = tuple(  # Each number is touched once: the vector is long, and there are many clients.
        tf.nest.map_structure(
            lambda leaf, scale=scale: tf.math.multiply_no_nan(leaf, scale * factor), part
        )
        for scale, part in zip(scales, parts, strict=True)
    )
    return limited, finite & (norm <= bound), finite


def _fits(upload: PrivateUpload, bound: float) -> bool:
    """Returns whether a client can upload this, within what float32 rounds."""
    return float(_norm(upload.clipped)) <= 1.001 * bound and abs(float(upload.is_below)) == 0.5


def decoded(total: Structure, uploads: Uploads, round_: Round) -> Uploads:
    """Returns the method's part of the sum of such pairs: all denominators are fixed."""
    summed, averaged = total
    rate = round_.mean_clients_per_round
    return uploads._replace(
        summed=nests.scale(round_.equal_weight, summed),
        averaged=nests.scale(1 / rate, averaged),
        count=rate,
    )


def banded_coefficients(bands: int) -> np.ndarray:
    """Returns [b] float64, the first coefficients of (1 - x)^(-1/2)."""
    factors = [1.0, *(1 - 1 / (2 * j) for j in range(1, bands))]
    return np.cumprod(factors)


def _norm(nest):
    leaves = tf.nest.flatten(nest)
    return tf.linalg.global_norm(leaves) if leaves else tf.zeros([])


def seed_on(seed: tf.Tensor, *hidden: Structure) -> tf.Tensor:
    """Returns [2] int64, the seed of the noise that hides these values of 32 or 64 bits.

    Other values have other noise, also after a checkpoint is restored with other settings, clients'
    states or examples: the difference of two sums always contains noise. The result is `seed` plus
    a multilinear hash with keys from `seed`. Two values have the same noise with a probability of
    2^-66.
    """
    leaves = tf.nest.flatten(hidden)
    words = tf.concat([tf.reshape(tf.bitcast(leaf, tf.int32), [-1]) for leaf in leaves], 0)
    shape = [2, words.shape[0]]
    keys = tf.random.stateless_uniform(shape, seed, minval=None, maxval=None, dtype=tf.int64)
    return seed + tf.reduce_sum(keys * tf.cast(words, tf.int64), 1)


def normals(count: int, seed: tf.Tensor) -> tf.Tensor:
    """Returns [count] float64 of N(0, 1), with tails up to 8.5 deviations.

    These use the method of Box and Muller. TensorFlow's normals end at 5.7 deviations in either
    precision, and a sum further away would reveal a client's participation.
    """
    pairs = tf.random.stateless_uniform([2, -(-count // 2)], seed, dtype=tf.float64)
    length, angle = tf.sqrt(-2 * tf.math.log1p(-pairs[0])), 2 * math.pi * pairs[1]
    return tf.concat([length * tf.cos(angle), length * tf.sin(angle)], 0)[:count]


def with_noise(nest: Structure, deviation: tf.Tensor, noise: tf.Tensor) -> Structure:
    """Returns a nest plus noise [d] float64 of this deviation, rounded to float32 at the end."""
    vector = tf.cast(nests.flat(nest), tf.float64) + tf.cast(deviation, tf.float64) * noise
    return nests.like(nest, tf.cast(vector, tf.float32))
