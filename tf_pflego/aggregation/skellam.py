"""Noise on secure sums: each client adds a part of it, and the server sees no sum without.

With r participants, client i has u_i B / C as integers of norm B at most. It adds integers n_i,
each the difference of two numbers of a Poisson distribution with mean (z B)^2 / (2 r), and uploads
the sum modulo 2^b as in `secure`. The sum of the n_i is such a difference of variance (z B)^2,
Skellam's distribution (1). In each round r clients must report, or the noise is smaller. It is also
smaller for a server that colludes with k of them: (r - k) / r of that variance.

Rounding at random makes a vector longer. It is therefore scaled first to a norm B_0 so far below B
that it rarely leaves the ball of radius B: B_0^2 + d / 4 + a (B_0 + sqrt(d) / 2) = B^2 with a =
sqrt(2 log 10^6), after (2). If it leaves the ball, all numbers are rounded towards zero, which is
deterministic and makes no vector longer. The bound therefore is exact, and rounding is unbiased
except for one in a million vectors.

B = (2^(b - 1) - 1) / (r + 10 z): a sum is at most r B, and noise is above 10 z B in one of 10^22
numbers. A sum that wraps around is wrong, and equally private.

In a simulation the seeds of the noise follow from the server's secret, as in `privacy`, and the
server can see each upload. Clients of a federation would sample their own noise.

(1) Agarwal, Kairouz and Liu, "The Skellam Mechanism for Differentially Private Federated Learning"
(NeurIPS 2021).
(2) Kairouz, Liu and Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning
with Secure Aggregation" (ICML 2021), section 4.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.aggregation import privacy, secure, wrapping
from tf_pflego.aggregation.accounting import Accountant, integer_norm
from tf_pflego.core import nests, seeds
from tf_pflego.core.algorithm import Algorithm

_SLACK = math.sqrt(2 * math.log(1e6))  # a


class SkellamState(NamedTuple):
    """The server's state of an exchange."""

    secret: tf.Tensor  # [2] int64
    noise_multiplier: tf.Tensor  # [] float64, z
    releases: tf.Tensor  # [] int32, how many sums it has received
    seeds: tf.Tensor  # [c, 2, 2] int64, of what each participant adds and takes away


def wrap(algorithm: Algorithm, accountant: Accountant, bound: float) -> Algorithm:
    """Returns an algorithm with noised secure sums; `bound` is C."""
    participation, bits = accountant.participation, accountant.bits
    count = participation.clients_per_round
    no_seeds = tf.zeros([0, 2, 2], tf.int64)

    def init_server(specs):
        refuse_coarse(accountant.integer_norm, nests.size((specs.summed, specs.averaged)))
        return SkellamState(
            secret=tf.constant(seeds.secret()),
            noise_multiplier=tf.constant(accountant.noise_multiplier, tf.float64),
            releases=tf.constant(0),
            seeds=no_seeds,
        )

    def seeded(state, ids, number):
        secret, keys = np.asarray(state.secret), (int(state.releases), ids)
        drawn = [
            [seeds.of_secret(secret, name, *keys, client) for name in ("added", "taken")]
            for client in ids
        ]
        return state._replace(seeds=tf.reshape(tf.constant(drawn, tf.int64), [-1, 2, 2]))

    def at_client(result, earlier_state, multiplier, state, client, round_):
        radius = integer_norm(bits, count, multiplier)
        one, size = bound / radius, nests.size((result.summed, result.averaged))
        limit = one * radius_before_rounding(radius, size)
        upload, _, finite = privacy.clipped(result, tf.cast(limit, tf.float32), round_)
        vector = nests.flat(upload) / tf.cast(one, tf.float32)
        integers = secure.rounded(vector, client)
        norm = tf.norm(tf.cast(integers, tf.float64))
        integers = tf.where(norm <= radius, integers, tf.cast(vector, tf.int32))
        hidden, mean = integers, (multiplier * radius) ** 2 / (2 * count)
        for row, sign in enumerate((1, -1)):
            seed = privacy.seed_on(client.message[row], hidden, mean)
            drawn = tf.random.stateless_poisson(vector.shape, seed, mean, tf.int64)
            integers += sign * tf.cast(drawn, tf.int32)  # modulo 2^32, which 2^b divides
        new_state = privacy.kept_if(finite, result.state, earlier_state)
        uploaded = secure.SecureUpload(
            nests.like(upload, secure.modulo(integers, bits)), tf.zeros([])
        )
        return result._replace(state=new_state, summed=uploaded, averaged=()), state

    def at_server(uploads, state, round_):
        one = bound / integer_norm(bits, count, state.noise_multiplier)
        integers = secure.centred(uploads.summed.integers, bits)
        total = nests.scale(tf.cast(one, tf.float32), integers)
        state = state._replace(releases=state.releases + 1, seeds=no_seeds)
        return privacy.decoded(total, uploads, round_), state

    wrapper = wrapping.Wrapper(
        init_server=init_server,
        broadcast=lambda state, round_: state.noise_multiplier,
        client_messages=lambda state, ids, round_: state.seeds,
        prepare=privacy.counted_alike,
        at_client=at_client,
        at_server=at_server,
        upload_bytes=lambda sums, single, inner: secure.upload_bytes(sums.summed.integers, bits),
        seeded=seeded,
        is_outermost=True,
        measures=lambda states: {
            **accountant.measures(float(states[-1].noise_multiplier), states),
            "privacy_clip_norm": bound,
        },
    )
    return wrapping.wrapped(
        algorithm,
        wrapper,
        participation=participation,
        participation_seed=privacy.participation_seed,
        claim=accountant.claim,
    )


def refuse_coarse(radius: float, numbers: int) -> None:
    """Raises ValueError if B_0 is below B / 2 for this number of elements."""
    longer = numbers / 4 + _SLACK * math.sqrt(numbers) / 2
    if radius**2 < 4 * (longer + _SLACK * radius / 2) / 3:
        raise ValueError(
            f"`bits` must leave room for uploads of {numbers} numbers and for their noise; got "
            f"too few, since an upload has a norm of {radius:.3g} steps. Raise `bits`, or lower "
            "`noise_multiplier`."
        )


def radius_before_rounding(radius: tf.Tensor, numbers: int) -> tf.Tensor:
    """Returns B_0 for this number of elements, [] float64."""
    longer = numbers / 4 + _SLACK * math.sqrt(numbers) / 2
    before = (tf.sqrt(_SLACK**2 + 4 * (radius**2 - longer)) - _SLACK) / 2
    return (1 - 1e-5) * before  # Norms are sums of float32.
