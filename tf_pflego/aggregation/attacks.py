"""Attacks: a share of the clients uploads what harms the others.

  attack      what an attacker does                                                     source
  sign_flip   It uploads -4 times what it should.                                       (1)
  label_flip  It trains on wrong labels: of its K classes, class k is called K - 1 - k.  (2)
  noise       It uploads Gaussian noise, each tensor about 10 times as long as it should.

An attacker uploads the same kind of message as an honest client, and is sampled in the same way. It
keeps the state of honest training, except with `label_flip`: its state then follows from the wrong
labels, as with poisoned data, and its head learns them too.

Only the seed and a client's identity determine whether it attacks. Each client can compute this for
itself, and it is the same in all rounds. The identities times the golden ratio are spread evenly
over a circle: among hundreds of successive identities the share attacks, up to two.

(1) Li et al., "RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed Learning from
Heterogeneous Datasets" (AAAI 2019).
(2) Fang et al., "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning" (USENIX
Security 2020).
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tf_pflego.aggregation import wrapping
from tf_pflego.aggregation.declared import Choice, Number
from tf_pflego.aggregation.wrapping import Wrapper
from tf_pflego.core import nests, seeds
from tf_pflego.core.algorithm import Algorithm, Client
from tf_pflego.system import values

ATTACKS = SIGN_FLIP, LABEL_FLIP, NOISE = "sign_flip", "label_flip", "noise"
_ATTACKERS = Number("attackers", 0.2, {"at_least": 0, "at_most": 1})
CHOICE = Choice(
    "attack",
    "what a share of the clients does: upload the opposite (sign_flip:0.2), learn wrong labels "
    "(label_flip:0.2) or upload large noise (noise:0.2); or none",
    dict.fromkeys(ATTACKS, _ATTACKERS),
)
_FLIPPED_BY, _NOISE_BY = -4.0, 10.0
_CIRCLE, _STEP = 2**32, 2654435769  # The step is the circle over the golden ratio.


def with_attackers(
    algorithm: Algorithm, attack: str, attackers: float, *, seed: int = 0
) -> Algorithm:
    """Returns an algorithm with a share of the clients as attackers.

    Args:
      algorithm: A method that adds up uploads and needs no single upload at the server.
      attack: sign_flip (uploads -4 times the right upload), label_flip (trains on wrong labels) or
        noise (uploads noise, ten times as long as the right upload).
      attackers: The share of the clients that attack, in [0, 1]. `attackers_of` returns them.
      seed: The seed that they follow from.

    Raises:
      TypeError: `algorithm` is no `Algorithm`.
      ValueError: There is no such attack, a number is out of its range, labels are to be flipped
        of a method that does not predict classes, or the method's server must see the uploads of
        single clients.

    Example, explained in docs/aggregation.md#attacks-and-robust-sums:
      >>> harmed = pfl.with_attackers(algorithm, "sign_flip", attackers=0.2)
      >>> pfl.with_robust_aggregation(harmed, "median")
      Algorithm(pflego, 1 exchange per round, serves personalized)
    """
    values.instance("algorithm", algorithm, Algorithm, "Make one with `build_algorithm`.")
    values.one_of("attack", attack, ATTACKS)
    attacks = _membership(attackers, seed)
    if attack == LABEL_FLIP and not algorithm.model.task.has_classes:
        raise ValueError(
            "`attack` must be sign_flip or noise without classes; got label_flip. Correct `attack`."
        )

    def on_wrong_labels(client, round_):
        is_attacker = attacks(tf.cast(client.seed[1], tf.int64))
        return client._replace(labels=tf.where(is_attacker, _flipped(client), client.labels))

    def spoilt(result, earlier, message, state, client, round_):
        upload = result.summed, result.averaged
        if attack == SIGN_FLIP:
            harmful = nests.scale(_FLIPPED_BY, upload)
        else:
            random = wrapping.split_seed(wrapping.seed_of(client.seed, "attack"), upload)
            harmful = tf.nest.map_structure(_noise_like, upload, random)
        is_attacker = attacks(tf.cast(client.seed[1], tf.int64))
        summed, averaged = tf.nest.map_structure(
            lambda bad, good: tf.where(is_attacker, bad, good), harmful, upload
        )
        return result._replace(summed=summed, averaged=averaged), state

    if attack == LABEL_FLIP:
        return wrapping.wrapped(algorithm, Wrapper(prepare=on_wrong_labels))
    return wrapping.wrapped(algorithm, Wrapper(at_client=spoilt))


DECLARED = CHOICE.declared(
    1,
    lambda algorithm, kind, run, attackers: with_attackers(
        algorithm, kind, attackers, seed=run.seed
    ),
)


def attackers_of(identities: np.ndarray, attackers: float, seed: int = 0) -> np.ndarray:
    """Returns [I] bool, whether a client attacks, from the `identities` [I] (see `attacked`)."""
    return _membership(attackers, seed)(np.asarray(identities, np.int64))


def _membership(share, seed):
    """Returns the function from identities, int64 in NumPy or TensorFlow, to attackers."""
    limit = round(_ATTACKERS.checked("attackers", share) * _CIRCLE)
    first = int(seeds.generator(values.seed(seed), "attackers").integers(_CIRCLE))
    return lambda identities: (identities * _STEP + first) % _CIRCLE < limit


def _flipped(client: Client) -> tf.Tensor:
    """Returns the labels of a client, with the order of its classes turned round."""
    classes = tf.where(client.classes >= 0)
    every = tf.range(tf.size(client.classes))
    others = tf.tensor_scatter_nd_update(every, classes, tf.cast(classes[::-1, 0], every.dtype))
    flipped = tf.gather(others, tf.maximum(client.labels, 0))
    return tf.where(client.labels < 0, -1, flipped)  # Positions without a label have the number -1.


def _noise_like(leaf, seed):
    deviation = _NOISE_BY * tf.sqrt(tf.reduce_mean(leaf**2))
    return deviation * tf.random.stateless_normal(leaf.shape, seed)
