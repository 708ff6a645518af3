"""What the methods that average weights have in common.

A client uploads alpha_i w_i and alpha_i. The server sums both over the participants and divides the
first sum by the second, which gives the N_i-weighted mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tf_pflego.core import nests
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


class SharedState(NamedTuple):
    """What the server keeps if it keeps only the weights that it shares with all clients."""

    weights: Any  # theta, or body and classifier


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


def take_mean(server: SharedState, uploads: Uploads, round_: Round) -> SharedState:
    """Replaces the shared weights by the mean of the participants' weights."""
    return SharedState(mean(uploads.summed))


def average_model(
    name: str,
    model: SplitModel,
    local_update: Callable[[Weights, Client], Weights],
) -> Algorithm:
    """Returns a method that averages one network for all clients, which keep nothing.

    Args:
      name: The algorithm's name.
      model: The model; its classifier starts from Glorot's uniform distribution and zero bias.
      local_update: (the server's weights, Client) -> the client's weights after its local training.
    """

    def client_update(weights, state, client, round_):
        weights = local_update(weights, client)
        return ClientResult(weights, summed=weighted(weights, client))

    return Algorithm(
        name=name,
        model=model,
        init_server=lambda federation: SharedState(model.initial_weights()),
        init_client=no_client_state,
        exchanges=(Exchange(broadcast, client_update, take_mean),),
        served={"generic": Served(lambda server, client: server.weights, model.predict)},
    )


def average_body(
    name: str,
    model: SplitModel,
    local_update: Callable[[Weights, Client], Weights],
    personalize: Rule | None = None,
) -> Algorithm:
    """Returns a method that averages the body, while each client's head stays with it.

    Args:
      name: The algorithm's name.
      model: The model; heads start from Uniform[0, 1), as in PFLEGO.
      local_update: (the server's theta with the client's head, Client) -> both after the client's
        local training.
      personalize: See `Served`.
    """

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
        init_server=lambda federation: SharedState(model.initial_weights().theta),
        init_client=init_client,
        exchanges=(Exchange(broadcast, client_update, take_mean),),
        served={"personalized": Served(personal_model, model.predict, personalize=personalize)},
    )
