"""Ditto: a personal network for each client, kept near the network that all clients learn.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", in the full-batch
form that the PFLEGO paper compares with. Learnt: one network theta for all clients, as in FedAvg,
and a whole network v_i for each client.

A round:
  1. The server sends theta_t to the participants.
  2. Client i takes tau full-batch gradient steps of rate beta, or E epochs of steps on mini-batches
     of B examples, on l_i(theta) from theta_t, with momentum m.
  3. It takes as many steps on l_i(v) + (mu / 2) ||v - theta_t||^2 from its v_i, on separate
     mini-batches, and keeps the result as its new v_i.
  4. It uploads the result of step 2 minus theta_t.
  5. The server moves theta by the N_i-weighted mean over the participants, as in FedAvg.

Served: the client's last v_i (personalized), or the newest theta (generic). Algorithm 1 returns
both. The server keeps theta, and client i keeps v_i.

  paper    here                    shape
  theta    SharedState.weights     body and classifier
  v_i      PersonalState.weights   the same; it starts as theta_0
  mu       proximal_weight
  tau      local_steps             where batch_size is 0
  B, E     batch_size, local_epochs
  beta     client_learning_rate    the same for theta and v_i

Differences from the paper: steps are full-batch unless a batch size is given, and v_i takes as many
of them as theta.
"""

import dataclasses

from tf_pflego.algorithms.fedavg import average
from tf_pflego.algorithms.local import PersonalState
from tf_pflego.core import nests, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult
from tf_pflego.core.local_training import StepsOrMiniBatches, near
from tf_pflego.core.optimizers import AveragingServer
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class DittoConfig(AveragingServer, StepsOrMiniBatches):
    """Hyper-parameters of Ditto."""

    proximal_weight: float = settings.proximal_weight()


def build_ditto(model: SplitModel, config: DittoConfig) -> Algorithm:
    """Returns Ditto for `model`."""
    model = model.with_shared_classifier()

    def client_update(sent, state, client, round_):
        personal_loss = near(model.loss, sent, config.proximal_weight)
        shared = config.minimize(model.loss, sent, client)
        personal = config.minimize(personal_loss, state.weights, client, stream=1)
        moved = nests.subtract(shared, sent)
        return ClientResult(personal, PersonalState(personal), averaged=moved)

    def init_client(server, seed, classes):
        return PersonalState(model.initial_weights())

    served = {
        "personalized": lambda server, client: client.weights,
        "generic": lambda server, client: server.weights,
    }
    return average("ditto", model, config, client_update, init_client=init_client, served=served)
