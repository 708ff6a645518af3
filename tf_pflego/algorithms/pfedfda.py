"""pFedFDA: a shared body under a classifier that follows from how its features are distributed.

Mclaughlin and Su, "Personalized Federated Learning via Feature Distribution Adaptation". Features
of class c are modelled as Gaussian with mean mu_c and covariance Sigma. The head is their linear
discriminant analysis, with rows Sigma^-1 mu_c and biases log pi_c - mu_c^T Sigma^-1 mu_c / 2, where
pi_c is the share of the class. Learnt: a body theta, and mu and Sigma for all clients.

A round:
  1. The server sends theta, mu and Sigma. Client i makes its head of mu, Sigma and its pi_i.
  2. It takes steps on mini-batches only on theta, under this head, with momentum m.
  3. It estimates mu_i and Sigma_i from its features under the new body, adds a I to Sigma_i, which
     stabilises it with few examples, and mixes the share b_i of these in: b_i mu_i + (1 - b_i) mu,
     and equally for Sigma. b_i is the value among 0, 1/4, 1/2, 3/4 and 1 that predicts best, each
     half of its examples from estimates of the other half.
  4. It uploads the differences of its body, means and covariance from the received values.
  5. The server adds the N_i-weighted means of these. Eigenvalues of Sigma below 0, which only noise
     or attacks on uploads cause, become 0.

Served: the newest theta under the head of step 3's mixtures, which the client computes with this
theta, mu and Sigma, also if it is new. The server keeps these, and a client keeps nothing.

  paper      here                   shape
  theta      Features.theta         list of the body's weights
  mu, Sigma  means, covariance      [C, M], [M, M]; at first Uniform[0, 1) and the identity
  b_i        share                  []; beta in the paper
  epsilon    covariance_shrinkage   e: a head is made of (1 - e) Sigma + e tr(Sigma) / M

  a          covariance_identity    1, as in the authors' program, which has an e of 0.0001

Differences from the paper: b_i is one of five numbers. The authors' program takes it from ten steps
of L-BFGS, with a second number for Sigma. It gathers features during the epochs, and here they come
from the trained body. A mean takes three examples of the class, and here one for a mean and two for
Sigma_i. With fewer, a client has the server's. As there, 0.0001 is added to each pi_c, but not, as
there, to each entry of Sigma_i.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from tf_pflego.core import nests, seeds, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult, Served, Weights
from tf_pflego.core.local_training import MiniBatches
from tf_pflego.core.tasks import CLASSIFICATION, flat
from tf_pflego.models.heads.gaussian import discriminant, interpolated
from tf_pflego.models.heads.head import ABSENT_LOGIT
from tf_pflego.models.personalization import HeadRule
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class PFedFdaConfig(MiniBatches):
    """Hyper-parameters of pFedFDA."""

    covariance_shrinkage: float = settings.setting(
        0.01, "e, how far pFedFDA shrinks a covariance to that of a sphere", above=0, at_most=1
    )
    covariance_identity: float = settings.setting(
        1.0, "a, multiple of the identity in each client's covariance in pFedFDA", at_least=0
    )


class Features(NamedTuple):
    """The state that the server keeps and sends."""

    theta: list
    means: tf.Tensor  # [C, M], mu
    covariance: tf.Tensor  # [M, M], Sigma


def build_pfedfda(model: SplitModel, config: PFedFdaConfig) -> Algorithm:
    """Returns pFedFDA for `model`."""
    model.refuse_other_tasks("pfedfda", (CLASSIFICATION,), "Its head follows from classes' means.")
    k, c, m = model.num_classes, model.num_global_classes, model.num_features

    def init_server(federation):
        means = tf.constant(seeds.generator(model.seed, "means").random((c, m)), tf.float32)
        return Features(model.initial_weights().theta, means, tf.eye(m))

    def known(sent, client):
        """Returns mu [K, M] of its classes with Sigma, and the function that makes heads."""
        labels = tf.reshape(client.labels, [-1])  # Positions of a sequence without one are -1.
        counts = tf.reduce_sum(tf.one_hot(labels, k), axis=0)
        priors = tf.math.log(counts / tf.reduce_sum(counts) + 1e-4)
        priors = tf.where(client.classes >= 0, priors, ABSENT_LOGIT)
        means = tf.linalg.matmul(tf.one_hot(client.classes, c), sent.means)
        return (means, sent.covariance), lambda means, covariance: discriminant(
            means, covariance, priors, config.covariance_shrinkage
        )

    def adapted(theta, of_all, head_of, client):  # step 3
        features, labels = flat(model.features(theta, client), client.labels)
        identity = config.covariance_identity
        return interpolated(features, tf.one_hot(labels, k), of_all, head_of, identity)

    def client_update(sent, state, client, round_):
        of_all, head_of = known(sent, client)
        head = head_of(*of_all)
        theta = config.minimize(
            lambda theta, batch: model.loss(Weights(theta, head), batch), sent.theta, client
        )
        means, covariance = nests.subtract(adapted(theta, of_all, head_of, client), of_all)
        means = tf.linalg.matmul(tf.one_hot(client.classes, c), means, transpose_a=True)
        moved = Features(nests.subtract(theta, sent.theta), means, covariance)
        return ClientResult(sent._replace(theta=theta), averaged=moved)

    def server_update(server, uploads, round_):
        server = nests.add(server, uploads.averaged)
        values, vectors = tf.linalg.eigh(tf.cast(server.covariance, tf.float64))
        covariance = tf.linalg.matmul(tf.nn.relu(values) * vectors, vectors, transpose_b=True)
        return server._replace(covariance=tf.cast(covariance, tf.float32))

    def personal_model(sent, client):
        of_all, head_of = known(sent, client)
        return Weights(sent.theta, head_of(*adapted(sent.theta, of_all, head_of, client)))

    personal = Served(lambda server, _: server, model.predict, personal_model, HeadRule(model))
    return Algorithm.with_one_exchange(
        "pfedfda",
        model,
        init_server=init_server,
        broadcast=lambda server, round_: server,
        client_update=client_update,
        server_update=server_update,
        served={"personalized": personal},
        uses_global_classes=True,
    )
