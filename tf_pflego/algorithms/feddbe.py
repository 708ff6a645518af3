"""FedDBE: averaging in which clients keep a bias of their features, and agree on their mean.

Zhang et al., "Eliminating Domain Bias for Federated Learning in Representation Space", with FedAvg.
Learnt: a network w for all, body phi and classifier, and a bias b_i of features per client. First,
all clients train a copy of w as in FedAvg and upload step 2's z_i. Their N_i-weighted mean is z.

A round:
  1. The server sends w and z to the participants.
  2. Client i takes steps on w_i, from w, and on b_i, on mini-batches. The loss is taken at
     phi + b_i, plus kappa times the mean over the features of (z_i - z)^2, where the running mean
     z_i <- (1 - m) z_i + m (mean of phi over the batch) starts from 0.
  3. It uploads w_i - w and keeps b_i. The server moves w by the N_i-weighted mean, as in FedAvg.

Served: the newest w with the client's last b_i, in the classifier's bias: W (phi + b_i) = W phi + W
b_i. The paper could not be read. PFLlib (d832e76) serves the same. The server keeps w and z,
without clients that join later, and client i keeps b_i.

  paper     here                                      shape
  w, z      ServerState.weights, ServerState.mean     body and classifier, [M]
  b_i       ClientState.bias                          [M], 0 at first
  kappa, m  mean_weight, mean_momentum

Differences from the paper: w and b_i may have momentum. The authors' program halves kappa's term.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from tf_pflego.core import nests, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult, Exchange, Served, Weights
from tf_pflego.core.local_training import MiniBatchSgd
from tf_pflego.core.optimizers import AveragingServer
from tf_pflego.core.participation import FIRST_ROUND
from tf_pflego.core.tasks import flat
from tf_pflego.models.heads.head import add_to_bias
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class FedDbeConfig(AveragingServer, MiniBatchSgd):
    """Hyper-parameters of FedDBE."""

    mean_weight: float = settings.setting(
        50.0, "kappa, weight of the squared distance to the mean features in FedDBE", at_least=0
    )
    mean_momentum: float = settings.setting(
        1.0, "m, weight of a batch in a client's running mean in FedDBE", above=0, at_most=1
    )


class ServerState(NamedTuple):
    """The state that the server keeps."""

    weights: Weights
    optimizer: Any
    mean: tf.Tensor


class ClientState(NamedTuple):
    """The state that client i keeps."""

    bias: tf.Tensor


def build_feddbe(model: SplitModel, config: FedDbeConfig) -> Algorithm:
    """Returns FedDBE for `model`."""
    model = model.with_shared_classifier()
    server_optimizer, kappa = config.server(), config.mean_weight

    def init_server(federation):
        weights = model.initial_weights()
        return ServerState(weights, server_optimizer.init(weights), tf.zeros([model.num_features]))

    def trained(sent, bias, client, kappa, learns_bias):
        optimizer = config.optimizer(client)

        def step(carry, batch):
            (weights, bias), state, running = carry
            with tf.GradientTape() as tape:
                tape.watch((weights, bias))
                phi = model.features(weights.theta, batch)
                mean = tf.reduce_mean(flat(phi, batch.labels)[0], axis=0)
                running = nests.mix(config.mean_momentum, mean, running)
                biased = batch._replace(examples=phi + float(learns_bias) * bias)
                loss = model.head_loss(weights.head, biased)
                loss += kappa * tf.reduce_mean(tf.square(running - sent.mean))
            gradient = tape.gradient(loss, (weights, bias))
            return *optimizer.apply(gradient, state, (weights, bias)), running

        carry = (sent.weights, bias), optimizer.init((sent.weights, bias)), tf.zeros_like(bias)
        return config.over_batches(step, carry, client)

    def give_mean(sent, state, client, round_):
        (weights, _), _, running = trained(sent, state.bias, client, 0.0, False)
        return ClientResult(weights, state, averaged=running)

    def train(sent, state, client, round_):
        (weights, bias), *_ = trained(sent, state.bias, client, kappa, True)
        moved = nests.subtract(weights, sent.weights)
        return ClientResult(with_bias(weights, bias), ClientState(bias), averaged=moved)

    def follow(server, uploads, round_):
        return server_optimizer.follow(uploads.averaged, server, round_)

    def with_bias(weights, bias):
        logits = tf.linalg.matvec(weights.head[:, :-1], bias)
        return weights._replace(head=add_to_bias(weights.head, logits))

    def send(server, round_):
        return server._replace(optimizer=())

    def keep_mean(server, uploads, round_):
        return server._replace(mean=uploads.averaged)

    first = Exchange(send, give_mean, keep_mean, cohort=FIRST_ROUND)
    personal = Served(lambda server, client: with_bias(server.weights, client.bias), model.predict)
    return Algorithm(
        name="feddbe",
        model=model,
        init_server=init_server,
        init_client=lambda server, seed, classes: ClientState(tf.zeros_like(server.mean)),
        exchanges=(first, Exchange(send, train, follow)),
        served={"personalized": personal},
    )
