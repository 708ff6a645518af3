"""FedRecon: each client trains its head first, then theta takes one gradient step.

Singhal et al., "Federated Reconstruction: Partially Local Federated Learning", in the PFLEGO
paper's form (Algorithm 4 of its first version), or in the form of its own paper. Learnt: one
feature extractor theta for all clients and a linear head W_i per client.

A round:
  1. The server sends theta to the participants.
  2. Client i computes its features phi_i = phi(X_i; theta) once, and takes tau full-batch gradient
     steps of rate beta on W_i, over these features.
  3. It uploads alpha_i g_theta, the gradient of its loss in theta at the new W_i.
  4. The server gives (I/r) sum_i alpha_i g_theta_i to its optimiser of rate rho.

Served: the newest theta with the client's last W_i (Algorithm 4) if `head_start` is "kept". If it
is "anew", as in FedRecon's own paper, W_i starts from a new random head in each round, and the
served head is reconstructed over the newest theta. The server keeps theta and the optimiser's
state, and client i keeps W_i, or nothing.

  paper    here                          shape
  theta    theta                         list of the body's weights
  W_i      head                          [K, M + 1], the last column is the bias
  tau      local_steps
  beta     client_learning_rate
  rho      server_learning_rate          times what server_schedule gives for the round
  alpha_i  client.client_weight          []
  I/r      round_.participation_scale    []

Differences from the paper: by default heads are kept between rounds, as in the PFLEGO paper's
comparison, and all examples of a client are used both for the head and for theta. Where labels are
no classes, a head starts from 0.
"""

import dataclasses

from tf_pflego.algorithms.pflego import ClientState, ServerState
from tf_pflego.core import nests, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult, Served, Weights, no_client_state
from tf_pflego.core.optimizers import ServerSettings
from tf_pflego.models.heads.descent import gradient_descent
from tf_pflego.models.personalization import HeadRule
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class FedReconConfig(ServerSettings):
    """Hyper-parameters of FedRecon."""

    local_steps: int = settings.local_steps()
    client_learning_rate: float = settings.client_learning_rate()
    head_start: str = settings.setting(
        "kept",
        "start of a participant's head: the end of its last round (kept) or a new random head "
        "(anew)",
        choices=("kept", "anew"),
    )


def build_fedrecon(model: SplitModel, config: FedReconConfig) -> Algorithm:
    """Returns FedRecon for `model`."""
    optimizer = config.server()
    keeps_head = config.head_start == "kept"

    def init_server(federation):
        theta = model.initial_weights().theta
        return ServerState(theta, optimizer.init(theta))

    def init_client(server, seed, classes):
        return ClientState(model.uniform_head(seed, classes))

    def start_of(state, client):
        return state.head if keeps_head else model.uniform_head(client.seed, client.classes)

    def reconstruct(loss, head):
        return gradient_descent(loss, head, config.local_steps, config.client_learning_rate)

    def client_update(theta, state, client, round_):
        features, pull_back = model.features_and_pull_back(theta, client)
        loss = model.head_objective(features, client)
        head = reconstruct(loss, start_of(state, client))
        _, g_features = loss.gradients(head, client.client_weight)
        g_theta = pull_back(g_features)
        if not keeps_head:
            return ClientResult(theta, summed=g_theta)
        return ClientResult(Weights(theta, head), ClientState(head), summed=g_theta)

    def server_update(server, uploads, round_):
        gradient = nests.scale(round_.participation_scale, uploads.summed)
        return ServerState(*optimizer.apply(gradient, server.optimizer, server.theta, round_))

    def kept_model(server, client):
        return Weights(server.theta, client.head)

    def with_head(server, client, head):
        return ClientState(head)

    def reconstructed_model(theta, client):
        loss = model.head_objective(model.features(theta, client), client)
        return Weights(theta, reconstruct(loss, start_of((), client)))

    learns_on = HeadRule(model)
    if keeps_head:
        served = Served(kept_model, model.predict, None, learns_on, with_head)
    else:
        served = Served(
            lambda server, client: server.theta, model.predict, reconstructed_model, learns_on
        )
    return Algorithm.with_one_exchange(
        "fedrecon",
        model,
        init_server=init_server,
        init_client=init_client if keeps_head else no_client_state,
        broadcast=lambda server, round_: server.theta,
        client_update=client_update,
        server_update=server_update,
        served={"personalized": served},
    )
