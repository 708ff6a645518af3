"""FedRecon: the head is solved for first, then theta takes one gradient step.

Singhal et al., "Federated Reconstruction: Partially Local Federated Learning", in the form in which the PFLEGO paper compares
with it (its Algorithm 4 in the first version). What is learnt: one feature extractor theta for all, a linear head W_i per
client.

A round:
  1. The server sends theta to the participants.
  2. Client i computes its features phi_i = phi(X_i; theta) once, and takes tau full-batch gradient steps of rate beta on W_i.
  3. It uploads alpha_i g_theta, the gradient of its loss in theta at the new W_i.
  4. The server hands (I/r) sum_i alpha_i g_theta_i to its optimiser of rate rho.

The server keeps theta and the optimiser's state; client i keeps W_i.

  paper    here                          shape
  theta    theta                         list of the body's weights
  W_i      HeadState.head                [K, M + 1], the last column is the bias
  tau      local_steps
  beta     client_learning_rate
  rho      server_learning_rate
  alpha_i  client.client_weight          []
  I/r      round_.participation_scale    []

Differences from the paper: heads are kept between rounds, as in the comparison, and not reconstructed from nothing; all
examples of a client serve both steps.
"""

import dataclasses

from tf_pflego.algorithms import settings
from tf_pflego.algorithms.gradient_server import gradient_server
from tf_pflego.algorithms.personal_head import HeadState
from tf_pflego.core.algorithm import Algorithm, FeatureResult
from tf_pflego.models.head_descent import gradient_descent
from tf_pflego.models.head_objective import HeadObjective
from tf_pflego.models.split import SplitModel


@dataclasses.dataclass(frozen=True)
class FedReconConfig(settings.HyperParameters):
    """Hyper-parameters of FedRecon."""

    local_steps: int = settings.local_steps()
    client_learning_rate: float = settings.client_learning_rate()
    server_learning_rate: float = settings.server_learning_rate()
    server_optimizer: str = settings.server_optimizer()


def build_fedrecon(model: SplitModel, config: FedReconConfig) -> Algorithm:
    """Returns FedRecon for `model`."""

    def features_update(state, features, client, round_):
        del round_
        objective = HeadObjective(features, client.labels, client.example_weights, model.num_classes)
        head = gradient_descent(objective, state.head, config.local_steps, config.client_learning_rate)
        g_phi = objective.features_gradient(client.client_weight * objective.errors(head), head)
        return FeatureResult(HeadState(head), g_phi, head)

    return gradient_server("fedrecon", model, features_update, config.server_optimizer, config.server_learning_rate)
