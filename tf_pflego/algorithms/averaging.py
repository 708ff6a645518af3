"""What the methods that average weights have in common.

A client uploads alpha_i w_i and alpha_i. The server sums both over the participants and divides the
first sum by the second, which gives the N_i-weighted mean.

By default the mean takes the place of the server's weights w. If `server_optimizer` names an
optimiser, the server gives it w - mean as a gradient at w and keeps its state too. This is FedOpt:
Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2. momentum gives FedAvgM, and
adam, yogi and adagrad give FedAdam, FedYogi and FedAdagrad; sgd with a rate of 1 gives the mean.

Adam and Yogi correct the bias of their moments, with beta_1 = 0.9 and beta_2 = 0.999, and second
moments start from 0. So the authors ran them (google-research/federated on GitHub: README.md and
docs/hyperparameters.md in optimization, utils/optimizers/yogi.py), while Algorithm 2 has no
correction and second moments that start from tau^2 or more. tau, the optimisers' epsilon, is 1e-3,
as the authors recommend there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tf_pflego.core import nests, optimizers, server_optimizer, settings
from tf_pflego.core.algorithm import (
    Algorithm,
    Client,
    ClientResult,
    Exchange,
    Round,
    Served,
    Uploads,
    Weights,
    no_client_state,
)
from tf_pflego.models.personalization import Rule
from tf_pflego.models.split import SplitModel


class Weighted(NamedTuple):
    """A client's share of a weighted mean."""

    weights: Any  # alpha_i times the client's weights, a nest
    client_weight: tf.Tensor  # [] alpha_i


# Of the server's adaptive optimisers; tau in FedOpt.
EPSILON = 1e-3


@dataclasses.dataclass(frozen=True)
class MeanAtServer(settings.HyperParameters):
    """Hyper-parameters of a server that takes the mean of the participants' weights."""

    server_optimizer: str = settings.server_optimizer(
        settings.NO_OPTIMIZER, taken=(*optimizers.NAMES, settings.NO_OPTIMIZER)
    )
    server_learning_rate: float = settings.server_learning_rate(0.01)
    server_schedule: str = settings.server_schedule()
    schedule_rounds: int = settings.schedule_rounds()


class SharedState(NamedTuple):
    """What the server keeps if it keeps only the weights that it shares with all clients."""

    weights: Any  # theta, or body and classifier
    optimizer: Any = ()  # the state of the server's optimiser, if there is one


class HeadState(NamedTuple):
    """What client i keeps if its head stays with it."""

    head: tf.Tensor  # [K, M + 1] float32, W_i


def weighted(weights: Any, client: Client) -> Weighted:
    """Returns a client's share of the mean of `weights`."""
    return Weighted(nests.scale(client.client_weight, weights), client.client_weight)


def mean(total: Weighted) -> Any:
    """Returns the N_i-weighted mean of the participants' weights from the sum of their shares."""
    return tf.nest.map_structure(lambda w: w / total.client_weight, total.weights)


def plain_mean(uploads: Uploads) -> Any:
    """Returns the mean of the participants' weights from their sum; each counts the same."""
    count = tf.cast(tf.size(uploads.client_ids), tf.float32)
    return nests.scale(1 / count, uploads.summed)


def broadcast(server: SharedState, round_: Round) -> Any:
    """Sends the shared weights."""
    return server.weights


class Averaging(NamedTuple):
    """How the server's weights follow from the mean of the participants' weights.

    Attributes:
      start: weights -> the state of the server's optimiser; () if there is none.
      move: (weights, that state, mean, Round) -> (weights, state).
    """

    start: Callable[[Any], Any]
    move: Callable[[Any, Any, Any, Round], tuple[Any, Any]]

    def init_server(self, weights: Any) -> SharedState:
        """Returns the server's state before the first round."""
        return SharedState(weights, self.start(weights))

    def server_update(self, server: SharedState, uploads: Uploads, round_: Round) -> SharedState:
        """Moves the shared weights to, or towards, the mean of the participants' weights."""
        found = mean(uploads.summed)
        return SharedState(*self.move(server.weights, server.optimizer, found, round_))


def averaging(config: MeanAtServer) -> Averaging:
    """Returns how the server takes the mean.

    Raises:
      ValueError: As `server_optimizer.build`.
    """
    if config.server_optimizer == settings.NO_OPTIMIZER:
        return Averaging(lambda weights: (), lambda weights, state, mean, round_: (mean, state))
    optimizer = server_optimizer.build(config, EPSILON)

    def move(weights, state, mean, round_):
        return optimizer.apply(nests.subtract(weights, mean), state, weights, round_)

    return Averaging(optimizer.init, move)


def average_model(
    name: str,
    model: SplitModel,
    config: MeanAtServer,
    local_update: Callable[[Weights, Client], Weights],
) -> Algorithm:
    """Returns a method that averages one network for all clients, which keep nothing.

    Args:
      name: The algorithm's name.
      model: The model; its classifier starts from Glorot's uniform distribution and zero bias.
      config: How the server takes the mean.
      local_update: (the server's weights, Client) -> the client's weights after its local training.
    """
    of_server = averaging(config)

    def client_update(weights, state, client, round_):
        weights = local_update(weights, client)
        return ClientResult(weights, summed=weighted(weights, client))

    return Algorithm(
        name=name,
        model=model,
        init_server=lambda federation: of_server.init_server(model.initial_weights()),
        init_client=no_client_state,
        exchanges=(Exchange(broadcast, client_update, of_server.server_update),),
        served={"generic": Served(lambda server, client: server.weights, model.predict)},
    )


def average_body(
    name: str,
    model: SplitModel,
    config: MeanAtServer,
    local_update: Callable[[Weights, Client], Weights],
    personalize: Rule | None = None,
) -> Algorithm:
    """Returns a method that averages the body, while each client's head stays with it.

    Args:
      name: The algorithm's name.
      model: The model; heads start from Uniform[0, 1), as in PFLEGO.
      config: How the server takes the mean.
      local_update: (the server's theta with the client's head, Client) -> both after the client's
        local training.
      personalize: See `Served`.
    """
    of_server = averaging(config)

    def client_update(theta, state, client, round_):
        weights = local_update(Weights(theta, state.head), client)
        upload = weighted(weights.theta, client)
        return ClientResult(weights, HeadState(weights.head), summed=upload)

    def init_client(server, seed, classes):
        return HeadState(model.uniform_head(seed, classes))

    def personal_model(server, client):
        return Weights(server.weights, client.head)

    return Algorithm(
        name=name,
        model=model,
        init_server=lambda federation: of_server.init_server(model.initial_weights().theta),
        init_client=init_client,
        exchanges=(Exchange(broadcast, client_update, of_server.server_update),),
        served={"personalized": Served(personal_model, model.predict, personalize=personalize)},
    )
