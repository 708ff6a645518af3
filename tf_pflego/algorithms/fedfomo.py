"""FedFomo: each client mixes into its model those of others that do better on its own data.

Zhang et al., "Personalized Federated Learning with First Order Model Optimization". What is learnt:
a network w_i per client.

A round:
  1. The server sends client i the models w_n of at most M of the last round's participants, those
     with the largest affinities P_in.
  2. On its validation part the client finds for each of them
     max(0, (L_i(w_i) - L_i(w_n)) / ||w_n - w_i||), normalised to weights of sum 1, and sets
     w_i <- w_i + sum_n weight_n (w_n - w_i). If no model helps it keeps its own.
  3. It trains w_i on the rest of its training examples, keeps it and uploads it with the weights.
  4. The server adds the weights to its row of P.

The server keeps P and the last round's models; client i keeps w_i, which serves it.

  paper    here                      shape
  w_i      ClientState.weights       body and classifier
  P        ServerState.affinities    [I, I], 1 on the diagonal at first
  M        models_received
  L_i      the loss on the validation part: `validation_share` of the client's training examples,
           the same in every round

Differences from the paper: the models with the largest affinities are sent, with no random ones
among them, as PGFed's authors do.
"""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from tf_pflego.core import nests, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult, Exchange, Served, Weights
from tf_pflego.core.local_training import MiniBatches, shuffled, take
from tf_pflego.models.split import SplitModel


@dataclasses.dataclass(frozen=True)
class FedFomoConfig(MiniBatches):
    """Hyper-parameters of FedFomo."""

    momentum: float = settings.momentum(0.0)
    models_received: int = settings.setting(
        8, "M, the largest number of others' models that a client of FedFomo is sent", at_least=1
    )
    validation_share: float = settings.setting(
        0.2, "share of a client's training examples that FedFomo weighs models on", above=0
    )

    def __post_init__(self):
        super().__post_init__()
        if self.validation_share >= 1:
            raise ValueError(
                f"`validation_share` must be below 1; got {self.validation_share}. "
                "Lower --validation_share."
            )


class ServerState(NamedTuple):
    """What the server keeps."""

    affinities: tf.Tensor  # [I, I], P
    last_ids: tf.Tensor  # [c] int64, the last round's participants
    models: Weights  # each leaf [c, ...], theirs


class ClientState(NamedTuple):
    """What client i keeps."""

    weights: Weights  # w_i
    seed: tf.Tensor  # [2] int32, of its validation part


class Received(NamedTuple):
    """What a client is sent."""

    ids: tf.Tensor  # [M] int64, whose models
    present: tf.Tensor  # [M], 1 for a model, 0 where there are fewer
    models: Weights  # each leaf [M, ...]


def build_fedfomo(model: SplitModel, config: FedFomoConfig) -> Algorithm:
    """Returns FedFomo for `model`."""
    model = model.with_shared_classifier()

    def init_server(federation):
        nobody = tf.nest.map_structure(lambda w: tf.zeros([0, *w.shape]), model.initial_weights())
        return ServerState(tf.eye(federation.num_clients), tf.zeros([0], tf.int64), nobody)

    def init_client(server, seed, num_classes):
        return ClientState(model.initial_weights(), seed)

    def client_messages(server, ids, round_):
        num_clients = server.affinities.shape[0]
        slots = tf.scatter_nd(
            server.last_ids[:, None], tf.range(1, tf.size(server.last_ids) + 1), [num_clients]
        )
        others = tf.cast(slots > 0, tf.float32) * (1 - tf.one_hot(ids, num_clients))
        # Affinities are not negative: absent clients, and the client itself, come last.
        ranked = tf.where(others > 0, tf.gather(server.affinities, ids) + 1, 0.0)
        _, chosen = tf.math.top_k(ranked, min(config.models_received, num_clients))
        present = tf.gather(others, chosen, batch_dims=1)
        own_slots = tf.maximum(tf.gather(slots, chosen) - 1, 0)
        models = tf.nest.map_structure(lambda leaf: _gather(leaf, own_slots), server.models)
        return Received(tf.cast(chosen, tf.int64), present, models)

    def client_update(message, state, client, round_):
        received, order = client.message, shuffled(client.num_examples, state.seed)
        share = tf.cast(client.num_examples, tf.float32) * config.validation_share
        held_out = tf.maximum(tf.cast(share, tf.int32), 1)
        validation = take(client, order[:held_out])
        own_loss = model.loss(state.weights, validation)

        def gain(inputs):
            other, present = inputs
            distance = tf.sqrt(nests.squared_distance(other, state.weights))
            better = own_loss - model.loss(other, validation)
            return present * tf.nn.relu(tf.math.divide_no_nan(better, distance))

        gains = tf.map_fn(gain, (received.models, received.present), fn_output_signature=tf.float32)
        weights = tf.math.divide_no_nan(gains, tf.reduce_sum(gains))
        mixed = tf.nest.map_structure(
            lambda own, others: own + tf.tensordot(weights, others - own, axes=1),
            state.weights,
            received.models,
        )
        training = tf.cond(held_out < client.num_examples, lambda: order[held_out:], lambda: order)
        rest = take(client, training)
        trained = config.minimize(model.loss, mixed, rest)
        return ClientResult(
            trained,
            ClientState(trained, state.seed),
            individual=(trained, received.ids, weights),
        )

    def server_update(server, uploads, round_):
        models, ids, weights = uploads.individual
        rows = tf.broadcast_to(uploads.client_ids[:, None], tf.shape(ids))
        affinities = tf.tensor_scatter_nd_add(
            server.affinities, tf.stack([rows, ids], axis=-1), weights
        )
        return ServerState(affinities, uploads.client_ids, models)

    return Algorithm(
        name="fedfomo",
        model=model,
        init_server=init_server,
        init_client=init_client,
        exchanges=(
            Exchange(lambda server, round_: (), client_update, server_update, client_messages),
        ),
        served={"personalized": Served(lambda server, client: client.weights, model.predict)},
    )


def _gather(leaf, slots):
    """Returns rows of a leaf [c, ...], and zeros where there is no row at all."""
    padded = tf.concat([leaf, tf.zeros([1, *leaf.shape[1:]])], axis=0)
    return tf.gather(padded, tf.minimum(slots, tf.shape(leaf)[0]))
