"""IFCA: a network for each cluster of clients, and each client finds its cluster in every round.

Ghosh, Chung, Yin and Ramchandran, "An Efficient Framework for Clustered Federated Learning",
Algorithm 1 with model averaging. Learnt: k networks theta_1 .. theta_k.

A round:
  1. The server sends all k networks to the participants.
  2. Client i finds its cluster: the network of the least loss on all its training examples, and of
     equal ones the first.
  3. It takes tau full-batch gradient steps of rate beta on a copy of that network, or E epochs of
     steps on mini-batches of B examples, with momentum m.
  4. It uploads k differences and k weights. For its own cluster they are the change of its copy and
     alpha_i, and for the remaining clusters 0.
  5. The server moves each network by the N_i-weighted mean difference of the participants that
     chose it. A network that no participant chose does not change.

Served: the newest network of the least loss on the client's training examples, the cluster estimate
of Algorithm 1, also for new clients. The server keeps the k networks, and a client keeps nothing.

  paper    here                    shape
  theta_j  Clusters.models         body and classifier, each leaf [k, ...]
  k        num_clusters
  s_ij     `ours` in client_update [k], 1 at the client's cluster
  tau      local_steps             where batch_size is 0
  B, E     batch_size, local_epochs
  beta     client_learning_rate
  alpha_i  client.client_weight    []

With k = 1 this is FedAvg.

Differences from the paper: the mean is weighted by N_i, where the paper has equal weights. All
networks start from the same body, since it may be pre-trained, each with another classifier of
Glorot's uniform distribution. The paper initialises whole networks, and restarts failed runs. Steps
are full-batch unless a batch size is given.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from tf_pflego.core import nests, seeds, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult, Served, Weights
from tf_pflego.core.local_training import StepsOrMiniBatches
from tf_pflego.models.heads import head as head_lib
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class IfcaConfig(StepsOrMiniBatches):
    """Hyper-parameters of IFCA."""

    num_clusters: int = settings.setting(
        2, "k, number of networks that IFCA learns, each for a cluster of clients", at_least=1
    )


class Clusters(NamedTuple):
    """The state that the server keeps and sends."""

    models: Weights  # each leaf [k, ...], theta_1 .. theta_k


def build_ifca(model: SplitModel, config: IfcaConfig) -> Algorithm:
    """Returns IFCA for `model`."""
    model, k = model.with_shared_classifier(), config.num_clusters

    def init_server(federation):
        theta, first = model.initial_weights()
        drawn = (seeds.integer(model.seed, "cluster", j) for j in range(1, k))
        heads = [head_lib.glorot(seed, model.num_classes, model.num_features) for seed in drawn]
        bodies = [tf.stack([leaf] * k) for leaf in theta]
        return Clusters(Weights(bodies, tf.stack([first, *heads])))

    def choice(sent, client):
        """Returns [] int64 the cluster of a client, and its network."""
        losses = tf.map_fn(
            lambda one: model.loss(one, client), sent.models, fn_output_signature=tf.float32
        )
        cluster = tf.argmin(losses)
        return cluster, tf.nest.map_structure(lambda leaf: tf.gather(leaf, cluster), sent.models)

    def client_update(sent, state, client, round_):
        cluster, start = choice(sent, client)
        moved = nests.subtract(config.minimize(model.loss, start, client), start)
        ours = tf.one_hot(cluster, k)
        moved = tf.nest.map_structure(lambda leaf: tf.tensordot(ours, leaf, axes=0), moved)
        share = nests.scale(client.client_weight, (moved, ours))
        return ClientResult(Clusters(nests.add(sent.models, moved)), summed=share)

    def server_update(server, uploads, round_):
        moved, weights = uploads.summed

        def mean(leaf):
            each = tf.reshape(weights, [k] + [1] * (leaf.shape.rank - 1))
            return tf.math.divide_no_nan(leaf, each)

        return Clusters(nests.add(server.models, tf.nest.map_structure(mean, moved)))

    network = Served(
        lambda server, client: server, model.predict, lambda sent, client: choice(sent, client)[1]
    )
    return Algorithm.with_one_exchange(
        "ifca",
        model,
        init_server=init_server,
        broadcast=lambda server, round_: server,
        client_update=client_update,
        server_update=server_update,
        served={"personalized": network},
    )
