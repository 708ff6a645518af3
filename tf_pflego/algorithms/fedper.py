"""FedPer: federated averaging of the body, with a head that stays at home.

Arivazhagan et al., "Federated Learning with Personalization Layers", in the form in which the PFLEGO paper compares with it
(its Algorithm 2 in the first version). What is learnt: one feature extractor theta for all, a linear head W_i per client.

A round:
  1. The server sends theta to the participants.
  2. Client i sets theta_i = theta and takes tau full-batch gradient steps of rate beta on (theta_i, W_i) jointly.
  3. It uploads N_i-weighted theta_i, and keeps W_i.
  4. The server sets theta to the N_i-weighted mean over the participants.

The server keeps theta; client i keeps W_i.

  paper    here                    shape
  theta    theta                   list of the body's weights
  W_i      ClientState.head        [K, M + 1], the last column is the bias
  tau      local_steps
  beta     client_learning_rate
  alpha_i  client.client_weight    []

Differences from the paper: none in the result. alpha_i weighs theta_i, and the sum is divided by the participants' sum of
alpha_i, which is the mean that N_i gives.
"""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from tf_pflego.algorithms import settings
from tf_pflego.core.algorithm import Algorithm, ClientResult, Exchange, Weights
from tf_pflego.core.local_training import gradient_descent, weighted_mean
from tf_pflego.models import head as head_lib
from tf_pflego.models.split import SplitModel


@dataclasses.dataclass(frozen=True)
class FedPerConfig:
    """Hyper-parameters of FedPer."""

    local_steps: int = settings.local_steps()
    client_learning_rate: float = settings.client_learning_rate()

    def __post_init__(self):
        settings.check(self)


class ServerState(NamedTuple):
    """What the server keeps."""

    theta: list  # the body's weights


class ClientState(NamedTuple):
    """What client i keeps."""

    head: tf.Tensor  # [K, M + 1] float32, W_i


class Upload(NamedTuple):
    """What the server sums over the participants."""

    theta: list  # alpha_i theta_i
    client_weight: tf.Tensor  # [] alpha_i


def build_fedper(model: SplitModel, config: FedPerConfig) -> Algorithm:
    """Returns FedPer for `model`."""

    def init_client(seed, num_classes):
        return ClientState(head_lib.uniform(seed, num_classes, model.num_classes, model.num_features))

    def client_update(theta, client_message, state, client, round_):
        del client_message, round_
        weights = gradient_descent(
            model.loss, Weights(theta, state.head), client, config.local_steps, config.client_learning_rate
        )
        alpha = client.client_weight
        upload = Upload([alpha * w for w in weights.theta], alpha)
        return ClientResult(ClientState(weights.head), upload, (), weights)

    def server_update(state, total, kept, client_ids, round_):
        del state, kept, client_ids, round_
        return ServerState(weighted_mean(total.theta, total.client_weight))

    return Algorithm(
        name="fedper",
        model=model,
        init_server=lambda: ServerState([tf.constant(w) for w in model.initial_theta]),
        init_client=init_client,
        exchanges=(Exchange(lambda server, round_: server.theta, client_update, server_update),),
        personalize=lambda server, client: Weights(server.theta, client.head),
        shared=frozenset({"theta"}),
    )
