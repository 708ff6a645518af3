"""PFLEGO: personalised federated learning by exact stochastic gradient descent.

Nikoloutsopoulos, Koutsopoulos and Titsias, "Personalized Federated Learning with Exact Stochastic Gradient Descent",
section 3.2, Algorithm 1. What is learnt: one feature extractor theta for all, and a linear head W_i for each client, by
minimising L(theta, W_1 .. W_I) = sum_i alpha_i l_i(W_i, theta).

A round:
  1. The server sends theta to the participants.
  2. Client i computes its features phi_i = phi(X_i; theta) once.
  3. tau - 1 full-batch gradient steps on W_i alone, over these features, with rate beta.
  4. At the final W_i, the joint gradient (g_W, g_theta) of l_i; W_i <- W_i - rho (I/r) g_W.
  5. The client uploads alpha_i g_theta. The network is passed once forward and once backward, whatever tau.
  6. The server hands (I/r) sum_i alpha_i g_theta_i, an unbiased gradient of L, to its optimiser of rate rho.

The server keeps theta and the optimiser's state; client i keeps W_i.

  paper    here                          shape
  theta    theta                         list of the body's weights
  W_i      HeadState.head                [K, M + 1], the last column is the bias
  phi_i    features                      [n, M]
  tau      local_steps
  beta     client_learning_rate
  rho      server_learning_rate
  alpha_i  client.client_weight          []
  I/r      round_.participation_scale    []

Differences from the paper: the one forward pass keeps its activations, where the paper passes the network forward a second
time for the same result. Equation 3 scales the head's last step by rho I/r, while Proposition 1 needs rho (I/r) alpha_i:
`head_step_scale` chooses ("algorithm1", "exact"). The steps on W_i may be another solver's (`head_solver`), beta may follow
each client's curvature (`client_learning_rate` auto), and in any case step 3 does not raise the client's loss, see
`models.head_solvers`.
"""

import dataclasses

from tf_pflego.algorithms import settings
from tf_pflego.algorithms.gradient_server import gradient_server
from tf_pflego.algorithms.personal_head import HeadState
from tf_pflego.core.algorithm import Algorithm, FeatureResult
from tf_pflego.models.head_objective import HeadObjective
from tf_pflego.models.head_solvers import SOLVERS, automatic_rate, solve
from tf_pflego.models.split import SplitModel


@dataclasses.dataclass(frozen=True)
class PflegoConfig(settings.HyperParameters):
    """Hyper-parameters of PFLEGO."""

    local_steps: int = settings.local_steps()
    client_learning_rate: float | str = settings.client_learning_rate(words=("auto",))
    head_solver: str = settings.setting("gd", "how the head is trained, but for its last step", choices=SOLVERS)
    server_learning_rate: float = settings.server_learning_rate()
    server_optimizer: str = settings.server_optimizer()
    head_step_scale: str = settings.setting(
        "algorithm1", "scale of the head's last step: rho I/r, or with alpha_i too", choices=("algorithm1", "exact")
    )

    def __post_init__(self):
        super().__post_init__()
        if self.head_solver == "adam" and self.client_learning_rate == "auto":
            raise ValueError("`client_learning_rate` must be a number for Adam; got 'auto'. Try --client_learning_rate=0.01.")


def build_pflego(model: SplitModel, config: PflegoConfig) -> Algorithm:
    """Returns PFLEGO for `model`."""

    def features_update(state, features, client, round_):
        objective = HeadObjective(features, client.labels, client.example_weights, model.num_classes)
        scale = config.server_learning_rate * round_.participation_scale
        rate = config.client_learning_rate
        if rate == "auto":
            rate = automatic_rate(objective, state.head, config.head_solver, most=scale)
        head = solve(objective, state.head, config.local_steps - 1, config.head_solver, rate)
        errors = objective.errors(head)
        if config.head_step_scale == "exact":
            scale *= client.client_weight
        g_phi = objective.features_gradient(client.client_weight * errors, head)
        head -= scale * objective.head_gradient(errors)
        return FeatureResult(HeadState(head), g_phi, head)

    return gradient_server("pflego", model, features_update, config.server_optimizer, config.server_learning_rate)
