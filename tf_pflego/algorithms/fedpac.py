"""FedPAC: features are kept near the centroids of their classes, and heads are combined by need.

Xu et al., "Personalized Federated Learning with Feature Alignment and Classifier Collaboration".
Learnt: for all clients a body theta and a centroid c_k of the features of each class, and a linear
head W_i for each client.

A round:
  1. The server sends theta and the centroids. From features phi under theta, client i finds h_i,
     each class' share of the examples times their mean, and v_i = (mean |phi|^2 - |h_i|^2) / N_i.
  2. It takes steps on mini-batches on W_i over these features, then on theta_i under W_i with
     lambda times the mean of (phi - c_y)^2 in the loss. Without a centroid c_y, an example adds 0.
  3. It uploads theta_i - theta, W_i, h_i and v_i, and shares and h_i of the features under theta_i.
  4. The server moves theta by the N_i-weighted mean. c_k becomes the mean of the participants'
     features of class k, if there are any. For client i it finds a_ij, at least 0 and of sum 1 over
     the participants j, of the least sum_j a_ij^2 v_j + |h_i - sum_j a_ij h_j|^2.
  5. In a second exchange it sends client i theta, and sum_j a_ij W_j as its new W_i, with only the
     participants of its class in each row. No client therefore waits for its next participation.

Served: the newest theta with the W_i of the client's last step 5. The paper could not be read. The
authors' program (5770f4f) and PFLlib (d832e76) combine and serve heads in this way. The server
keeps theta, the centroids and its last messages, and client i keeps W_i.

  paper     here                    shape
  theta     ServerState.weights     list of the body's weights
  c         centroids, known        [C, M], [C, 1]
  W_i       HeadState.head          [K, M + 1]
  h_i, v_i  moments                 [C, M], []
  lambda    centroid_weight

With lambda 0 and one participant in each round, it is FedRep.

Differences from the paper: heads start from Uniform[0, 1), as in FedRep, and clients may lack
classes. The authors' program keeps features of a class without centroid near the client's own mean,
gives the head a separate rate, decays weights, and drops a_ij below 0.001.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from tf_pflego.algorithms.fedper import HeadState, average_body
from tf_pflego.core import nests, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult, Exchange, Weights
from tf_pflego.core.last_cohort import LastCohort
from tf_pflego.core.local_training import MiniBatches
from tf_pflego.core.optimizers import AveragingServer
from tf_pflego.core.tasks import CLASSIFICATION
from tf_pflego.models.heads.combined import by_class, combined, moments
from tf_pflego.models.personalization import HeadRule
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class FedPacConfig(AveragingServer, MiniBatches):
    """Hyper-parameters of FedPAC."""

    momentum: float = settings.momentum(0.5)
    head_epochs: int = settings.head_epochs(1)
    centroid_weight: float = settings.setting(
        1.0, "lambda, pull of FedPAC's features towards the centroids of classes", at_least=0
    )


class ServerState(NamedTuple):
    """The state that the server keeps."""

    weights: list  # theta
    centroids: tf.Tensor  # [C, M]
    known: tf.Tensor  # [C, 1] float32, 1 for each class that has a centroid
    combined: LastCohort  # [C, M + 1], the heads for the last participants
    optimizer: Any = ()  # the state of the server's optimiser


def build_fedpac(model: SplitModel, config: FedPacConfig) -> Algorithm:
    """Returns FedPAC for `model`."""
    model.refuse_other_tasks("fedpac", (CLASSIFICATION,), "It takes means of each class.")
    c, m, optimizer = model.num_global_classes, model.num_features, config.server()

    def init_server(federation):
        theta, nobody = model.initial_weights().theta, LastCohort.nobody(tf.zeros([c, m + 1]))
        return ServerState(theta, tf.zeros([c, m]), tf.zeros([c, 1]), nobody, optimizer.init(theta))

    def train(message, state, client, round_):
        sent, centroids, known = message
        features = model.features(sent, client)
        _, h, v = moments(*by_class(features, client, c))
        fixed, epochs = client._replace(examples=features), config.head_epochs
        head = config.minimize(model.head_loss, state.head, fixed, epochs, stream=1)

        def loss(theta, batch):
            features = model.features(theta, batch)
            each, members = by_class(features, batch, c)
            apart = tf.linalg.matmul(members, known) * (each - tf.linalg.matmul(members, centroids))
            pull = config.centroid_weight * tf.reduce_mean(tf.square(apart))
            return model.head_loss(head, batch._replace(examples=features)) + pull

        theta = config.minimize(loss, sent, client)
        shares, means, _ = moments(*by_class(model.features(theta, client), client, c))
        share = nests.scale(client.client_weight, (shares[:, None], means))
        moved, rows = nests.subtract(theta, sent), tf.one_hot(client.classes, c)
        alone = tf.linalg.matmul(rows, head, transpose_a=True), tf.reduce_sum(rows, axis=0), h, v
        return ClientResult(Weights(theta, head), HeadState(head), share, moved, alone)

    def combine(server, uploads, round_):
        shares, sums = uploads.summed
        means = tf.where(shares > 0, tf.math.divide_no_nan(sums, shares), server.centroids)
        known = tf.where(shares > 0, 1.0, server.known)
        heads = LastCohort(uploads.client_ids, combined(*uploads.individual))
        server = server._replace(centroids=means, known=known, combined=heads)
        return optimizer.follow(uploads.averaged, server, round_)

    def to_each(server, ids, round_):
        own = tf.cast(tf.equal(ids[:, None], server.combined.ids), tf.float32)
        return nests.weighted_sums(own, server.combined.kept)

    def take_head(theta, state, client, round_):
        head = tf.linalg.matmul(tf.one_hot(client.classes, c), client.message)
        return ClientResult(Weights(theta, head), HeadState(head))

    exchanges = (
        Exchange(lambda s, _: (s.weights, s.centroids, s.known), train, combine),
        Exchange(lambda s, _: s.weights, take_head, lambda s, *_: s, to_each),
    )
    fedper = average_body("fedpac", model, config, lambda weights, _: weights, HeadRule(model))
    fedper = dataclasses.replace(fedper, init_server=init_server, uses_global_classes=True)
    return dataclasses.replace(fedper, exchanges=exchanges)
