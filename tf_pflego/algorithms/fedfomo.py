"""FedFomo: each client mixes in the models of others that do better on its own data.

Zhang et al., "Personalized Federated Learning with First Order Model Optimization". Learnt: a
network w_i per client.

A round:
  1. The server sends client i the models w_n of at most M of the last round's participants, those
     with the largest affinities P_in. Its own is one of them if it was there.
  2. On its validation part the client computes for each of them
     max(0, (L_i(o_i) - L_i(w_n)) / ||w_n - o_i||), where o_i is its model before its last local
     training, normalised to weights of sum 1, and sets w_i <- w_i + sum_n weight_n (w_n - w_i).
     If no model helps it keeps its own.
  3. It keeps w_i as o_i, trains w_i on the rest of its training examples, keeps it too, and
     uploads it with the weights.
  4. The server adds the weights to its row of P.

Served: w_i of the client's last step 3. The paper could not be read. PGFed's program (b1d70f7)
serves the same. The server keeps P and the last round's models, and client i keeps w_i and o_i.

  paper    here                      shape
  w_i      ClientState.weights       body and classifier
  o_i      ClientState.start         the same
  P        ServerState.affinities    [I, I], 1 on the diagonal at first
  M        models_received
  L_i      the loss on the same fifth of the client's training examples in all rounds

Differences from the paper: the models with the largest affinities are sent, with no random ones
among them, as PGFed's authors do.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from tf_pflego.core import nests, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult, Weights
from tf_pflego.core.last_cohort import LastCohort, with_largest
from tf_pflego.core.local_training import MiniBatchSgd, hold_out
from tf_pflego.models.split_model import SplitModel

_VALIDATION_SHARE = 0.2


@dataclasses.dataclass(frozen=True)
class FedFomoConfig(MiniBatchSgd):
    """Hyper-parameters of FedFomo."""

    models_received: int = settings.setting(
        8, "M, the largest number of models that a client of FedFomo is sent", at_least=1
    )


class ServerState(NamedTuple):
    """The state that the server keeps."""

    affinities: tf.Tensor  # [I, I], P
    last: LastCohort  # the models of the last round's participants


class ClientState(NamedTuple):
    """The state that client i keeps."""

    weights: Weights  # w_i
    start: Weights  # o_i, w_i before its last local training
    seed: tf.Tensor  # [2] int32, of its validation part


def build_fedfomo(model: SplitModel, config: FedFomoConfig) -> Algorithm:
    """Returns FedFomo for `model`."""
    model = model.with_shared_classifier()

    def init_server(federation):
        return ServerState(
            tf.eye(federation.num_clients), LastCohort.nobody(model.initial_weights())
        )

    def client_messages(server, ids, round_):
        scores = server.last.columns(tf.gather(server.affinities, ids))
        most = min(config.models_received, server.affinities.shape[0])
        nobody = tf.fill(tf.shape(ids), tf.constant(-1, tf.int64))
        return with_largest(server.last, scores, nobody, most)

    def client_update(message, state, client, round_):
        received, current = client.message, state.weights
        training, validation = hold_out(client, _VALIDATION_SHARE, state.seed)
        start_loss = model.loss(state.start, validation)

        def gain(inputs):
            other, present = inputs
            distance = tf.sqrt(nests.squared_distance(other, state.start))
            better = start_loss - model.loss(other, validation)
            return present * tf.nn.relu(tf.math.divide_no_nan(better, distance))

        gains = tf.map_fn(gain, (received.kept, received.present), fn_output_signature=tf.float32)
        weights = tf.math.divide_no_nan(gains, tf.reduce_sum(gains))
        moves = nests.weighted_sums(weights, nests.subtract(received.kept, current))
        start = nests.add(current, moves)
        trained = config.minimize(model.loss, start, training)
        state = ClientState(trained, start, state.seed)
        return ClientResult(trained, state, individual=(trained, received.ids, weights))

    def server_update(server, uploads, round_):
        models, ids, weights = uploads.individual
        places = tf.stack([tf.broadcast_to(uploads.client_ids[:, None], tf.shape(ids)), ids], -1)
        affinities = tf.tensor_scatter_nd_add(server.affinities, places, weights)
        return ServerState(affinities, LastCohort(uploads.client_ids, models))

    def init_client(server, seed, classes):
        return ClientState(model.initial_weights(), model.initial_weights(), seed)

    return Algorithm.with_one_exchange(
        "fedfomo",
        model,
        init_server=init_server,
        init_client=init_client,
        broadcast=lambda server, round_: (),
        client_messages=client_messages,
        client_update=client_update,
        server_update=server_update,
        served={"personalized": lambda server, client: client.weights},
    )
