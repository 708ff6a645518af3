"""FedDANE: local objectives corrected by the mean gradient of another cohort.

Li et al., "FedDANE: A Federated Newton-Type Method", in full-batch form. Learnt: one network.

A round:
  1. The server sends theta_t to a first cohort. Each of its clients uploads
     g_i = grad l_i(theta_t).
  2. The server takes the N_i-weighted mean g, and sends theta_t and g to a second cohort, which is
     sampled independently.
  3. Client i of the second cohort takes tau full-batch gradient steps of rate beta, from theta_t,
     on l_i(theta) + <g - g_i, theta - theta_t> + (mu / 2) ||theta - theta_t||^2.
  4. It uploads the result minus theta_t, and the server adds the N_i-weighted mean to theta.

Served: the newest theta, the mean in the last line of the algorithm, to all clients, or fine-tuned
as in FedAvg. The server keeps theta, and g between the two exchanges, and a client keeps nothing.

  paper    here                     shape
  theta    ServerState.weights      body and classifier
  g        ServerState.gradient     the same
  mu       proximal_weight
  tau      local_steps
  beta     client_learning_rate

Differences from the paper: clients take a fixed number of steps instead of solving to a given
inexactness. If the first cohort is empty, g keeps its last value.
"""

import dataclasses
from typing import NamedTuple

from tf_pflego.core import nests, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult, Exchange, Weights
from tf_pflego.core.local_training import ServesOneNetwork, gradient, minimize, near
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class FedDaneConfig(ServesOneNetwork):
    """Hyper-parameters of FedDANE."""

    local_steps: int = settings.local_steps()
    proximal_weight: float = settings.proximal_weight()


class ServerState(NamedTuple):
    """The state that the server keeps."""

    weights: Weights  # body and classifier
    gradient: Weights  # g, from the most recent first cohort; 0 before there is one


def build_feddane(model: SplitModel, config: FedDaneConfig) -> Algorithm:
    """Returns FedDANE for `model`."""
    model = model.with_shared_classifier()

    def init_server(federation):
        weights = model.initial_weights()
        return ServerState(weights, nests.zeros_like(weights))

    # The first exchange: the gradient at theta_t.

    def send_weights(server, round_):
        return server.weights

    def give_gradient(weights, state, client, round_):
        return ClientResult(weights, averaged=gradient(model.loss, weights, client))

    def keep_gradient(server, uploads, round_):
        return ServerState(server.weights, uploads.averaged)

    # The second exchange: local training on the corrected loss.

    def send_weights_and_gradient(server, round_):
        return server.weights, server.gradient

    def train(message, state, client, round_):
        sent, mean_gradient = message
        correction = nests.subtract(mean_gradient, gradient(model.loss, sent, client))

        def loss(weights, batch):
            moved = nests.subtract(weights, sent)
            return model.loss(weights, batch) + nests.inner_product(correction, moved)

        loss = near(loss, sent, config.proximal_weight)
        weights = minimize(loss, sent, client, config.optimizer(client), config.local_steps)
        return ClientResult(weights, averaged=nests.subtract(weights, sent))

    def follow_mean(server, uploads, round_):
        return ServerState(nests.add(server.weights, uploads.averaged), server.gradient)

    return Algorithm(
        name="feddane",
        model=model,
        init_server=init_server,
        exchanges=(
            Exchange(send_weights, give_gradient, keep_gradient, cohort="gradients"),
            Exchange(send_weights_and_gradient, train, follow_mean),
        ),
        served={"generic": config.served(model)},
    )
