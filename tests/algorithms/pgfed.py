"""PGFed: each client learns how much the other clients' risks count in its own objective.

Luo, Mendieta, Chen and Wu, "PGFed: Personalize Each Client's Global Objective for Federated
Learning", Algorithm 1. Client i minimises f_i(theta_i) + mu sum_j a_ij f_j(theta_i), where it knows
only the first-order expansion of f_j at theta_j.

A round:
  1. The server sends theta, g- = (mu / M) sum_j grad_j and the scalars g1_j of the last round's
     participants j to all, and to client i alone g~ = mu sum_j a_ij grad_j and its a_i.
  2. Client i starts from theta. For each batch, theta_i moves along grad f_i + g~ (SGD with
     momentum), and a_ij <- max(0, a_ij - eta2 (g1_j + <g-, theta_i>)) with theta_i as it was.
  3. It uploads theta_i, weighted by N_i, grad_i = grad f_i(theta_i) over all its examples, a_i, and
     g1_i = mu (f_i(theta_i) - <grad_i, theta_i>).
  4. The server takes the N_i-weighted mean, and keeps a_i, grad_i and g1_i.

The server keeps theta, A and the last round's grad_j; client i keeps theta_i, which serves it.
"""

from typing import NamedTuple

import tensorflow as tf

from tf_pflego.algorithms.averaging import mean, weighted
from tf_pflego.core import nests, optimizers
from tf_pflego.core.algorithm import Algorithm, ClientResult, Exchange, Served, Weights
from tf_pflego.core.local_training import gradient, over_batches, value_and_gradient


class ServerState(NamedTuple):
    """What the server keeps."""

    weights: Weights  # theta
    risk_weights: tf.Tensor  # [I, I], A
    last_ids: tf.Tensor  # [c] int64, the last round's participants
    gradients: Weights  # each leaf [c, ...], their grad_j
    offsets: tf.Tensor  # [I], their g1_j; 0 for the others


class ClientState(NamedTuple):
    """What client i keeps."""

    weights: Weights  # theta_i


def build_pgfed(model, rate=0.1, a_rate=0.05, mu=0.3, momentum=0.9, epochs=2, batch_size=2):
    """Returns PGFed for `model`."""
    model = model.with_shared_classifier()
    optimizer = optimizers.sgd(rate, momentum)

    def init_server(federation):
        weights, count = model.initial_weights(), federation.num_clients
        nobody = tf.nest.map_structure(lambda w: tf.zeros([0, *w.shape]), weights)
        risk_weights = tf.fill([count, count], 1 / federation.mean_clients_per_round)
        return ServerState(
            weights, risk_weights, tf.zeros([0], tf.int64), nobody, tf.zeros([count])
        )

    def broadcast(server, round_):
        count = tf.cast(tf.size(server.last_ids), tf.float32)
        mean_gradient = tf.nest.map_structure(
            lambda g: mu * tf.math.divide_no_nan(tf.reduce_sum(g, axis=0), count), server.gradients
        )
        present = tf.scatter_nd(
            server.last_ids[:, None], tf.ones([tf.size(server.last_ids)]), server.offsets.shape
        )
        return server.weights, mean_gradient, server.offsets, present

    def client_messages(server, ids, round_):
        rows = tf.gather(server.risk_weights, ids)
        of_last = tf.gather(rows, server.last_ids, axis=1)
        return nests.scale(mu, nests.weighted_sums(of_last, server.gradients)), rows

    def client_update(message, state, client, round_):
        start, mean_gradient, offsets, present = message
        risk_gradient, a = client.message

        def step(carry, batch):
            theta, optimizer_state, a = carry
            slope = offsets + nests.inner_product(mean_gradient, theta)
            own = gradient(lambda w: model.loss(w, batch), theta)
            theta, optimizer_state = optimizer.apply(
                nests.add(own, risk_gradient), optimizer_state, theta
            )
            return theta, optimizer_state, tf.nn.relu(a - a_rate * present * slope)

        carry = (start, optimizer.init(start), a)
        theta, _, a = over_batches(step, carry, client, epochs, batch_size)
        risk, g = value_and_gradient(lambda w: model.loss(w, client), theta)
        offset = mu * (risk - nests.inner_product(g, theta))
        return ClientResult(
            theta, ClientState(theta), summed=weighted(theta, client), individual=(g, a, offset)
        )

    def server_update(server, uploads, round_):
        ids = uploads.client_ids
        gradients, rows, offsets = uploads.individual
        return ServerState(
            mean(uploads.summed),
            tf.tensor_scatter_nd_update(server.risk_weights, ids[:, None], rows),
            ids,
            gradients,
            tf.scatter_nd(ids[:, None], offsets, server.offsets.shape),
        )

    return Algorithm(
        name="pgfed",
        model=model,
        init_server=init_server,
        init_client=lambda server, seed, num_classes: ClientState(server.weights),
        exchanges=(Exchange(broadcast, client_update, server_update, client_messages),),
        served={"personalized": Served(lambda server, client: client.weights, model.predict)},
    )
