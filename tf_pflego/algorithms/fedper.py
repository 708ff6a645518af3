"""FedPer: federated averaging of the body, while each client keeps its own head.

Arivazhagan et al., "Federated Learning with Personalization Layers", in the form that the PFLEGO
paper compares with (Algorithm 2 of its first version). Learnt: one feature extractor theta for all
clients and a linear head W_i for each client.

A round:
  1. The server sends theta to the participants.
  2. Client i sets theta_i = theta and takes tau full-batch gradient steps of rate beta, or E epochs
     of steps on mini-batches of B examples, on (theta_i, W_i) jointly, with momentum m.
  3. It uploads theta_i - theta, and keeps W_i.
  4. The server moves theta by the N_i-weighted mean over the participants, as in FedAvg.

Served: the newest theta with the last W_i (Algorithm 2). The server keeps theta, and client i W_i.

  paper    here                    shape
  theta    theta                   list of the body's weights
  W_i      HeadState.head          [K, M + 1], the last column is the bias
  tau      local_steps             where batch_size is 0
  B, E     batch_size, local_epochs
  beta     client_learning_rate

Differences from the paper: steps are full-batch unless a batch size is given, and heads start from
Uniform[0, 1), as in PFLEGO, or from 0 where labels are no classes. Personal weights of the body, if
the model has any, are trained with W_i and stay with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tf_pflego.algorithms.fedavg import average
from tf_pflego.core import nests
from tf_pflego.core.algorithm import Algorithm, Client, ClientResult, Served, Weights
from tf_pflego.core.local_training import StepsOrMiniBatches
from tf_pflego.core.optimizers import AveragingServer
from tf_pflego.models.personalization import Rule
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class FedPerConfig(AveragingServer, StepsOrMiniBatches):
    """Hyper-parameters of FedPer."""


class HeadState(NamedTuple):
    """The state that client i keeps if its head stays with it."""

    head: tf.Tensor  # [K, M + 1] float32, W_i
    personal: tuple = ()  # the personal weights of the body


def build_fedper(model: SplitModel, config: FedPerConfig) -> Algorithm:
    """Returns FedPer for `model`."""

    def local_update(weights, client):
        return config.minimize(model.loss, weights, client)

    return average_body("fedper", model, config, local_update, keeps_personal=True)


def average_body(
    name: str,
    model: SplitModel,
    config: AveragingServer,
    local_update: Callable[[Weights, Client], Weights],
    personalize: Rule | None = None,
    **fields: Any,
) -> Algorithm:
    """Returns a method that averages the body, while each client's head stays with it.

    `local_update` takes the server's theta with the client's head, and returns both as they are
    after the client's local training. Heads start as in PFLEGO. The `fields` go to `average`.
    """

    def client_update(sent, state, client, round_):
        weights = local_update(
            model.parts.joined(Weights(sent, state.head), state.personal), client
        )
        shared, personal = model.parts.split(weights)
        moved = nests.subtract(shared.theta, sent)
        return ClientResult(weights, HeadState(weights.head, personal), averaged=moved)

    def init_client(server, seed, classes):
        return HeadState(model.uniform_head(seed, classes), model.initial_personal())

    def personal_model(server, client):
        return model.parts.joined(Weights(server.weights, client.head), client.personal)

    def with_head(server, client, head):
        return client._replace(head=head)

    served = Served(personal_model, model.predict, None, personalize, with_head)
    fields |= {"init_client": init_client, "served": {"personalized": served}}
    return average(name, model, config, client_update, lambda w: w.theta, **fields)
