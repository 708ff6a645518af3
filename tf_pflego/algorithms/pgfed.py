"""PGFed: each client learns how much the other clients' risks count in its own objective.

Luo, Mendieta, Chen and Wu, "PGFed: Personalize Each Client's Global Objective for Federated
Learning", Algorithm 1. What is learnt: one network theta for all, a network theta_i per client, and
the matrix A, where client i minimises f_i(theta_i) + mu sum_j a_ij f_j(theta_i). The risk f_j is
known to first order at theta_j: f_j(theta_i) ~ f_j(theta_j) + <grad_j, theta_i - theta_j>.

A round, in which j stands for the participants of the last round:
  1. The server sends theta, g- = mu mean_j grad_j and the scalars g1_j to all participants, and to
     client i alone g~ = mu sum_j a_ij grad_j and a_i.
  2. Client i sets theta_i = theta. For each mini-batch, theta_i moves along grad f_i + g~ (SGD of
     rate eta1 with momentum), and a_ij <- max(0, a_ij - eta2 (g1_j + <g-, theta_i>)) with theta_i
     as it was before the batch.
  3. It uploads N_i-weighted theta_i, mu grad_i = mu grad f_i(theta_i) over all its examples, a_i,
     and g1_i = mu (f_i(theta_i) - <grad_i, theta_i>).
  4. The server takes the N_i-weighted mean, and keeps a_i, mu grad_i and g1_i.

In the first round there is no j, and it is FedAvg's.

The server keeps theta, A and the last round's mu grad_j and g1_j; client i keeps theta_i, which
serves it. Before its first round theta does.

  paper           here                        shape
  theta           ServerState.weights         body and classifier
  theta_i         ClientState.weights         the same
  A               ServerState.risk_weights    [I, I]; 1 / M at first, for M participants on average
  mu grad_j, g1_j FirstOrder of mu f_j        as theta, []
  g~, g-          others, mean_gradient       as theta
  mu, eta1, eta2  risk_weight, client_learning_rate, risk_learning_rate

Differences from the paper: the paper moves theta_i before A, its authors' program as here. Momentum
starts anew in each round. `pgfedmo` and `pgfed_ce` are variants.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from tf_pflego.algorithms.averaging import MeanAtServer, averaging, mean, weighted
from tf_pflego.core import nests, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult, Exchange, Served, Weights
from tf_pflego.core.last_cohort import LastCohort, by_client, columns, nobody
from tf_pflego.core.local_training import FirstOrder, MiniBatches, first_order, gradient
from tf_pflego.models.split import SplitModel


@dataclasses.dataclass(frozen=True)
class PGFedConfig(MeanAtServer, MiniBatches):
    """Hyper-parameters of PGFed."""

    risk_weight: float = settings.risk_weight()
    risk_learning_rate: float = settings.risk_learning_rate()


class ServerState(NamedTuple):
    """What the server keeps."""

    weights: Weights  # theta
    risk_weights: tf.Tensor  # [I, I], A
    last: LastCohort  # mu f_j to first order, a `FirstOrder`, of the last round's participants
    optimizer: Any = ()  # the state of the server's optimiser, if there is one


class ClientState(NamedTuple):
    """What client i keeps."""

    weights: Weights  # theta_i


def offsets_of_all(server: ServerState, offsets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns [I] the last participants' offsets [c] by client, and [I] who these clients are."""
    num_clients = server.risk_weights.shape[0]
    return by_client(server.last, (offsets, tf.ones_like(offsets)), num_clients)


def build_pgfed(model: SplitModel, config: PGFedConfig) -> Algorithm:
    """Returns PGFed for `model`."""
    model, optimizer = model.with_shared_classifier(), config.optimizer()
    of_server = averaging(config)

    def init_server(federation):
        weights, count = model.initial_weights(), federation.num_clients
        risk_weights = tf.fill([count, count], 1 / federation.mean_clients_per_round)
        last = nobody(FirstOrder(weights, tf.zeros([])))
        return ServerState(weights, risk_weights, last, of_server.start(weights))

    def broadcast(server, round_):
        gradients, offsets = server.last.kept
        return server.weights, nests.mean(gradients), *offsets_of_all(server, offsets)

    def client_messages(server, ids, round_):
        rows = tf.gather(server.risk_weights, ids)
        return nests.weighted_sums(columns(server.last, rows), server.last.kept.gradient), rows

    def client_update(message, state, client, round_):
        start, mean_gradient, offsets, present = message
        others, a = client.message

        def step(carry, batch):
            theta, of_theta, a = carry
            # PGFed-CE sends no g-, since its offsets contain what takes its place.
            slope = nests.inner_product(mean_gradient, theta) if mean_gradient else 0.0
            a = tf.nn.relu(a - config.risk_learning_rate * present * (offsets + slope))
            own = gradient(lambda w: model.loss(w, batch), theta)
            theta, of_theta = optimizer.apply(nests.add(own, others), of_theta, theta)
            return theta, of_theta, a

        theta, _, a = config.over_batches(step, (start, optimizer.init(start), a), client)
        risk = first_order(lambda w: config.risk_weight * model.loss(w, client), theta)
        return ClientResult(theta, ClientState(theta), weighted(theta, client), (risk, a))

    def server_update(server, uploads, round_):
        ids, (risks, rows) = uploads.client_ids, uploads.individual
        a = tf.tensor_scatter_nd_update(server.risk_weights, ids[:, None], rows)
        found = mean(uploads.summed)
        weights, state = of_server.move(server.weights, server.optimizer, found, round_)
        return ServerState(weights, a, LastCohort(ids, risks), state)

    return Algorithm(
        name="pgfed",
        model=model,
        init_server=init_server,
        init_client=lambda server, seed, classes: ClientState(server.weights),
        exchanges=(Exchange(broadcast, client_update, server_update, client_messages),),
        served={"personalized": Served(lambda server, client: client.weights, model.predict)},
    )
