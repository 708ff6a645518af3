"""An algorithm that is good for nothing but asks for all that the contract offers.

Two exchanges a round with cohorts of their own, a message to each client alone, uploads that the server keeps apart by
client, a personal full model and momentum at the client, and mini-batches drawn from the client's seed.
"""

from typing import NamedTuple

import tensorflow as tf

from tf_pflego.core.algorithm import Algorithm, ClientResult, Exchange, Weights
from tf_pflego.core.local_training import gradient

NUM_CLIENTS = 3
BATCH = 2
RATE = 0.05


class ServerState(NamedTuple):
    weights: Weights
    direction: Weights  # the mean gradient that the first cohort gives
    affinity: tf.Tensor  # [I], one number kept for each client


class ClientState(NamedTuple):
    weights: Weights  # a personal full model
    momentum: Weights
    visits: tf.Tensor  # [] int32


def build_everything(model):
    zeros = tf.nest.map_structure(tf.zeros_like, model.initial_weights())

    def init_client(seed, num_classes):
        del num_classes
        noise = tf.nest.map_structure(lambda w: tf.random.stateless_normal(w.shape, seed, 0.0, 0.1), model.initial_weights())
        return ClientState(noise, zeros, tf.constant(0))

    def gradient_at(weights, client):
        return gradient(lambda weights: model.loss(weights, client), weights)

    def give_gradient(weights, client_message, state, client, round_):
        weighted = tf.nest.map_structure(lambda g: client.client_weight * g, gradient_at(weights, client))
        return ClientResult(state._replace(visits=state.visits + round_.number), weighted, (), weights)

    def take_direction(server, total, kept, client_ids, round_):
        return server._replace(direction=total)

    def train(message, affinity, state, client, round_):
        weights, direction = message
        rows = tf.random.stateless_uniform([BATCH], client.seed, maxval=client.num_examples, dtype=tf.int32)
        batch = client._replace(
            examples=tf.gather(client.examples, rows),
            labels=tf.gather(client.labels, rows),
            example_weights=tf.fill([BATCH], 1 / BATCH),
        )
        own_gradient = gradient_at(state.weights, batch)
        momentum = tf.nest.map_structure(lambda m, g, d: 0.9 * m + g + d, state.momentum, own_gradient, direction)
        own = tf.nest.map_structure(lambda w, m, s: w - RATE * m + 0.01 * affinity * s, state.weights, momentum, weights)
        upload = (tf.reduce_sum(own.head), tf.reduce_sum(own.theta[0], axis=0))
        return ClientResult(ClientState(own, momentum, state.visits + 1), client.client_weight, upload, own)

    def mix(server, weight, kept, client_ids, round_):
        sums, columns = kept
        affinity = tf.tensor_scatter_nd_update(server.affinity, client_ids[:, None], sums)
        shift = weight * tf.reduce_mean(columns)
        weights = tf.nest.map_structure(lambda w, d: w - RATE * d + 1e-3 * shift, server.weights, server.direction)
        return ServerState(weights, server.direction, affinity)

    return Algorithm(
        name="everything",
        model=model,
        init_server=lambda: ServerState(model.initial_weights(), zeros, tf.zeros([NUM_CLIENTS])),
        init_client=init_client,
        exchanges=(
            Exchange(lambda server, round_: server.weights, give_gradient, take_direction, cohort="gradients"),
            Exchange(
                lambda server, round_: (server.weights, server.direction),
                train,
                mix,
                client_message=lambda server, client_id: server.affinity[client_id],
            ),
        ),
        personalize=lambda server, client: client.weights,
        shared=frozenset(),
    )
