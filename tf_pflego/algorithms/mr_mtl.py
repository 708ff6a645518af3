"""MR-MTL: a network for each client, all of them kept near their mean.

Liu, Hu, Wu and Smith, "On Privacy and Personalization in Cross-Silo Federated Learning",
mean-regularised multi-task learning, an idea by Evgeniou and Pontil. Learnt: a network w_i for each
client, by min sum_i f_i(w_i) + (lambda / 2) ||w_i - w||^2, where w is their mean.

A round:
  1. The server sends w to the participants.
  2. Client i takes tau full-batch gradient steps of rate beta, or E epochs of steps on mini-batches
     of B examples, from its w_i on f_i(w_i) + (lambda / 2) ||w_i - w||^2, with momentum m.
  3. It keeps the result as its new w_i, and uploads w_i - w.
  4. The server moves w by the N_i-weighted mean over the participants, as in FedAvg.

Served: the client's last w_i. The server keeps w, and client i keeps w_i.

  paper    here                    shape
  w        SharedState.weights     body and classifier
  w_i      PersonalState.weights   the same; it starts as w does
  lambda   proximal_weight
  tau      local_steps             where batch_size is 0
  B, E     batch_size, local_epochs
  beta     client_learning_rate

Differences from the paper: all clients participate in its rounds, and here w is the mean of the
participants. The authors' program adds the mean of the w_i's moves to w, which is the same with
full participation and equal starts. Their noise is for a client's examples, and docs/privacy.md has
noise on uploads.
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
class MrMtlConfig(AveragingServer, StepsOrMiniBatches):
    """Hyper-parameters of MR-MTL."""

    proximal_weight: float = settings.proximal_weight()


def build_mr_mtl(model: SplitModel, config: MrMtlConfig) -> Algorithm:
    """Returns MR-MTL for `model`."""
    model = model.with_shared_classifier()

    def client_update(sent, state, client, round_):
        loss = near(model.loss, sent, config.proximal_weight)
        weights = config.minimize(loss, state.weights, client)
        moved = nests.subtract(weights, sent)
        return ClientResult(weights, PersonalState(weights), averaged=moved)

    def init_client(server, seed, classes):
        return PersonalState(model.initial_weights())

    served = {"personalized": lambda server, client: client.weights}
    return average("mr_mtl", model, config, client_update, init_client=init_client, served=served)
