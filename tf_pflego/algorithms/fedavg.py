"""FedAvg: federated averaging of one model for all clients.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", and the
full-batch form of the PFLEGO paper (Algorithm 3 of its first version). Learnt: one network.

A round:
  1. The server sends the whole network to the participants.
  2. Client i takes tau full-batch gradient steps of rate beta on a copy of it, or E epochs of steps
     on mini-batches of B examples, with momentum m.
  3. It uploads the difference of its copy from the received network.
  4. The server takes the N_i-weighted mean of the differences over the participants, and passes it
     to its optimiser. By default it is added to the network, which thereby becomes the mean of the
     copies. For other optimisers see `core.optimizers.AveragingServer`.

Served: the newest network, w_(t+1) of Algorithm 1, to all clients or, with f above 0, after f
full-batch steps, or f epochs, of rate beta without momentum on the client's own examples. Their
result is not kept. The server keeps the network and the optimiser's state, and a client keeps
nothing.

  paper    here                    shape
  theta    Weights.theta           list of the body's weights
           Weights.head            [K, M + 1], the classifier; K is the largest number of classes
                                   of any client
  tau      local_steps             where batch_size is 0
  B, E     batch_size, local_epochs
  beta     client_learning_rate
  f        fine_tuning_steps       0 in the paper
  alpha_i  client.client_weight    [], the weights of `ClientResult.averaged`

Differences from the paper: steps are full-batch unless a batch size is given. The classifier starts
from Glorot's uniform distribution, with zero bias. The paper's networks have no batch
normalisation. If a body has it, a client predicts with the statistics of its own examples or, if
they are shared, with the mean of the participants' statistics under their trained copies. A client
with fine-tuning always predicts with the statistics of its own examples. Personal weights of the
body, if the model has any, are trained with the others, and client i keeps them.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from tf_pflego.core import nests, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult
from tf_pflego.core.local_training import ServesOneNetwork, StepsOrMiniBatches
from tf_pflego.core.optimizers import AveragingServer
from tf_pflego.models.split_model import SplitModel

OWN, SHARED = "own", "shared"


@dataclasses.dataclass(frozen=True)
class FedAvgConfig(AveragingServer, StepsOrMiniBatches, ServesOneNetwork):
    """Hyper-parameters of FedAvg."""

    batch_statistics: str = settings.setting(
        OWN,
        "statistics of batch normalisation in predictions: of the client's own examples, or the "
        "mean of the last participants' statistics, averaged like FedAvg's weights (shared)",
        choices=(OWN, SHARED),
    )

    def __post_init__(self):
        super().__post_init__()
        if self.batch_statistics == SHARED and self.server_optimizer != "sgd":
            raise ValueError(
                "`server_optimizer` must be sgd for batch_statistics=shared, since a variance "
                f"must not be extrapolated; got {self.server_optimizer}. Choose own statistics."
            )


class SharedState(NamedTuple):
    """The state of a server that keeps only the weights that it shares with all clients."""

    weights: Any  # theta, or body and classifier
    optimizer: Any = ()  # the state of the server's optimiser


def build_fedavg(model: SplitModel, config: FedAvgConfig) -> Algorithm:
    """Returns FedAvg for `model`."""
    model = model.with_shared_classifier()
    shares_statistics = config.batch_statistics == SHARED
    if shares_statistics and not model.has_statistics:
        raise ValueError(
            "`batch_statistics` must be own for a network without batch normalisation, which has "
            "none to share; got shared. Leave it out."
        )

    def client_update(sent, personal, client, round_):
        start = model._without_statistics(model.parts.joined(sent, personal))
        weights = config.minimize(model.loss, start, client)
        if shares_statistics:
            weights = model.with_statistics(weights, client)
        moved, personal = model.parts.split(weights)
        return ClientResult(weights, personal, averaged=nests.subtract(moved, sent))

    def shared(weights):
        return model._with_first_statistics(weights) if shares_statistics else weights

    def network(server, personal):
        return model.parts.joined(server.weights, personal)

    fields: dict = {"served": {"generic": config.served(model, network)}, "keeps_personal": True}
    return average("fedavg", model, config, client_update, shared, **fields)


def average(
    name: str,
    model: SplitModel,
    config: AveragingServer,
    client_update: Callable[..., ClientResult],
    shared: Callable[[Any], Any] = lambda weights: weights,
    move: Callable[[Any], Any] = lambda averaged: averaged,
    **fields: Any,
) -> Algorithm:
    """Returns a method with a server that sends weights, and follows the mean of the uploads.

    The server sends the `shared` part of the model's weights without personal ones, which are the
    clients' first state, and `client_update` receives it. The server then follows the `move` that
    it computes from the mean upload. The `fields` go to `Algorithm.with_one_exchange`.
    """
    optimizer = config.server()

    def init_server(federation):
        weights = shared(model.parts.split(model.initial_weights())[0])
        return SharedState(weights, optimizer.init(weights))

    def broadcast(server, round_):
        return server.weights

    def server_update(server, uploads, round_):
        return optimizer.follow(move(uploads.averaged), server, round_)

    return Algorithm.with_one_exchange(
        name,
        model,
        init_server=init_server,
        broadcast=broadcast,
        client_update=client_update,
        server_update=server_update,
        **{"init_client": lambda *given: model.initial_personal()} | fields,
    )
