"""FedRep: each client trains its head first, then the body.

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", in the
full-batch form that the PFLEGO paper compares with. What is learnt: one feature extractor theta for
all clients and a linear head W_i for each client.

A round:
  1. The server sends theta to the participants.
  2. Client i takes tau - e full-batch gradient steps with momentum m and rate beta on W_i alone,
     over features that it computes once.
  3. It takes e such steps on its copy theta_i, with W_i fixed.
  4. It uploads theta_i, weighted by N_i, and keeps W_i.
  5. The server sets theta to the N_i-weighted mean over the participants.

The server keeps theta; client i keeps W_i.

  paper    here                    shape
  theta    theta                   list of the body's weights
  W_i      HeadState.head          [K, M + 1], the last column is the bias
  tau      local_steps
  e        body_steps
  beta     client_learning_rate
  m        momentum                0.999 in the PFLEGO paper's comparison
  alpha_i  client.client_weight    []

Differences from the paper: heads start from Uniform[0, 1), as in the methods that it is compared
with.
"""

import dataclasses

from tf_pflego.algorithms.averaging import average_body
from tf_pflego.core import optimizers, settings
from tf_pflego.core.algorithm import Algorithm, Weights
from tf_pflego.core.local_training import minimize
from tf_pflego.models.head_descent import gradient_descent
from tf_pflego.models.split import SplitModel


@dataclasses.dataclass(frozen=True)
class FedRepConfig(settings.HyperParameters):
    """Hyper-parameters of FedRep."""

    local_steps: int = settings.local_steps()
    body_steps: int = settings.setting(
        5,
        "e, how many of the local steps are on the body; they come last (at most all)",
        at_least=0,
    )
    client_learning_rate: float = settings.client_learning_rate()
    momentum: float = settings.momentum(0.0)


def build_fedrep(model: SplitModel, config: FedRepConfig) -> Algorithm:
    """Returns FedRep for `model`."""
    body_steps = min(config.body_steps, config.local_steps)
    head_steps = config.local_steps - body_steps
    rate, momentum = config.client_learning_rate, config.momentum

    def local_update(weights, client):
        features = model.features(weights.theta, client.examples)
        head_loss = model.head_objective(features, client)
        head = gradient_descent(head_loss, weights.head, head_steps, rate, momentum)

        def loss(theta, batch):
            return model.loss(Weights(theta, head), batch)

        optimizer = optimizers.sgd(rate, momentum)
        return Weights(minimize(loss, weights.theta, client, optimizer, body_steps), head)

    return average_body("fedrep", model, local_update)
