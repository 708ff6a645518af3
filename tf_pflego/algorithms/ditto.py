"""Ditto: a personal network for each client, held near the network that all clients learn.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", in the full-batch
form that the PFLEGO paper compares with. What is learnt: one network theta for all clients, as in
FedAvg, and a whole network v_i for each client.

A round:
  1. The server sends theta_t to the participants.
  2. Client i takes tau full-batch gradient steps of rate beta, or E epochs of steps on mini-batches
     of B examples, on l_i(theta) from theta_t, with momentum m.
  3. It takes as many on l_i(v) + (mu / 2) ||v - theta_t||^2 from its v_i, on mini-batches of their
     own, and keeps the result as its new v_i.
  4. It uploads the result of step 2, weighted by N_i.
  5. The server takes the N_i-weighted mean over the participants.

The server keeps theta; client i keeps v_i.

  paper    here                    shape
  theta    SharedState.weights     body and classifier
  v_i      ClientState.weights     the same; it starts as theta_0
  mu       proximal_weight
  tau      local_steps             where batch_size is 0
  B, E     batch_size, local_epochs
  beta     client_learning_rate    the same for theta and v_i
  alpha_i  client.client_weight    []

Differences from the paper: steps are full-batch unless a batch size is given, and v_i takes as many
of them as theta.
"""

import dataclasses
from typing import NamedTuple

from tf_pflego.algorithms.averaging import MeanAtServer, averaging, broadcast, weighted
from tf_pflego.core import nests, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult, Exchange, Served, Weights
from tf_pflego.core.local_training import StepsOrMiniBatches
from tf_pflego.models.split import SplitModel


@dataclasses.dataclass(frozen=True)
class DittoConfig(MeanAtServer, StepsOrMiniBatches):
    """Hyper-parameters of Ditto."""

    proximal_weight: float = settings.proximal_weight()


class ClientState(NamedTuple):
    """What client i keeps."""

    weights: Weights  # v_i


def build_ditto(model: SplitModel, config: DittoConfig) -> Algorithm:
    """Returns Ditto for `model`."""
    model, of_server = model.with_shared_classifier(), averaging(config)

    def client_update(server_weights, state, client, round_):
        def personal_loss(weights, batch):
            distance = nests.squared_distance(weights, server_weights)
            return model.loss(weights, batch) + config.proximal_weight / 2 * distance

        shared = config.minimize(model.loss, server_weights, client)
        personal = config.minimize(personal_loss, state.weights, client, stream=1)
        return ClientResult(personal, ClientState(personal), summed=weighted(shared, client))

    def init_client(server, seed, classes):
        return ClientState(model.initial_weights())

    return Algorithm(
        name="ditto",
        model=model,
        init_server=lambda federation: of_server.init_server(model.initial_weights()),
        init_client=init_client,
        exchanges=(Exchange(broadcast, client_update, of_server.server_update),),
        served={
            "personalized": Served(lambda server, client: client.weights, model.predict),
            "generic": Served(lambda server, client: server.weights, model.predict),
        },
    )
