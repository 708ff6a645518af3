"""FedCP: a policy splits the features of each example between a global and a personal head.

Zhang et al., "FedCP: Separating Feature Information for Personalized Federated Learning via
Conditional Policy", KDD 2023, with linear heads. Learnt: a body theta, a head G and a policy for
all, and a head P_i per client. For features h the policy gives shares r, [M], in (0, 1), and a
client predicts by G (r h, 1) + P_i ((1 - r) h, 1).

A round:
  1. The server sends theta, G and the policy to the participants.
  2. Client i adds up the rows of P_i without biases, and scales the sum to norm 1: v_i. The policy
     is dense over v_i h, layer normalisation, ReLU, and a softmax over two outputs per feature.
  3. On each mini-batch it takes a step on theta, the policy and P_i, along the gradient of the loss
     plus lambda times the MMD between the features and those by the theta that was sent.
  4. It uploads the differences of theta, the policy and (G + P_i) / 2 from the received values; P_i
     stays.
  5. The server moves theta, the policy and G by the N_i-weighted mean over the participants.

Served: the newest theta, policy and G with the client's last P_i. The paper could not be read.
PFLlib (d832e76) sends theta to all clients after each round, G and the policy to participants.

MMD is the mean of k(h_a, h_b) + k(h'_a, h'_b) - 2 k(h_a, h'_b) over all pairs of a batch, for the
kernel k(x, y) = sum_c exp(-|x - y|^2 / (2 c)) with c = 10, 15, 20, 50.

  paper    here                   shape
  W^fe     Weights.theta          the body's weights, followed by the policy's weights:
  Theta                           dense [2 M, M + 1], scale [2 M], offset [2 M]
  W^hd     Weights.head           [K, M + 1], G
  W_i^hd   HeadState.head         [K, M + 1], P_i; G at first
  lambda   mmd_weight

Differences from the paper: P_i starts as the G of the client's first round, not of the run's, and
the policy from Glorot's uniform distribution. With linear heads v_i is the same for all and
constant, since steps keep the sum of the rows. The authors' program adds Gumbel noise in the
softmax, also in tests, and starts v_i at random. Here nothing is random. Its MMD is the same as
here.
"""

import dataclasses

import tensorflow as tf

from tf_pflego.algorithms.fedavg import average
from tf_pflego.algorithms.fedper import HeadState
from tf_pflego.core import nests, seeds, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult, Served, Weights
from tf_pflego.core.local_training import MiniBatchSgd
from tf_pflego.core.optimizers import AveragingServer
from tf_pflego.core.tasks import CLASSIFICATION, flat
from tf_pflego.models.extended import extended, normalized, splitting
from tf_pflego.models.heads import head as head_lib
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class FedCPConfig(AveragingServer, MiniBatchSgd):
    """Hyper-parameters of FedCP."""

    mmd_weight: float = settings.setting(
        5.0, "lambda, weight of the distance of features from the server's in FedCP", at_least=0
    )


def build_fedcp(model: SplitModel, config: FedCPConfig) -> Algorithm:
    """Returns FedCP for `model`."""
    model.refuse_other_tasks("fedcp", (CLASSIFICATION,), "It is defined for classes.")
    model = model.with_shared_classifier()
    size = model.num_features
    whole = extended(model, splitting(model.positions, size))

    def with_policy(start):
        dense = head_lib.glorot(seeds.integer(model.seed, "policy"), 2 * size, size)
        policy = dense, tf.ones([2 * size]), tf.zeros([2 * size])
        return start._replace(theta=[*start.theta, *policy])

    def served(shared, personal):
        *theta, dense, scale, offset = shared.theta
        kernel = _direction(personal)[:, None] * tf.transpose(dense[:, :-1])
        theta = [*theta, kernel, dense[:, -1], scale, offset]
        return Weights(theta, _joined(shared.head, personal))

    def client_update(sent, state, client, round_):
        direction = _direction(state.head)

        def loss(weights, batch):
            *theta, dense, scale, offset = weights.theta
            features = model.features(theta, batch)
            outputs = normalized(head_lib.logits(dense, direction * features), scale, offset)
            first, second = tf.split(tf.nn.relu(outputs), 2, axis=-1)
            share = tf.sigmoid(first - second)
            parts = tf.concat([share * features, (1 - share) * features], axis=-1)
            head = _joined(sent.head, weights.head)
            value = model.head_loss(head, batch._replace(examples=parts))
            if config.mmd_weight:
                before = model.features(sent.theta[:-3], batch)
                pair = (flat(one, batch.labels)[0] for one in (features, before))
                value += config.mmd_weight * _mmd(*pair)
            return value

        trained = config.minimize(loss, Weights(sent.theta, state.head), client)
        moved = nests.subtract(trained._replace(head=(sent.head + trained.head) / 2), sent)
        weights = served(trained._replace(head=sent.head), trained.head)
        return ClientResult(weights, HeadState(trained.head), averaged=moved)

    models = {"personalized": Served(lambda s, c: served(s.weights, c.head), whole.predict)}
    fields: dict = {"init_client": lambda s, *given: HeadState(s.weights.head), "served": models}
    return average("fedcp", model, config, client_update, with_policy, **fields)


def _direction(head):
    """Returns v_i, [M]."""
    return tf.math.l2_normalize(tf.reduce_sum(head[:, :-1], axis=0))


def _joined(head, personal):
    """Returns the head [K, 2 M + 1] over both parts of the features."""
    return tf.concat([head[:, :-1], personal[:, :-1], head[:, -1:] + personal[:, -1:]], axis=1)


def _mmd(first, second):
    def kernel(x, y):
        squares = tf.reduce_sum(tf.square(x[:, None] - y), axis=-1)
        return tf.add_n([tf.reduce_mean(tf.exp(-squares / (2 * c))) for c in (10, 15, 20, 50)])

    return kernel(first, first) + kernel(second, second) - 2 * kernel(first, second)
