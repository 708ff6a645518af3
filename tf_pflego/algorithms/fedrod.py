"""FedRoD: one body with two heads, a shared generic head and a personal head.

Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification",
with linear heads. Learnt: a body theta and a generic head G for all, a head P_i per client.

A round:
  1. The server sends theta and G to the participants.
  2. For each mini-batch client i takes a step on theta and G with the balanced softmax (to each
     logit is added the log of the share of its class in the client's data), and one on P_i with the
     softmax of (G + P_i) phi, where G and the features phi count as fixed.
  3. It uploads by what its theta and G differ from the server's, and keeps P_i.
  4. The server moves theta and G by the N_i-weighted mean over the participants, as in FedAvg.

Served: the newest theta under the newest G + the last P_i, the paper's personalized prediction, or
under G, its generic prediction. The server keeps theta and G, and client i keeps P_i.

  paper    here                    shape
  theta    SharedState.weights     body, with G as its head
  G        Weights.head            [K, M + 1], the last column is the bias
  P_i      HeadState.head          [K, M + 1]; 0 at first

Differences from the paper: none for linear heads. The personal head's step uses the features and G
as they are before the batch's step on them.
"""

import dataclasses

import tensorflow as tf

from tf_pflego.algorithms.fedavg import average
from tf_pflego.algorithms.fedper import HeadState
from tf_pflego.core import nests
from tf_pflego.core.algorithm import Algorithm, ClientResult, Weights
from tf_pflego.core.local_training import MiniBatchSgd
from tf_pflego.core.optimizers import AveragingServer
from tf_pflego.core.tasks import CLASSIFICATION
from tf_pflego.models.heads.head import ABSENT_LOGIT, add_to_bias
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class FedRodConfig(AveragingServer, MiniBatchSgd):
    """Hyper-parameters of FedRoD."""


def build_fedrod(model: SplitModel, config: FedRodConfig) -> Algorithm:
    """Returns FedRoD for `model`."""
    reason = "Its balanced softmax counts the examples of each class."
    model.refuse_other_tasks("fedrod", (CLASSIFICATION,), reason)
    model = model.with_shared_classifier()

    def log_shares(client):
        """Returns [K], the log of the share of each class, or -1e9 without examples."""
        labels = tf.reshape(client.labels, [-1])  # Positions of a sequence without one are -1.
        counts = tf.reduce_sum(tf.one_hot(labels, model.num_classes), axis=0)
        shares = counts / tf.reduce_sum(counts)
        return tf.where(counts > 0, tf.math.log(tf.maximum(shares, 1e-30)), ABSENT_LOGIT)

    def client_update(sent, state, client, round_):
        shares, optimizer = log_shares(client), config.optimizer(client)

        def step(carry, batch):
            (shared, personal), memory = carry
            features, pull_back = model.features_and_pull_back(shared.theta, batch)
            loss = model.head_objective(features, batch)
            balanced = add_to_bias(shared.head, shares)
            errors = loss.errors(balanced)
            g_theta = pull_back(loss.features_gradient(errors, balanced))
            g_shared = Weights(g_theta, loss.head_gradient(errors))
            g_personal = loss.head_gradient(loss.errors(shared.head + personal))
            return optimizer.apply((g_shared, g_personal), memory, (shared, personal))

        start = sent, state.head
        carry = start, optimizer.init(start)
        (shared, personal), _ = config.over_batches(step, carry, client)
        both = Weights(shared.theta, shared.head + personal)
        moved = nests.subtract(shared, sent)
        return ClientResult(both, HeadState(personal), averaged=moved)

    def init_client(server, seed, classes):
        return HeadState(tf.zeros_like(server.weights.head))

    def both_heads(server, client):
        return Weights(server.weights.theta, server.weights.head + client.head)

    served = {"personalized": both_heads, "generic": lambda server, client: server.weights}
    return average("fedrod", model, config, client_update, init_client=init_client, served=served)
