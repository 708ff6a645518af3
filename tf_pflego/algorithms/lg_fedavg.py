"""LG-FedAvg: the body stays with each client, and all share the head.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global
Representations", in the form in which the PGFed paper compares with it. What is learnt: one head W
for all, a body theta_i per client.

A round:
  1. The server sends W to the participants.
  2. Client i takes, for each mini-batch, a step on theta_i and then, at the new theta_i, a step on
     its copy W_i; SGD of rate beta with momentum m.
  3. It uploads N_i-weighted W_i, and keeps theta_i.
  4. The server takes the N_i-weighted mean over the participants.

The server keeps W; client i keeps theta_i, which serves it under W.

  paper     here                    shape
  W         SharedState.weights     [K, M + 1], the last column is the bias
  theta_i   ClientState.theta       list of the body's weights
  beta      client_learning_rate
  m         momentum

Differences from the paper: it starts from a network that FedAvg has trained; here it starts from
theta_0, as PGFed's authors do.
"""

import dataclasses
from typing import NamedTuple

from tf_pflego.algorithms.averaging import MeanAtServer, averaging, broadcast, weighted
from tf_pflego.core.algorithm import Algorithm, ClientResult, Exchange, Served, Weights
from tf_pflego.core.local_training import MiniBatches, gradient
from tf_pflego.models.split import SplitModel


@dataclasses.dataclass(frozen=True)
class LgFedAvgConfig(MeanAtServer, MiniBatches):
    """Hyper-parameters of LG-FedAvg."""


class ClientState(NamedTuple):
    """What client i keeps."""

    theta: list  # theta_i


def build_lg_fedavg(model: SplitModel, config: LgFedAvgConfig) -> Algorithm:
    """Returns LG-FedAvg for `model`."""
    model, of_server = model.with_shared_classifier(), averaging(config)
    optimizer = config.optimizer()

    def client_update(head, state, client, round_):
        def step(carry, batch):
            theta, head, of_theta, of_head = carry
            g_theta = gradient(lambda t: model.loss(Weights(t, head), batch), theta)
            theta, of_theta = optimizer.apply(g_theta, of_theta, theta)
            g_head = gradient(lambda w: model.loss(Weights(theta, w), batch), head)
            head, of_head = optimizer.apply(g_head, of_head, head)
            return theta, head, of_theta, of_head

        start = state.theta, head, optimizer.init(state.theta), optimizer.init(head)
        theta, head, *_ = config.over_batches(step, start, client)
        upload = weighted(head, client)
        return ClientResult(Weights(theta, head), ClientState(theta), summed=upload)

    def init_client(server, seed, classes):
        return ClientState(model.initial_weights().theta)

    def own_body_and_shared_head(server, client):
        return Weights(client.theta, server.weights)

    return Algorithm(
        name="lg_fedavg",
        model=model,
        init_server=lambda federation: of_server.init_server(model.initial_weights().head),
        init_client=init_client,
        exchanges=(Exchange(broadcast, client_update, of_server.server_update),),
        served={"personalized": Served(own_body_and_shared_head, model.predict)},
    )
