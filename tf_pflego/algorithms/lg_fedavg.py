"""LG-FedAvg: the body stays with each client, and all share the head.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global
Representations", as the PGFed paper has it. Learnt: one head W for all, a body theta_i per client.

A round:
  1. The server sends W to the participants.
  2. Client i takes, for each mini-batch, a step on theta_i and then, at the new theta_i, a step on
     its copy W_i; SGD of rate beta with momentum m.
  3. It uploads W_i - W, and keeps theta_i.
  4. The server moves W by the N_i-weighted mean over the participants, as in FedAvg.

Served: the client's last theta_i under the newest W, which the authors' program (7af0568) copies to
all clients after each round. The server keeps W, and client i keeps theta_i.

  paper     here                    shape
  W         SharedState.weights     [K, M + 1], the last column is the bias
  theta_i   ClientState.theta       list of the body's weights
  beta      client_learning_rate
  m         momentum

Differences from the paper: it starts from a network that FedAvg has trained, here from theta_0.
"""

import dataclasses
from typing import NamedTuple

from tf_pflego.algorithms.fedavg import average
from tf_pflego.core import nests
from tf_pflego.core.algorithm import Algorithm, ClientResult, Weights
from tf_pflego.core.local_training import MiniBatches, gradient
from tf_pflego.core.optimizers import AveragingServer
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class LgFedAvgConfig(AveragingServer, MiniBatches):
    """Hyper-parameters of LG-FedAvg."""


class ClientState(NamedTuple):
    """The state that client i keeps."""

    theta: list  # theta_i


def build_lg_fedavg(model: SplitModel, config: LgFedAvgConfig) -> Algorithm:
    """Returns LG-FedAvg for `model`."""
    model = model.with_shared_classifier()

    def client_update(sent, state, client, round_):
        optimizer = config.optimizer(client)

        def step(carry, batch):
            theta, head, theta_optimizer, head_optimizer = carry
            g_theta = gradient(lambda t: model.loss(Weights(t, head), batch), theta)
            theta, theta_optimizer = optimizer.apply(g_theta, theta_optimizer, theta)
            g_head = gradient(lambda w: model.loss(Weights(theta, w), batch), head)
            head, head_optimizer = optimizer.apply(g_head, head_optimizer, head)
            return theta, head, theta_optimizer, head_optimizer

        start = state.theta, sent, optimizer.init(state.theta), optimizer.init(sent)
        theta, head, *_ = config.over_batches(step, start, client)
        moved = nests.subtract(head, sent)
        return ClientResult(Weights(theta, head), ClientState(theta), averaged=moved)

    def init_client(server, seed, classes):
        return ClientState(model.initial_weights().theta)

    def body_and_shared_head(server, client):
        return Weights(client.theta, server.weights)

    fields: dict = {"init_client": init_client, "served": {"personalized": body_and_shared_head}}
    return average("lg_fedavg", model, config, client_update, lambda w: w.head, **fields)
