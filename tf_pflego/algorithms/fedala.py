"""FedALA: each client learns, number by number, how much of the shared network it takes in.

Zhang et al., "FedALA: Adaptive Local Aggregation for Personalized Federated Learning", Algorithm 1.
Learnt: one network Theta for all, and per client a network Theta_i and the mixing weights W_i in
[0, 1] of its last p weight tensors.

A round:
  1. The server sends Theta to the participants.
  2. Client i takes steps of rate eta on W_i, kept in [0, 1], to lower its loss at the start of step
     3, on mini-batches of a random share s of its examples. This is one pass. In the first round
     with Theta different from Theta_i it continues until no number of W_i moves by 0.01 in a pass.
  3. It starts from Theta_i + (Theta - Theta_i) o W_i in the last p tensors, and from Theta in the
     others, trains on all its examples, and keeps the result as Theta_i.
  4. It uploads Theta_i - Theta. The server moves Theta by the N_i-weighted mean, as in FedAvg.

Served: the output of Algorithm 1, the start of step 3 with the newest Theta and the client's last
W_i and Theta_i, which is Theta at first. The server keeps Theta, and client i keeps W_i and
Theta_i.

  paper      here                      shape
  Theta      SharedState.weights       body and classifier
  Theta_i    ClientState.weights       the same; Theta_0 at first
  W_i        ClientState.mixing        the last p leaves of the same; 1 at first
  p          mixed_tensors             1 is the classifier alone
  s, eta     mixing_share, mixing_learning_rate

Differences from the paper: p counts tensors, not layers. The paper does not define the convergence
of W_i. The authors' program waits for ten similar losses; here `mixing_passes` ends it too.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from tf_pflego.algorithms.fedavg import average
from tf_pflego.core import nests, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult, Weights
from tf_pflego.core.local_training import MiniBatchSgd, gradient, hold_out, over_batches
from tf_pflego.core.optimizers import AveragingServer
from tf_pflego.core.shuffles import fold_in
from tf_pflego.models.split_model import SplitModel

_CONVERGED = 0.01  # By how much a mixing weight may still move in a pass.
# After a round in which a client was alone, Theta is Theta_i but for the rounding of a difference.
_ROUNDING = 1e-6  # of the norm of Theta


@dataclasses.dataclass(frozen=True)
class FedAlaConfig(AveragingServer, MiniBatchSgd):
    """Hyper-parameters of FedALA."""

    mixed_tensors: int = settings.setting(
        1,
        "p, number of the last weight tensors that a client of FedALA mixes, at most all",
        at_least=1,
    )
    mixing_share: float = settings.setting(
        0.8,
        "s, share of its examples on which a client of FedALA learns to mix",
        above=0,
        at_most=1,
    )
    mixing_learning_rate: float = settings.setting(
        1.0, "eta, learning rate of FedALA's mixing weights", at_least=0
    )
    mixing_passes: int = settings.setting(
        20, "largest number of passes on FedALA's mixing weights when they are new", at_least=1
    )


class ClientState(NamedTuple):
    """The state that client i keeps."""

    weights: Weights  # Theta_i
    mixing: list  # W_i
    is_new: tf.Tensor  # [] bool, whether Theta has not differed from Theta_i yet


def build_fedala(model: SplitModel, config: FedAlaConfig) -> Algorithm:
    """Returns FedALA for `model`."""
    model = model.with_shared_classifier()
    p, rate = config.mixed_tensors, config.mixing_learning_rate

    def mixed(sent, personal, mixing):  # step 3's start
        shared = tf.nest.flatten(sent)
        trios = zip(tf.nest.flatten(personal)[-p:], shared[-p:], mixing, strict=True)
        return tf.nest.pack_sequence_as(sent, shared[:-p] + [a + (b - a) * w for a, b, w in trios])

    def client_update(sent, state, client, round_):
        _, part = hold_out(client, config.mixing_share, client.seed)

        def start(mixing):
            return mixed(sent, state.weights, mixing)

        def step(mixing, batch):
            slopes = gradient(lambda mixing: model.loss(start(mixing), batch), mixing)
            pairs = zip(mixing, slopes, strict=True)
            return [tf.clip_by_value(w - rate * slope, 0.0, 1.0) for w, slope in pairs]

        def one_pass(k, mixing, _):
            drawn = part._replace(seed=fold_in(client.seed, k))
            learnt = over_batches(step, mixing, drawn, 1, *config.batches(1))
            moves = [tf.reduce_max(tf.abs(a - b)) for a, b in zip(learnt, mixing, strict=True)]
            return k + 1, learnt, tf.reduce_max(tf.stack(moves))

        least = _ROUNDING**2 * nests.inner_product(sent, sent)
        differs = nests.squared_distance(sent, state.weights) > least
        most = tf.where(differs, tf.where(state.is_new, config.mixing_passes, 1), 0)
        carry = tf.constant(0), state.mixing, tf.ones([])
        _, mixing, _ = tf.while_loop(
            lambda k, _, move: (k < most) & (move > _CONVERGED), one_pass, carry
        )
        weights = config.minimize(model.loss, start(mixing), client)
        state = ClientState(weights, mixing, state.is_new & ~differs)
        return ClientResult(weights, state, averaged=nests.subtract(weights, sent))

    def init_client(server, seed, classes):
        weights = model.initial_weights()
        mixing = [tf.ones_like(leaf) for leaf in tf.nest.flatten(weights)[-p:]]
        return ClientState(weights, mixing, tf.constant(True))

    def personal_model(server, client):
        return mixed(server.weights, client.weights, client.mixing)

    served = {"personalized": personal_model}
    return average("fedala", model, config, client_update, init_client=init_client, served=served)
