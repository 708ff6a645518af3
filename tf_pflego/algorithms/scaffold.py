"""SCAFFOLD: FedAvg with steps that are corrected by control variates, against clients' drift.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", Algorithm 1
with option II. Learnt: one network x for all.

A round:
  1. The server sends x and c, the mean of all clients' control variates.
  2. Client i sets y_i = x, and takes steps of rate eta_l along grad f_i(y_i) - c_i + c on
     mini-batches, K in all.
  3. It sets c_i+ = c_i - c + (x - y_i) / (K eta_l), which is the mean of its gradients on the way,
     uploads y_i - x and c_i+ - c_i, and keeps c_i+ as c_i.
  4. The server sets x <- x + eta_g mean_i (y_i - x) over the participants, a plain mean, and
     c <- c + (1 / I) sum_i (c_i+ - c_i), so that c stays the mean over all I clients.

Served: the newest x (Algorithm 1, line 17), to all clients, or fine-tuned as in FedAvg. The server
keeps x and C = I c, the sum of all c_i, which lets clients join, and client i keeps c_i. The server
does not know, and cannot subtract, the c_i of clients that leave.

  paper    here                      shape
  x        ServerState.weights       body and classifier
  c        ServerState.variates / I  the same
  c_i      ClientState.variate       the same; 0 at first
  K        config.gradient_weight    []
  eta_l    client_learning_rate
  eta_g    server_learning_rate      1 by default
  N        round_.num_clients

Differences from the paper: momentum, which it does not have and which is 0 by default, makes K the
sum of the gradients' weights, and c_i stays their mean. The server may have other optimisers.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from tf_pflego.core import nests
from tf_pflego.core.algorithm import Algorithm, ClientResult, Weights
from tf_pflego.core.local_training import MiniBatchSgd, ServesOneNetwork
from tf_pflego.core.optimizers import AveragingServer
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class ScaffoldConfig(AveragingServer, MiniBatchSgd, ServesOneNetwork):
    """Hyper-parameters of SCAFFOLD."""


class ServerState(NamedTuple):
    """The state that the server keeps."""

    weights: Weights  # x
    variates: Weights  # C
    optimizer: Any = ()  # the state of the server's optimiser


class ClientState(NamedTuple):
    """The state that client i keeps."""

    variate: Weights  # c_i


def build_scaffold(model: SplitModel, config: ScaffoldConfig) -> Algorithm:
    """Returns SCAFFOLD for `model`."""
    model = model.with_shared_classifier()

    def client_update(message, state, client, round_):
        sent, mean_variate = message
        correction = nests.subtract(mean_variate, state.variate)

        def loss(weights, batch):
            return model.loss(weights, batch) + nests.inner_product(correction, weights)

        weights = config.minimize(loss, sent, client)
        moved = nests.subtract(weights, sent)
        rate = config.rate(client) * config.gradient_weight(client)
        # c_i+ - c_i
        change = nests.subtract(nests.scale(-1 / rate, moved), mean_variate)
        share = nests.scale(round_.equal_weight, (moved, change))
        return ClientResult(weights, ClientState(nests.add(state.variate, change)), summed=share)

    return with_variates("scaffold", model, config, client_update)


def with_variates(
    name: str, model: SplitModel, config: Any, client_update: Callable[..., ClientResult]
) -> Algorithm:
    """Returns a method with a server that also sends the mean of the clients' control variates.

    Clients upload what weights and variate have moved by, times `equal_weight`.
    """
    optimizer = config.server()

    def init_server(federation):
        weights = model.initial_weights()
        return ServerState(weights, nests.zeros_like(weights), optimizer.init(weights))

    def server_update(server, uploads, round_):
        moved, change = nests.scale(1 / round_.equal_weight, uploads.summed)
        server = server._replace(variates=nests.add(server.variates, change))
        return optimizer.follow(nests.scale(1 / uploads.count, moved), server, round_)

    return Algorithm.with_one_exchange(
        name,
        model,
        init_server=init_server,
        init_client=lambda server, seed, classes: ClientState(nests.zeros_like(server.weights)),
        broadcast=lambda server, round_: (
            server.weights,
            nests.scale(round_.equal_weight, server.variates),
        ),
        client_update=client_update,
        server_update=server_update,
        served={"generic": config.served(model)},
    )
