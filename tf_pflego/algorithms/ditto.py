"""Ditto: a personal network for each client, held near the one that all learn.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", in the full-batch form in which the PFLEGO
paper compares with it. What is learnt: one network theta for all, as FedAvg does, and a whole network v_i per client.

A round:
  1. The server sends theta_t to the participants.
  2. Client i takes tau full-batch gradient steps of rate beta on l_i(theta) from theta_t.
  3. It takes tau such steps on l_i(v) + (mu / 2) ||v - theta_t||^2 from its v_i, and keeps the result.
  4. It uploads what step 2 gave, weighted by N_i.
  5. The server takes the N_i-weighted mean over the participants.

The server keeps theta; client i keeps v_i.

  paper    here                    shape
  theta    ModelState.weights      body and classifier
  v_i      ClientState.weights     the same; at first theta_0
  mu       proximal_weight
  tau      local_steps
  beta     client_learning_rate, of both
  alpha_i  client.client_weight    []

Differences from the paper: full-batch steps, and as many for v_i as for theta.
"""

import dataclasses
from typing import NamedTuple

from tf_pflego.algorithms import settings
from tf_pflego.algorithms.averaging import ModelState, take_mean, upload
from tf_pflego.core.algorithm import Algorithm, ClientResult, Exchange, Weights
from tf_pflego.core.local_training import gradient_descent, squared_distance
from tf_pflego.models.split import SplitModel


@dataclasses.dataclass(frozen=True)
class DittoConfig(settings.HyperParameters):
    """Hyper-parameters of Ditto."""

    local_steps: int = settings.local_steps()
    client_learning_rate: float = settings.client_learning_rate()
    proximal_weight: float = settings.proximal_weight()


class ClientState(NamedTuple):
    """What client i keeps."""

    weights: Weights  # v_i


def build_ditto(model: SplitModel, config: DittoConfig) -> Algorithm:
    """Returns Ditto for `model`."""

    def client_update(server_weights, client_message, state, client, round_):
        del client_message, round_

        def descend(loss, start):
            return gradient_descent(loss, start, config.local_steps, config.client_learning_rate)

        def personal_loss(weights):
            return model.loss(weights, client) + config.proximal_weight / 2 * squared_distance(weights, server_weights)

        shared = descend(lambda weights: model.loss(weights, client), server_weights)
        personal = descend(personal_loss, state.weights)
        return ClientResult(ClientState(personal), upload(shared, client), (), personal)

    return Algorithm(
        name="ditto",
        model=model,
        init_server=lambda: ModelState(model.initial_weights()),
        init_client=lambda seed, num_classes: ClientState(model.initial_weights()),
        exchanges=(Exchange(lambda server, round_: server.weights, client_update, take_mean(ModelState)),),
        personalize=lambda server, client: client.weights,
        shared=frozenset(),
    )
