"""FedProto: clients share the mean features of each class, and no weights.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022,
Algorithm 1. Learnt: a network theta_i for each client, and a prototype C_j for each class.

A round:
  1. The server sends the prototypes to the participants.
  2. Client i trains its network, on mini-batches, on its loss plus lambda times the mean over the
     examples of the squared distance, a mean over the M features, between an example's features and
     the prototype of its class. A class that has no prototype yet pulls nothing.
  3. It uploads, for each class that it has, the mean of its new features, its own prototype.
  4. The prototype of a class becomes the mean of these over the participants that have it, or
     stays as it is if none has it (equation 6).

Served: the class of the nearest of the client's own prototypes of its last step 3, and before that
by its classifier. The server keeps the prototypes, and client i theta_i and its own.

  paper     here                     shape
  theta_i   ClientState.weights      body and classifier
  C_ij      ClientState.prototypes   [K, M], by the client's own labels
  C_j       ServerState.prototypes   [C, M], by global class
  lambda    prototype_weight

Differences from the paper: equation 8 takes the distance of a client's class means, and step 2 of
each example, as in the authors' program. That program has a client's means of the last epoch, while
its weights move; here they are of its last weights. With prototype_mean=examples all examples of a
class have equal weights, by alpha_i / N_i. All clients have networks of the same shapes.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from tf_pflego.core import settings
from tf_pflego.core.algorithm import Algorithm, ClientResult, Weights
from tf_pflego.core.local_training import MiniBatches
from tf_pflego.core.tasks import CLASSIFICATION, flat
from tf_pflego.models.heads.prototypes import class_means, class_sums, head_of
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class FedProtoConfig(MiniBatches):
    """Hyper-parameters of FedProto."""

    prototype_weight: float = settings.setting(
        1.0, "lambda, weight of the squared distance to the prototypes in FedProto", at_least=0
    )
    prototype_mean: str = settings.setting(
        "clients", "equal weights in FedProto's prototypes", choices=("clients", "examples")
    )
    predicts_by: str = settings.setting(
        "prototypes", "predictor of FedProto's clients", choices=("prototypes", "classifier")
    )


class ServerState(NamedTuple):
    """The state that the server keeps."""

    prototypes: tf.Tensor  # [C, M]
    known: tf.Tensor  # [C] float32, 1 for a class that has a prototype, else 0


class ClientState(NamedTuple):
    """The state of client i."""

    weights: Weights  # theta_i
    prototypes: tf.Tensor  # [K, M], C_ij
    known: tf.Tensor  # [K] float32, 1 for a label that has one, else 0


def build_fedproto(model: SplitModel, config: FedProtoConfig) -> Algorithm:
    """Returns FedProto for `model`."""
    reason = "Its prototypes are mean features of classes."
    model.refuse_other_tasks("fedproto", (CLASSIFICATION,), reason)
    num_classes, num_labels = model.num_global_classes, model.num_classes

    def nothing(count):
        return tf.zeros([count, model.num_features]), tf.zeros([count])

    def client_update(server, state, client, round_):
        def loss(weights, batch):
            features = model.features(weights.theta, batch)
            phi, labels = flat(features, batch.labels)  # Of sequences, those of positions.
            classes = tf.gather(batch.classes, labels)
            targets, known = tf.gather(server.prototypes, classes), tf.gather(server.known, classes)
            distances = tf.reduce_mean(tf.square(phi - targets), axis=1)
            supervised = model.head_loss(weights.head, batch._replace(examples=features))
            return supervised + config.prototype_weight * tf.reduce_mean(known * distances)

        weights = config.minimize(loss, state.weights, client)
        phi, labels = flat(model.features(weights.theta, client), client.labels)
        own = class_means(phi, labels, num_labels)
        classes = tf.gather(client.classes, labels)
        share = client.client_weight / tf.cast(tf.size(classes), tf.float32)
        of_examples = share * class_sums(phi, classes, num_classes)
        of_client = class_means(phi, classes, num_classes)
        sums = of_client if config.prototype_mean == "clients" else of_examples
        return ClientResult(weights, ClientState(weights, own[:, :-1], own[:, -1]), summed=sums)

    def server_update(server, uploads, round_):
        sums, counts = uploads.summed[:, :-1], uploads.summed[:, -1]
        reported = counts > 0
        means = tf.math.divide_no_nan(sums, counts[:, None])
        prototypes = tf.where(reported[:, None], means, server.prototypes)
        return ServerState(prototypes, tf.where(reported, 1.0, server.known))

    def served(server, client):
        if config.predicts_by == "classifier":
            return client.weights
        theta, classifier = client.weights
        head, has_any = head_of(client.prototypes, client.known), tf.reduce_any(client.known > 0)
        return Weights(theta, tf.where(has_any, head, classifier))

    return Algorithm.with_one_exchange(
        "fedproto",
        model,
        init_server=lambda federation: ServerState(*nothing(num_classes)),
        init_client=lambda server, seed, classes: ClientState(
            model.initial_weights(), *nothing(num_labels)
        ),
        broadcast=lambda server, round_: server,
        client_update=client_update,
        server_update=server_update,
        served={"personalized": served},
        uses_global_classes=True,
    )
