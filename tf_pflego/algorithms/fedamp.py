"""FedAMP: each client is kept near a mixture of the networks that are like its own.

Huang et al., "Personalized Cross-Silo Federated Learning on Non-IID Data", Algorithm 1: federated
attentive message passing. Learnt: a network w_i per client, by min sum_i f_i(w_i) + lambda sum_(i <
j) A(||w_i - w_j||^2), where A(x) = 1 - exp(-x / sigma).

A round has two exchanges with the same c participants:
  1. Client i uploads its w_i.
  2. The server sends it the cloud model u_i = w_i + sum_j xi_ij (w_j - w_i), with the attention
     xi_ij = alpha_k A'(||w_i - w_j||^2) = (a / (c - 1)) exp(-||w_i - w_j||^2 / sigma) to each other
     participant j. The rest of 1 is the attention to itself.
  3. The client takes steps from w_i on f_i(w) + (mu / 2) ||w - u_i||^2, with momentum m, and keeps
     the result as its new w_i.

Served: the client's last w_i. The w_i are the output of Algorithm 1. The server keeps nothing after
a round, and client i keeps w_i.

  paper      here                      shape
  w_i        PersonalState.weights     body and classifier
  u_i        client.message            the same
  alpha_k    a sigma / (c - 1)         a is `attention`: at most 1, so that u_i is a convex mixture
  sigma      attention_width
  lambda     mu alpha_k                mu is `proximal_weight`

Differences from the paper: steps on mini-batches instead of a minimum, and attention among the
participants of a round. The paper sets alpha_k and lambda, and here their results, a and mu, are
set.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tf_pflego.algorithms.local import PersonalState
from tf_pflego.core import nests, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult, Exchange, Served
from tf_pflego.core.last_cohort import LastCohort
from tf_pflego.core.local_training import MiniBatchSgd, near
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class FedAmpConfig(MiniBatchSgd):
    """Hyper-parameters of FedAMP."""

    proximal_weight: float = settings.proximal_weight()
    attention: float = settings.setting(
        0.5,
        "a, largest weight of all other clients in FedAMP's model for a client; in [0, 1]",
        at_least=0,
        at_most=1,
    )
    attention_width: float = settings.setting(
        25.0, "sigma, squared distance where FedAMP's attention is 1/e", above=0
    )


def build_fedamp(model: SplitModel, config: FedAmpConfig) -> Algorithm:
    """Returns FedAMP for `model`."""
    model = model.with_shared_classifier()

    def init_server(federation):
        return LastCohort.nobody(model.initial_weights())

    def send_nothing(server, round_):
        return ()

    # The first exchange: the networks of the participants.

    def upload(message, state, client, round_):
        return ClientResult(state.weights, state, individual=state.weights)

    def collect(server, uploads, round_):
        return LastCohort(uploads.client_ids, uploads.individual)

    # The second exchange: local training near the cloud models.

    def cloud_models(server, ids, round_):
        others = tf.cast(tf.size(server.ids) - 1, tf.float32)
        most = tf.math.divide_no_nan(config.attention, others)

        def cloud_model(one):
            moves = nests.subtract(server.kept, one)  # 0 to itself, so that its weight is any.
            distances = nests.inner_products(moves, moves)
            weights = most * tf.exp(-distances / config.attention_width)
            return nests.add(one, nests.weighted_sums(weights, moves))

        places = tf.searchsorted(server.ids, ids)
        return tf.map_fn(
            cloud_model, tf.nest.map_structure(lambda leaf: tf.gather(leaf, places), server.kept)
        )

    def train(message, state, client, round_):
        loss = near(model.loss, client.message, config.proximal_weight)
        weights = config.minimize(loss, state.weights, client)
        return ClientResult(weights, PersonalState(weights))

    def forget(server, uploads, round_):
        return tf.nest.map_structure(lambda leaf: leaf[:0], server)

    return Algorithm(
        name="fedamp",
        model=model,
        init_server=init_server,
        init_client=lambda server, seed, classes: PersonalState(model.initial_weights()),
        exchanges=(
            Exchange(send_nothing, upload, collect),
            Exchange(send_nothing, train, forget, cloud_models),
        ),
        served={"personalized": Served(lambda server, client: client.weights, model.predict)},
    )
