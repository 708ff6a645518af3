"""PGFed: each client learns how much the other clients' risks count in its own objective.

Luo, Mendieta, Chen and Wu, "PGFed: Personalize Each Client's Global Objective for Federated
Learning", Algorithm 1. Learnt: one network theta for all, a network theta_i per client, and the
matrix A, where client i minimises f_i(theta_i) + mu sum_j a_ij f_j(theta_i). The risk f_j is known
to first order at theta_j: f_j(theta_i) ~ f_j(theta_j) + <grad_j, theta_i - theta_j>.

A round, where j runs over the participants of the last round:
  1. The server sends theta, g- = mu mean_j grad_j and the scalars g1_j to all participants, and
     only to client i g~ = mu sum_j a_ij grad_j and a_i.
  2. Client i sets theta_i = theta. For each mini-batch, theta_i moves along grad f_i + g~ (SGD of
     rate eta1 with momentum), and a_ij <- max(0, a_ij - eta2 (g1_j + <g-, theta_i>)) with theta_i
     as it was before the batch.
  3. It uploads theta_i - theta, mu grad_i = mu grad f_i(theta_i) over all its examples, a_i,
     and g1_i = mu (f_i(theta_i) - <grad_i, theta_i>).
  4. The server moves theta by the N_i-weighted mean, and keeps a_i, mu grad_i and g1_i.

Served: theta_i of the client's last step 3 (Algorithm 1, lines 19 and 22), theta before its first.
The first round has no j, and is FedAvg's. The server keeps theta, A and the last mu grad_j, g1_j.

  paper           here                        shape
  theta           ServerState.weights         body and classifier
  theta_i         ClientState.weights         the same
  A               ServerState.risk_weights    [I, I]; 1 / M at first, for M participants on average
  mu grad_j, g1_j FirstOrder of mu f_j        as theta, []
  g~, g-          others, mean_gradient       as theta
  mu, eta1, eta2  risk_weight, client_learning_rate, risk_learning_rate

Differences from the paper: the paper moves theta_i before A, and its authors' program as here.
Momentum starts at 0 in each round. `pgfedmo` and `pgfed_ce` are variants.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import tensorflow as tf

from tf_pflego.core import nests, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult, Weights
from tf_pflego.core.last_cohort import LastCohort
from tf_pflego.core.local_training import FirstOrder, MiniBatches, gradient
from tf_pflego.core.optimizers import AveragingServer
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class PGFedConfig(AveragingServer, MiniBatches):
    """Hyper-parameters of PGFed."""

    tables: ClassVar = {"risk_weights": ("client", "other", "weight")}
    risk_weight: float = settings.setting(0.1, "mu, weight of other clients' risks", at_least=0)
    risk_learning_rate: float = settings.setting(
        0.01, "eta2, learning rate of the weights of other clients' risks", at_least=0
    )


class ServerState(NamedTuple):
    """The state that the server keeps."""

    weights: Weights  # theta
    risk_weights: tf.Tensor  # [I, I], A
    last: LastCohort  # mu f_j to first order, a `FirstOrder`, of the last round's participants
    optimizer: Any = ()  # the state of the server's optimiser


class ClientState(NamedTuple):
    """The state that client i keeps."""

    weights: Weights  # theta_i


def offsets_of_all(server: ServerState, offsets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns [I] the last participants' offsets [c] by client, and [I] whether a client is one."""
    return server.last.by_client((offsets, tf.ones_like(offsets)), server.risk_weights.shape[0])


def build_pgfed(model: SplitModel, config: PGFedConfig) -> Algorithm:
    """Returns PGFed for `model`."""
    model = model.with_shared_classifier()
    server_optimizer = config.server()

    def init_server(federation):
        weights, count = model.initial_weights(), federation.num_clients
        risk_weights = tf.fill([count, count], 1 / federation.mean_clients_per_round)
        last = LastCohort.nobody(FirstOrder(weights, tf.zeros([])))
        return ServerState(weights, risk_weights, last, server_optimizer.init(weights))

    def broadcast(server, round_):
        gradients, offsets = server.last.kept
        return server.weights, nests.mean(gradients), *offsets_of_all(server, offsets)

    def client_messages(server, ids, round_):
        rows = tf.gather(server.risk_weights, ids)
        return nests.weighted_sums(server.last.columns(rows), server.last.kept.gradient), rows

    def client_update(message, state, client, round_):
        (sent, mean_gradient, offsets, present), (others, a) = message, client.message
        optimizer = config.optimizer(client)

        def step(carry, batch):
            theta, memory, a = carry
            slope = nests.inner_product(mean_gradient, theta)
            a = tf.nn.relu(a - config.risk_learning_rate * present * (offsets + slope))
            of_batch = gradient(model.loss, theta, batch)
            theta, memory = optimizer.apply(nests.add(of_batch, others), memory, theta)
            return theta, memory, a

        theta, _, a = config.over_batches(step, (sent, optimizer.init(sent), a), client)
        risk = FirstOrder.at(lambda w: config.risk_weight * model.loss(w, client), theta)
        return ClientResult(theta, ClientState(theta), (), nests.subtract(theta, sent), (risk, a))

    def server_update(server, uploads, round_):
        ids, (risks, rows) = uploads.client_ids, uploads.individual
        a = tf.tensor_scatter_nd_update(server.risk_weights, ids[:, None], rows)
        server = server._replace(risk_weights=a, last=LastCohort(ids, risks))
        return server_optimizer.follow(uploads.averaged, server, round_)

    return Algorithm.with_one_exchange(
        "pgfed",
        model,
        init_server=init_server,
        init_client=lambda server, seed, classes: ClientState(server.weights),
        broadcast=broadcast,
        client_messages=client_messages,
        client_update=client_update,
        server_update=server_update,
        served={"personalized": lambda server, client: client.weights},
    )
