"""PGFed: each client learns how much the other clients' risks count in its own objective.

Luo, Mendieta, Chen and Wu, "PGFed: Personalize Each Client's Global Objective for Federated
Learning", Algorithm 1. What is learnt: one network theta for all, a network theta_i per client, and
the matrix A, where client i minimises f_i(theta_i) + mu sum_j a_ij f_j(theta_i). The risk f_j is
known to first order at theta_j: f_j(theta_i) ~ f_j(theta_j) + <grad_j, theta_i - theta_j>.

A round:
  1. The server sends theta, g- = (mu / M) sum_j grad_j and the scalars g1_j of the M participants j
     of the last round to all, and to client i alone g~ = mu sum_j a_ij grad_j and a_i.
  2. Client i starts from theta. For each mini-batch, theta_i moves along grad f_i + g~ (SGD of rate
     eta1 with momentum), and a_ij <- max(0, a_ij - eta2 (g1_j + <g-, theta_i>)), with theta_i as it
     was.
  3. It uploads N_i-weighted theta_i, grad_i = grad f_i(theta_i) over all its examples, a_i, and
     g1_i = mu (f_i(theta_i) - <grad_i, theta_i>).
  4. The server takes the N_i-weighted mean, and keeps a_i, grad_i and g1_i.

In the first round there are no g- and g~, and it is FedAvg's. The server keeps theta, A and the
last round's grad_j and g1_j; client i keeps theta_i, which serves it. Before its first round theta
serves it.

  paper    here                         shape
  theta    ServerState.weights          body and classifier
  theta_i  ClientState.weights          the same
  A        ServerState.risk_weights     [I, I]; 1 / M at first
  g1_j     ServerState.offsets          [I]; 0 for those who were absent
  g~       risk_gradient                as theta
  g-       mean_gradient                as theta
  mu       risk_weight
  eta1     client_learning_rate
  eta2     risk_learning_rate

Differences from the paper: momentum starts anew in each round. `pgfedmo` and `pgfed_ce` are
variants.
"""

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from tf_pflego.algorithms.averaging import mean, weighted
from tf_pflego.core import nests, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult, Exchange, Served, Weights
from tf_pflego.core.local_training import MiniBatches, gradient, value_and_gradient
from tf_pflego.models.split import SplitModel


@dataclasses.dataclass(frozen=True)
class PGFedConfig(MiniBatches):
    """Hyper-parameters of PGFed."""

    risk_weight: float = settings.risk_weight()
    risk_learning_rate: float = settings.risk_learning_rate()


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
    risk_gradient: Any  # g~ as theta, where it is kept; else ()


def build_pgfed(model: SplitModel, config: PGFedConfig) -> Algorithm:
    """Returns PGFed for `model`."""
    return pgfed("pgfed", model, config)


def pgfed(
    name: str,
    model: SplitModel,
    config: PGFedConfig,
    kept_share: float | None = None,
    slope_at_server: bool = False,
) -> Algorithm:
    """Returns PGFed or a variant of it.

    Args:
      name: The algorithm's name.
      model: The model.
      config: The hyper-parameters.
      kept_share: If given, a client keeps its g~ and mixes the old one into the new by this share.
      slope_at_server: Whether the server computes <grad_j, theta> in the place of <g-, theta_i>.
    """
    model = model.with_shared_classifier()
    mu, optimizer = config.risk_weight, config.optimizer()

    def init_server(federation):
        weights, count = model.initial_weights(), federation.num_clients
        nobody = tf.nest.map_structure(lambda w: tf.zeros([0, *w.shape]), weights)
        risk_weights = tf.fill([count, count], 1 / federation.mean_clients_per_round)
        return ServerState(
            weights, risk_weights, tf.zeros([0], tf.int64), nobody, tf.zeros([count])
        )

    def init_client(server, seed, num_classes):
        kept = () if kept_share is None else nests.zeros_like(server.weights)
        return ClientState(server.weights, kept)

    def of_last(server, values):
        """Returns [I], the values [c] of the last round's participants, 0 for the others."""
        return tf.scatter_nd(server.last_ids[:, None], values, server.offsets.shape)

    def broadcast(server, round_):
        count = tf.cast(tf.size(server.last_ids), tf.float32)
        present = of_last(server, tf.ones_like(server.last_ids, tf.float32))
        if slope_at_server:
            slopes = nests.inner_products(server.gradients, server.weights)
            return server.weights, (), server.offsets + mu * of_last(server, slopes), present
        mean_gradient = tf.nest.map_structure(
            lambda g: mu * tf.math.divide_no_nan(tf.reduce_sum(g, axis=0), count), server.gradients
        )
        return server.weights, mean_gradient, server.offsets, present

    def client_messages(server, ids, round_):
        rows = tf.gather(server.risk_weights, ids)
        weights = tf.gather(rows, server.last_ids, axis=1)
        return nests.scale(mu, nests.weighted_sums(weights, server.gradients)), rows

    def client_update(message, state, client, round_):
        start, mean_gradient, offsets, present = message
        risk_gradient, a = client.message
        if kept_share is not None:
            risk_gradient = nests.mix(kept_share, state.risk_gradient, risk_gradient)

        def step(carry, batch):
            theta, of_theta, a = carry
            slope = 0.0 if slope_at_server else nests.inner_product(mean_gradient, theta)
            a = tf.nn.relu(a - config.risk_learning_rate * present * (offsets + slope))
            own = gradient(lambda w: model.loss(w, batch), theta)
            theta, of_theta = optimizer.apply(nests.add(own, risk_gradient), of_theta, theta)
            return theta, of_theta, a

        carry = start, optimizer.init(start), a
        theta, _, a = config.over_batches(step, carry, client)
        risk, g = value_and_gradient(lambda w: model.loss(w, client), theta)
        offset = mu * (risk - nests.inner_product(g, theta))
        kept = () if kept_share is None else risk_gradient
        return ClientResult(
            theta,
            ClientState(theta, kept),
            summed=weighted(theta, client),
            individual=(g, a, offset),
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
        name=name,
        model=model,
        init_server=init_server,
        init_client=init_client,
        exchanges=(Exchange(broadcast, client_update, server_update, client_messages),),
        served={"personalized": Served(lambda server, client: client.weights, model.predict)},
    )
