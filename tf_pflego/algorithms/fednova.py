"""FedNova: FedAvg with clients weighted by their examples, at any number of steps.

Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization".
Learnt: one network x for all. In FedAvg, clients with more examples take more steps, and therefore
count twice.

A round:
  1. The server sends x to the participants.
  2. Client i takes steps of rate eta with momentum m from x, E epochs of mini-batches, to x_i.
  3. It uploads its normalised move (x_i - x) / ||a_i||_1, and ||a_i||_1, the sum of the weights of
     the gradients of its tau_i steps in the move: tau_i without momentum.
  4. The server sets tau_eff = mean_i ||a_i||_1 and x <- x + tau_eff mean_i (x_i - x) / ||a_i||_1.
     Both means over the participants are weighted by N_i.

Served: the newest x, the result of step 4, or x fine-tuned as in FedAvg. The server keeps x, and a
client keeps nothing.

  paper        here                      shape
  x            SharedState.weights       body and classifier
  ||a_i||_1    config.gradient_weight    []
  p_i          client.client_weight      [], the weights of `ClientResult.averaged`
  eta          client_learning_rate
  m            momentum                  rho in the paper

Differences from the paper: the means are over a round's participants, as in the authors' program,
which has the same tau_eff. The paper's momentum at the server is `server_optimizer`; the proximal
term and the other local optimisers that it normalises are left out.
"""

import dataclasses

from tf_pflego.algorithms.fedavg import average
from tf_pflego.core import nests
from tf_pflego.core.algorithm import Algorithm, ClientResult
from tf_pflego.core.local_training import MiniBatchSgd, ServesOneNetwork
from tf_pflego.core.optimizers import AveragingServer
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class FedNovaConfig(AveragingServer, MiniBatchSgd, ServesOneNetwork):
    """Hyper-parameters of FedNova."""


def build_fednova(model: SplitModel, config: FedNovaConfig) -> Algorithm:
    """Returns FedNova for `model`."""
    model = model.with_shared_classifier()

    def client_update(sent, state, client, round_):
        weights = config.minimize(model.loss, sent, client)
        count = config.gradient_weight(client)
        normalized = nests.scale(1 / count, nests.subtract(weights, sent))
        return ClientResult(weights, averaged=(normalized, count))

    def move(averaged):
        normalized, count = averaged
        return nests.scale(count, normalized)

    served = {"generic": config.served(model)}
    return average("fednova", model, config, client_update, move=move, served=served)
