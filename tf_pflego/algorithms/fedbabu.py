"""FedBABU: only the body is learnt, under a head that never moves.

Oh, Kim and Yun, "FedBABU: Toward Enhanced Representation for Federated Image Classification", in
the full-batch form that the PFLEGO paper compares with. Learnt: a feature extractor theta.

A round:
  1. The server sends theta to the participants.
  2. Client i takes tau full-batch gradient steps with momentum m and rate beta on its copy theta_i,
     or E epochs of such steps on mini-batches of B examples, while the head W stays fixed.
  3. It uploads theta_i - theta.
  4. The server moves theta by the N_i-weighted mean over the participants, as in FedAvg.

Served: the newest theta under W, which Algorithm 1 returns, after f full-batch steps, or f epochs,
on both, of rate beta without momentum, on the client's own data. Their result is not kept. The
server keeps theta, and a client keeps nothing.

  paper    here                    shape
  theta    theta                   list of the body's weights
  W        head                    [K, M + 1], orthonormal rows, no bias; the same for all clients,
                                   and constant during the run
  m        momentum
  f        fine_tuning_steps       0 in the PFLEGO paper
  tau      local_steps             where batch_size is 0
  B, E     batch_size, local_epochs
  beta     client_learning_rate

Differences from the paper: steps are full-batch unless a batch size is given. The paper has only
classes, and other tasks are learnt in the same way. The rows of W, being random, have elements of
both signs, and features of one sign predict numbers of both.
"""

import dataclasses

import tensorflow as tf

from tf_pflego.algorithms.fedavg import average
from tf_pflego.core import nests, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult, Weights
from tf_pflego.core.local_training import ServesOneNetwork, StepsOrMiniBatches
from tf_pflego.core.optimizers import AveragingServer
from tf_pflego.models.heads import head as head_lib
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class FedBabuConfig(AveragingServer, StepsOrMiniBatches, ServesOneNetwork):
    """Hyper-parameters of FedBABU."""

    momentum: float = settings.momentum()


def build_fedbabu(model: SplitModel, config: FedBabuConfig) -> Algorithm:
    """Returns FedBABU for `model`."""
    model = model.with_shared_classifier()
    fixed_head = head_lib.orthogonal(model.seed, model.num_classes, model.num_features)

    def with_head(theta):
        return Weights(theta, tf.constant(fixed_head))

    def client_update(sent, state, client, round_):
        def loss(theta, batch):
            return model.loss(with_head(theta), batch)

        theta = config.minimize(loss, sent, client)
        return ClientResult(with_head(theta), averaged=nests.subtract(theta, sent))

    served = {"generic": config.served(model, lambda server, _: with_head(server.weights))}
    return average("fedbabu", model, config, client_update, lambda w: w.theta, served=served)
