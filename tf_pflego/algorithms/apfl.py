"""APFL: each client mixes its own model with the shared model.

Deng, Kamani and Mahdavi, "Adaptive Personalized Federated Learning", Algorithm 1. Learnt: one
network w for all, a network v_i and a share a_i per client.

A round:
  1. The server sends w to the participants. Client i sets w_i = w.
  2. For each mini-batch it takes a step on w_i along grad f_i(w_i), and one on v_i along
     a_i grad f_i(v~), where v~ = a_i v_i + (1 - a_i) w_i. If the share is learnt,
     a_i <- a_i - beta <grad f_i(v~), v_i - w_i> first, kept in [0, 1].
  3. It uploads w_i - w, and keeps v_i and a_i.
  4. The server moves w by the N_i-weighted mean over the participants, as in FedAvg.

Served: v~ of the newest w and the client's last v_i and a_i, the mixture of Algorithm 1. The server
keeps w, and client i keeps v_i and a_i.

  paper    here                    shape
  w        SharedState.weights     body and classifier
  v_i      ClientState.weights     the same
  a_i      ClientState.share       []
  beta     client_learning_rate

Differences from the paper: the mean is weighted by N_i, as in all methods here. v_i starts as the w
of the client's first round, where the authors' program has the initial w for all. The share is
fixed by default, as in the comparison by PGFed's authors. A learnt share moves with each
mini-batch, before the steps on w_i and v_i. Both are our choice.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from tf_pflego.algorithms.fedavg import average
from tf_pflego.core import nests, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult, Weights
from tf_pflego.core.local_training import MiniBatchSgd, gradient
from tf_pflego.core.optimizers import AveragingServer
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class ApflConfig(AveragingServer, MiniBatchSgd):
    """Hyper-parameters of APFL."""

    mixing: float = settings.setting(
        0.5,
        "a, share of its own model in the mixture that a client of APFL uses; in [0, 1]",
        at_least=0,
        at_most=1,
    )
    learn_mixing: bool = settings.setting(False, "whether each client of APFL learns its share a_i")


class ClientState(NamedTuple):
    """The state that client i keeps."""

    weights: Weights  # v_i
    share: tf.Tensor  # [] a_i


def build_apfl(model: SplitModel, config: ApflConfig) -> Algorithm:
    """Returns APFL for `model`."""
    model = model.with_shared_classifier()

    def client_update(sent, state, client, round_):
        optimizer = config.optimizer(client)

        def step(carry, batch):
            (w, v), share, memory = carry
            g = gradient(model.loss, nests.mix(share, v, w), batch)
            if config.learn_mixing:
                slope = nests.inner_product(g, nests.subtract(v, w))
                share = tf.clip_by_value(share - config.rate(client) * slope, 0.0, 1.0)
            slopes = gradient(model.loss, w, batch), nests.scale(share, g)
            pair, memory = optimizer.apply(slopes, memory, (w, v))
            return pair, share, memory

        pair = sent, state.weights
        carry = pair, state.share, optimizer.init(pair)
        (w, v), share, _ = config.over_batches(step, carry, client)
        mixed, moved = nests.mix(share, v, w), nests.subtract(w, sent)
        return ClientResult(mixed, ClientState(v, share), averaged=moved)

    def init_client(server, seed, classes):
        return ClientState(server.weights, tf.constant(float(config.mixing)))

    def mixture(server, client):
        return nests.mix(client.share, client.weights, server.weights)

    served = {"personalized": mixture}
    return average("apfl", model, config, client_update, init_client=init_client, served=served)
