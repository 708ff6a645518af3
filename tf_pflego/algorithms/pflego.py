"""PFLEGO: personalised federated learning by exact stochastic gradient descent.

Nikoloutsopoulos, Koutsopoulos and Titsias, "Personalized Federated Learning with Exact Stochastic
Gradient Descent", section 3.2, Algorithm 1. Learnt: one feature extractor theta for all clients and
a linear head W_i for each client, by minimising L = sum_i alpha_i l_i(W_i, theta).

A round:
  1. The server sends theta to the participants.
  2. Client i computes its features phi_i = phi(X_i; theta) once.
  3. It takes tau - 1 full-batch gradient steps only on W_i, over these features, with rate beta.
  4. At the final W_i it computes the joint gradient (g_W, g_theta) of l_i, and sets
     W_i <- W_i - rho (I/r) g_W.
  5. It uploads alpha_i g_theta. Its examples have passed through the network once forward and once
     backward.
  6. The server gives (I/r) sum_i alpha_i g_theta_i, an unbiased gradient of L, to its optimiser of
     rate rho.

Served: the newest theta (Algorithm 1's aggregate) with W_i of the client's last step 4. The server
keeps theta and the optimiser's state, and client i keeps W_i.

  paper    here                          shape
  theta    theta                         list of the body's weights
  W_i      head                          [K, M + 1], the last column is the bias
  phi_i    features                      [n, M]
  l_i      loss, as a function of W_i
  tau      local_steps
  beta     client_learning_rate
  rho      server_learning_rate          times what server_schedule gives for the round
  alpha_i  client.client_weight          []
  I/r      round_.participation_scale    []

Differences from the paper: the one forward pass keeps its activations, where the paper passes
forward a second time for the same result. Equation 3 scales the head's last step by rho I/r, while
Proposition 1 needs rho (I/r) alpha_i. `head_step_scale` chooses between them ("algorithm1" and
"exact"). Another solver may take the steps on W_i (`head_solver`), and beta may follow the
curvature of each client's loss (`client_learning_rate` auto). With the squared error the least loss
of step 3 is known, and `head_solver` exact takes it: W_i is the ridge regression over phi_i, its
gradient in W_i is 0, and step 4 does not change it. The loss of a client may include the squared
norm of its head (`head_penalty`). In any case step 3 does not raise the client's loss; see
`models.heads.solvers`. Heads start from 0 if labels are no classes. rho may fall over the rounds
(`server_schedule`), for the head's last step and for theta's step, since both are one step in
Proposition 1. The limit of an automatic beta does not fall.

If the body has personal weights P_i, they stay with W_i. Steps 3 and 4 then move both jointly.
Since P_i changes phi_i, a round takes tau + 1 passes forward and tau backward instead of one of
each. Step 3 is gd, momentum or adam of a given rate, and is dropped if the loss has risen. W_i and
P_i depend only on client i, as W_i did: Proposition 1 holds.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from tf_pflego.core import nests, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult, Served, Weights
from tf_pflego.core.exchanges import Exchanges
from tf_pflego.core.optimizers import ServerSettings
from tf_pflego.models.personalization import HeadTraining
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class PflegoConfig(Exchanges, ServerSettings, HeadTraining):
    """Hyper-parameters of PFLEGO."""

    head_step_scale: str = settings.setting(
        "algorithm1",
        "scale of the head's last step: rho I/r (algorithm1) or rho (I/r) alpha_i (exact)",
        choices=("algorithm1", "exact"),
    )


class ServerState(NamedTuple):
    """The state that the server keeps."""

    theta: list  # the body's weights
    optimizer: Any  # the state of the server's optimiser


class ClientState(NamedTuple):
    """The state that client i keeps."""

    head: tf.Tensor  # [K, M + 1] float32, W_i
    personal: tuple = ()  # P_i, the personal weights of the body


def build_pflego(model: SplitModel, config: PflegoConfig) -> Algorithm:
    """Returns PFLEGO for `model`."""
    optimizer = config.server()

    def init_server(federation):
        theta = model.parts.split(model.initial_weights())[0].theta
        return ServerState(theta, optimizer.init(theta))

    def init_client(server, seed, classes):
        return ClientState(model.uniform_head(seed, classes), model.initial_personal())

    def served_weights(theta, state):
        return model.parts.joined(Weights(theta, state.head), state.personal)

    def broadcast(server, round_):
        return server.theta

    def client_update(theta, state, client, round_):
        start, steps = served_weights(theta, state), config.local_steps - 1
        if model.parts.any_personal:
            start, steps = config.train_personal(model, start, client, steps), 0
        features, pull_back = model.features_and_pull_back(start.theta, client)
        loss = model.head_objective(features, client, config.head_penalty)
        largest_rate = config.server_learning_rate * round_.participation_scale
        head = config.train_head(loss, start.head, steps, largest_rate)
        g_head, g_features = loss.gradients(head, client.client_weight)
        last_rate = optimizer.rate(round_) * round_.participation_scale
        if config.head_step_scale == "exact":
            last_rate *= client.client_weight
        g_theta, g_personal = model.parts.split(Weights(pull_back(g_features), g_head))
        head -= last_rate * g_head
        slope = nests.scale(last_rate / client.client_weight, g_personal)
        state = ClientState(head, nests.subtract(model.parts.split(start)[1], slope))
        return ClientResult(served_weights(theta, state), state, summed=g_theta.theta)

    def server_update(server, uploads, round_):
        gradient = nests.scale(round_.participation_scale, uploads.summed)
        return ServerState(*optimizer.apply(gradient, server.optimizer, server.theta, round_))

    def personal_model(server, client):
        return served_weights(server.theta, client)

    def with_head(server, client, head):
        return client._replace(head=head)

    served = Served(personal_model, model.predict, None, config.head_rule(model), with_head)
    algorithm = Algorithm.with_one_exchange(
        "pflego",
        model,
        init_server=init_server,
        init_client=init_client,
        broadcast=broadcast,
        client_update=client_update,
        server_update=server_update,
        served={"personalized": served},
        keeps_personal=True,
    )
    return config.of_each_round(algorithm)
