"""FedAS: a shared body that each client first moves near its own last body, under its own head.

Yang, Huang and Ye, "FedAS: Bridging Inconsistency in Personalized Federated Learning", CVPR 2024.
Learnt: a body theta for all, and for each client a network, theta_i and W_i.

A round:
  1. The server sends theta to the participants.
  2. Client i takes the mean features P_k of each of its classes under its last theta_i.
  3. From theta, it takes steps on mini-batches towards them: their loss is the sum over the classes
     of a batch of the mean over its examples and the features of (phi - P_k)^2. Then it trains this
     body and W_i jointly, and keeps both.
  4. It takes F_i, the mean over mini-batches of the squared norm of the gradient of its loss, an
     estimate of the trace of the Fisher information, and uploads F_i (theta_i - theta) and F_i.
  5. The server moves theta by the mean of theta_i - theta with the weights N_i F_i.

Served: theta_i and W_i of the client's last step 3. The paper could not be read: PFLlib (d832e76)
sends nothing to absentees. The server keeps theta, and client i keeps theta_i and W_i. In its first
round, the received body is its last body. Without alignment, with equal F_i, it is FedPer.

  paper         here                    shape
  theta         SharedState.weights     list of the body's weights
  theta_i, W_i  PersonalState.weights   body and head
  F_i           trace                   []

Differences from the paper: as in its authors' program, the targets are class means, and squared
norms are of batches. There F_i is a sum over batches, where N_i represents their number, and bodies
are aligned in batches of 16.
"""

import dataclasses

import tensorflow as tf

from tf_pflego.algorithms.fedavg import average
from tf_pflego.algorithms.local import PersonalState
from tf_pflego.core import nests, optimizers, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult, Weights
from tf_pflego.core.local_training import MiniBatchSgd, gradient, minimize, over_batches
from tf_pflego.core.optimizers import AveragingServer
from tf_pflego.core.tasks import CLASSIFICATION, flat
from tf_pflego.models.heads.prototypes import class_sums
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class FedAsConfig(AveragingServer, MiniBatchSgd):
    """Hyper-parameters of FedAS."""

    alignment_epochs: int = settings.setting(
        1, "epochs of FedAS on the body towards the client's last features", at_least=0
    )
    alignment_learning_rate: float = settings.setting(
        0.01, "learning rate of the steps of FedAS towards the client's last features", above=0
    )


def build_fedas(model: SplitModel, config: FedAsConfig) -> Algorithm:
    """Returns FedAS for `model`."""
    reason = "It aligns the mean features of classes."
    model.refuse_other_tasks("fedas", (CLASSIFICATION,), reason)
    aligning = optimizers.sgd(config.alignment_learning_rate)
    batch_size, drop_last = config.batch_size, config.drop_last_batch

    def client_update(sent, state, client, round_):
        sums = class_sums(
            *flat(model.features(state.weights.theta, client), client.labels), model.num_classes
        )
        means = tf.math.divide_no_nan(sums[:, :-1], sums[:, -1:])

        def distance(theta, batch):
            phi, labels = flat(model.features(theta, batch), batch.labels)
            each = tf.reduce_mean(tf.square(phi - tf.gather(means, labels)), axis=1)
            return tf.reduce_sum(tf.math.unsorted_segment_mean(each, labels, model.num_classes))

        epochs = config.alignment_epochs
        theta = minimize(distance, sent, client, aligning, epochs, batch_size, 1, drop_last)
        weights = config.minimize(model.loss, Weights(theta, state.weights.head), client)

        def add(carry, batch):
            slope = gradient(model.loss, weights, batch)
            return carry[0] + nests.inner_product(slope, slope), carry[1] + 1

        zeros = tf.zeros([]), tf.zeros([])
        total, count = over_batches(add, zeros, client, 1, batch_size, 2, drop_last)
        trace = total / count
        moved = nests.scale(trace, nests.subtract(weights.theta, sent))
        return ClientResult(weights, PersonalState(weights), averaged=(moved, trace))

    def move(averaged):
        moved, trace = averaged
        return nests.scale(tf.math.divide_no_nan(1.0, trace), moved)

    def init_client(server, seed, classes):
        return PersonalState(Weights(server.weights, model.uniform_head(seed, classes)))

    served = {"personalized": lambda server, client: client.weights}
    fields: dict = {"init_client": init_client, "served": served, "move": move}
    return average("fedas", model, config, client_update, lambda w: w.theta, **fields)
