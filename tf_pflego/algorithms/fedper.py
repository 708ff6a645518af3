"""FedPer: federated averaging of the body, while each client keeps its own head.

Arivazhagan et al., "Federated Learning with Personalization Layers", in the form that the PFLEGO
paper compares with (Algorithm 2 of its first version). What is learnt: one feature extractor theta
for all clients and a linear head W_i for each client.

A round:
  1. The server sends theta to the participants.
  2. Client i sets theta_i = theta and takes tau full-batch gradient steps of rate beta, or E epochs
     of steps on mini-batches of B examples, on (theta_i, W_i) jointly, with momentum m.
  3. It uploads theta_i, weighted by N_i, and keeps W_i.
  4. The server sets theta to the N_i-weighted mean over the participants.

The server keeps theta; client i keeps W_i.

  paper    here                    shape
  theta    theta                   list of the body's weights
  W_i      HeadState.head          [K, M + 1], the last column is the bias
  tau      local_steps             where batch_size is 0
  B, E     batch_size, local_epochs
  beta     client_learning_rate
  alpha_i  client.client_weight    []

Differences from the paper: none in the result. The server divides the participants' sum of
alpha_i theta_i by their sum of alpha_i, which gives the N_i-weighted mean.
"""

import dataclasses

from tf_pflego.algorithms.averaging import MeanAtServer, average_body
from tf_pflego.core.algorithm import Algorithm
from tf_pflego.core.local_training import StepsOrMiniBatches
from tf_pflego.models.split import SplitModel


@dataclasses.dataclass(frozen=True)
class FedPerConfig(MeanAtServer, StepsOrMiniBatches):
    """Hyper-parameters of FedPer."""


def build_fedper(model: SplitModel, config: FedPerConfig) -> Algorithm:
    """Returns FedPer for `model`."""

    def local_update(weights, client):
        return config.minimize(model.loss, weights, client)

    return average_body("fedper", model, config, local_update)
