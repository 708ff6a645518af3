"""GPFL: a valve opens features to the classes of a client, and to embeddings of all classes.

Zhang et al., "GPFL: Simultaneously Learning Global and Personalized Feature Information for
Personalized Federated Learning", ICCV 2023. Learnt: a body theta, embeddings E of the global
classes and a valve for all, a head W_i per client. The valve, a dense layer with ReLU and layer
normalisation, gives gamma(c) and beta(c) for a condition c. A client predicts by W_i (f(p_i), 1),
with f(c) = ReLU((gamma(c) + 1) phi + beta(c)).

A round:
  1. The server sends theta, E and the valve to the participants.
  2. Client i takes conditions from this E: g is the mean over all classes, p_i over its examples.
  3. On each mini-batch it takes a step on theta, E, the valve and W_i, along the gradient of the
     sum of the loss, the cross-entropy of the cosines of f(g) and each embedding, lambda times the
     mean distance of f(g) to its class' received embedding, and mu / 2 |E and the valve|^2.
  4. It uploads the differences of theta, E and the valve from the received values, and keeps the
     rest. The server moves them by the N_i-weighted mean over the participants.

Served: the newest theta and valve with p_i of the newest E and the client's last W_i. The paper
could not be read. PFLlib (d832e76) sends these to all clients after each round.

  paper       here                 shape
  W^fe        SharedState.weights  list of the body's weights, and after them
  E                                [C, M], for C global classes
  valve                            dense [2 M, M + 1], for gamma and beta; scale, offset [2, M]
  W_i^hd, p_i head, shares         [K, M + 1], [C]; before its first round its classes count alike
  lambda, mu  magnitude_weight, valve_decay

Differences from the paper: heads start from Uniform[0, 1), as in FedPer. The authors' program has
conditions of the client's last E, 0 at first, and the norm of a batch in place of its mean.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from tf_pflego.algorithms.fedavg import average
from tf_pflego.core import nests, seeds, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult, Served, Weights
from tf_pflego.core.local_training import MiniBatchSgd
from tf_pflego.core.optimizers import AveragingServer
from tf_pflego.core.tasks import CLASSIFICATION, flat
from tf_pflego.models.extended import affine, extended, normalized
from tf_pflego.models.heads import head as head_lib
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class GPFLConfig(AveragingServer, MiniBatchSgd):
    """Hyper-parameters of GPFL."""

    magnitude_weight: float = settings.setting(
        0.01, "lambda, weight of the distance to the embedding of the class in GPFL", at_least=0
    )
    valve_decay: float = settings.setting(
        0.1, "mu, weight decay of the embeddings and of the valve in GPFL", at_least=0
    )


class ClientState(NamedTuple):
    """The state that client i keeps."""

    head: tf.Tensor  # [K, M + 1] float32, W_i
    shares: tf.Tensor  # [C] float32


def build_gpfl(model: SplitModel, config: GPFLConfig) -> Algorithm:
    """Returns GPFL for `model`."""
    model.refuse_other_tasks("gpfl", (CLASSIFICATION,), "It is defined for classes.")
    size, num_classes = model.num_features, model.num_global_classes
    whole = extended(model, affine(model.positions, size))

    def start(weights):
        embeddings = seeds.generator(model.seed, "embeddings").normal(size=(num_classes, size))
        dense = head_lib.glorot(seeds.integer(model.seed, "valve"), 2 * size, size)
        valve = dense, tf.ones([2, size]), tf.zeros([2, size])
        return [*weights.theta, tf.constant(embeddings, tf.float32), *valve]

    def opened(conditions, dense, scale, offset):
        outputs = tf.nn.relu(head_lib.logits(dense, conditions))
        outputs = normalized(tf.reshape(outputs, [-1, 2, size]), scale, offset)
        return [(one[0] + 1, one[1]) for one in tf.unstack(outputs, conditions.shape[0])]

    def served(shared, client):
        conditions = tf.tensordot(client.shares[None], shared[-4], 1)
        return Weights([*shared[:-4], *opened(conditions, *shared[-3:])[0]], client.head)

    def shares_of(classes):
        return tf.linalg.normalize(tf.reduce_sum(tf.one_hot(classes, num_classes), axis=0), 1)[0]

    def client_update(sent, state, client, round_):
        labels = tf.boolean_mask(client.labels, client.labels >= 0)  # Positions may have none.
        shares, fixed = shares_of(tf.gather(client.classes, labels)), sent[-4]
        conditions = tf.stack([tf.tensordot(shares, fixed, 1), tf.reduce_mean(fixed, axis=0)])

        def loss(weights, batch):
            shared, head = weights
            features = model.features(shared[:-4], batch)
            opening = opened(conditions, *shared[-3:])  # Both at once: else sums have no order.
            f_p, f_g = (tf.nn.relu(scale * features + shift) for scale, shift in opening)
            f_g, labels = flat(f_g, batch.labels)
            labels = tf.gather(batch.classes, labels)
            unit = (tf.math.l2_normalize(x, axis=1) for x in (f_g, shared[-4]))
            cosines = tf.linalg.matmul(*unit, transpose_b=True)
            angle = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, cosines)
            apart = tf.norm(f_g - tf.gather(fixed, labels), axis=1)
            guidance = tf.reduce_mean(angle + config.magnitude_weight * apart)
            decay = config.valve_decay / 2 * nests.inner_product(shared[-4:], shared[-4:])
            return model.head_loss(head, batch._replace(examples=f_p)) + guidance + decay

        shared, head = config.minimize(loss, (sent, state.head), client)
        state, moved = ClientState(head, shares), nests.subtract(shared, sent)
        return ClientResult(served(shared, state), state, averaged=moved)

    def init_client(server, seed, classes):
        return ClientState(model.uniform_head(seed, classes), shares_of(classes))

    models = {"personalized": Served(lambda s, c: served(s.weights, c), whole.predict)}
    fields: dict = {"init_client": init_client, "served": models, "uses_global_classes": True}
    return average("gpfl", model, config, client_update, start, **fields)
