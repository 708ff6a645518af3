"""FedAvg: federated averaging of one model for all clients.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", and the
full-batch form that the PFLEGO paper compares with (Algorithm 3 of its first version). What is
learnt: one body and one classifier.

A round:
  1. The server sends the whole network to the participants.
  2. Client i takes tau full-batch gradient steps of rate beta on a copy of it, or E epochs of steps
     on mini-batches of B examples, with momentum m.
  3. It uploads its copy, weighted by N_i.
  4. The server takes the N_i-weighted mean over the participants.

The server keeps the network; a client keeps nothing.

  paper    here                    shape
  theta    Weights.theta           list of the body's weights
           Weights.head            [K, M + 1], the classifier; K is the largest number of classes
                                   of any client
  tau      local_steps             where batch_size is 0
  B, E     batch_size, local_epochs
  beta     client_learning_rate
  alpha_i  client.client_weight    []

Differences from the paper: none in the result. The classifier starts from Glorot's uniform
distribution, with zero bias.
"""

import dataclasses

from tf_pflego.algorithms.averaging import MeanAtServer, average_model
from tf_pflego.core.algorithm import Algorithm
from tf_pflego.core.local_training import StepsOrMiniBatches
from tf_pflego.models.split import SplitModel


@dataclasses.dataclass(frozen=True)
class FedAvgConfig(MeanAtServer, StepsOrMiniBatches):
    """Hyper-parameters of FedAvg."""


def build_fedavg(model: SplitModel, config: FedAvgConfig) -> Algorithm:
    """Returns FedAvg for `model`."""
    model = model.with_shared_classifier()

    def local_update(weights, client):
        return config.minimize(model.loss, weights, client)

    return average_model("fedavg", model, config, local_update)
