"""An algorithm without a purpose that uses everything that the contract offers.

It has two exchanges per round, each with its own cohort; a message to each client alone, made for
all participants at once and with the round's seed; uploads that the server keeps for each client
until the next round; an I x I matrix; a client state that starts from the server's state and has a
leaf that no client reads; mini-batches; and two models that are served, one of which is fine-tuned
first.
"""

from typing import NamedTuple

import tensorflow as tf

from tf_pflego.core import nests, optimizers
from tf_pflego.core.algorithm import Algorithm, ClientResult, Exchange, Served, Weights
from tf_pflego.core.last_cohort import LastCohort
from tf_pflego.core.local_training import gradient, minimize, take
from tf_pflego.core.shuffles import shuffled

BATCH = 2
RATE = 0.05


class ServerState(NamedTuple):
    weights: Weights
    direction: Weights  # the gradient that the first cohort gives
    affinity: tf.Tensor  # [I, I]
    last: LastCohort  # what the last round's participants uploaded


class ClientState(NamedTuple):
    weights: Weights  # a personal full model
    uploaded: Weights  # written and never read by the client
    visits: tf.Tensor  # [] int32
    classes: tf.Tensor  # [K] int32, kept as it is


def build_everything(model):
    model = model.with_shared_classifier()
    optimizer = optimizers.sgd(RATE, momentum=0.9)

    def init_server(federation):
        weights = model.initial_weights()
        affinity = tf.ones([federation.num_clients] * 2) / federation.max_clients_per_round
        return ServerState(weights, nests.zeros_like(weights), affinity, LastCohort.nobody(weights))

    def init_client(server, seed, classes):
        def start(w):
            return w + tf.random.stateless_normal(w.shape, seed, 0.0, 0.1)

        weights = tf.nest.map_structure(start, server.weights)
        return ClientState(weights, nests.zeros_like(weights), tf.constant(0), classes)

    def give_gradient(weights, state, client, round_):
        g = gradient(lambda w: model.loss(w, client), weights)
        state = state._replace(visits=state.visits + round_.number)
        return ClientResult(weights, state, summed=nests.scale(client.client_weight, g))

    def take_direction(server, uploads, round_):
        return server._replace(direction=uploads.summed)

    def mixtures(server, ids, round_):
        """A mixture of the last participants' uploads for each participant, and some noise."""
        weights = server.last.columns(tf.gather(server.affinity, ids))
        noise = tf.random.stateless_uniform([tf.shape(ids)[0]], round_.seed)
        return nests.weighted_sums(weights, server.last.kept), noise

    def train(message, state, client, round_):
        weights, direction = message
        mixture, noise = client.message
        start = nests.add(
            nests.mix(0.5, state.weights, weights), nests.scale(0.01 * noise, mixture)
        )

        def loss(w, batch):
            return model.loss(w, batch) + 0.1 * nests.inner_product(w, direction)

        own = minimize(loss, start, client, optimizer, epochs=2, batch_size=BATCH)
        upload = nests.subtract(own, weights)
        state = ClientState(own, upload, state.visits + 1, state.classes)
        return ClientResult(own, state, summed=client.client_weight, individual=upload)

    def mix(server, uploads, round_):
        moved = tf.nest.map_structure(
            lambda w, u: w + tf.reduce_sum(u, axis=0) / tf.cast(round_.num_clients, tf.float32),
            server.weights,
            uploads.individual,
        )
        ids = uploads.client_ids
        rows = tf.gather(server.affinity, ids) * (1 - 0.1 * uploads.summed)
        affinity = tf.tensor_scatter_nd_update(server.affinity, ids[:, None], rows)
        return ServerState(moved, server.direction, affinity, LastCohort(ids, uploads.individual))

    def fine_tune(weights, client):
        half = take(client, shuffled(client.num_examples, client.seed)[: client.num_examples // 2])
        return minimize(model.loss, weights, half, optimizer, epochs=2)

    return Algorithm(
        name="everything",
        model=model,
        init_server=init_server,
        init_client=init_client,
        exchanges=(
            Exchange(
                lambda server, round_: server.weights,
                give_gradient,
                take_direction,
                cohort="gradients",
            ),
            Exchange(
                lambda server, round_: (server.weights, server.direction),
                train,
                mix,
                client_messages=mixtures,
            ),
        ),
        served={
            "personalized": Served(lambda server, client: client.weights, model.predict),
            "fine_tuned": Served(lambda server, client: server.weights, model.predict, fine_tune),
        },
    )
