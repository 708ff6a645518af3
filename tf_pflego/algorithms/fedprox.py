"""FedProx: FedAvg with clients that are kept near the server's weights.

Li et al., "Federated Optimization in Heterogeneous Networks", in the full-batch form that the
PFLEGO paper compares with. Learnt: one body and one classifier.

A round:
  1. The server sends the whole network theta_t to the participants.
  2. Client i takes tau full-batch gradient steps of rate beta, or E epochs of steps on mini-batches
     of B examples, from theta_t on l_i(theta) + (mu / 2) ||theta - theta_t||^2, with momentum m.
  3. It uploads the result minus theta_t.
  4. The server moves theta by the N_i-weighted mean over the participants, as in FedAvg.

Served: the newest theta, w^(t+1) of Algorithm 2, fine-tuned as in FedAvg with `fine_tuning_steps`.
The server keeps theta, and a client keeps nothing.

  paper    here                    shape
  theta    Weights                 body and classifier
  mu       proximal_weight
  tau      local_steps             where batch_size is 0
  B, E     batch_size, local_epochs
  beta     client_learning_rate

Differences from the paper: clients take a fixed number of steps instead of solving to a given
inexactness.
"""

import dataclasses

from tf_pflego.algorithms.fedavg import average
from tf_pflego.core import nests, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult
from tf_pflego.core.local_training import ServesOneNetwork, StepsOrMiniBatches, near
from tf_pflego.core.optimizers import AveragingServer
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class FedProxConfig(AveragingServer, StepsOrMiniBatches, ServesOneNetwork):
    """Hyper-parameters of FedProx."""

    proximal_weight: float = settings.proximal_weight()


def build_fedprox(model: SplitModel, config: FedProxConfig) -> Algorithm:
    """Returns FedProx for `model`."""
    model = model.with_shared_classifier()

    def client_update(sent, state, client, round_):
        loss = near(model.loss, sent, config.proximal_weight)
        weights = config.minimize(loss, sent, client)
        return ClientResult(weights, averaged=nests.subtract(weights, sent))

    served = {"generic": config.served(model)}
    return average("fedprox", model, config, client_update, served=served)
