"""What the methods that average weights have in common: the upload, the mean, and the rest of a round around a local update.

A client uploads alpha_i w_i and alpha_i; the server divides the two sums, which is the N_i-weighted mean over the participants.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tf_pflego.algorithms.personal_head import HeadState, uniform_heads
from tf_pflego.core.algorithm import Algorithm, Client, ClientResult, Exchange, Weights
from tf_pflego.models.split import SplitModel


class Upload(NamedTuple):
    """What the server sums over the participants."""

    weights: Any  # alpha_i times the client's weights, a nest
    client_weight: tf.Tensor  # [] alpha_i


class ModelState(NamedTuple):
    """What the server keeps where all clients share one network."""

    weights: Weights  # body and classifier


class BodyState(NamedTuple):
    """What the server keeps where clients share the body."""

    theta: list  # the body's weights


def upload(weights: Any, client: Client) -> Upload:
    """Returns a client's share of the mean of `weights`."""
    alpha = client.client_weight
    return Upload(tf.nest.map_structure(lambda w: alpha * w, weights), alpha)


def mean(total: Upload) -> Any:
    """Returns the N_i-weighted mean of the participants' weights from the sum of their uploads."""
    return tf.nest.map_structure(lambda w: w / total.client_weight, total.weights)


def take_mean(state: type) -> Callable[..., Any]:
    """Returns the server's update that puts the mean in the place of all that it keeps, in a `state` of one field."""

    def server_update(_, total, kept, client_ids, round_):
        del kept, client_ids, round_
        return state(mean(total))

    return server_update


def average_model(name: str, model: SplitModel, local_update: Callable[[Weights, Client], Weights]) -> Algorithm:
    """Returns a method that averages one network for all; clients keep nothing.

    Args:
      name: The algorithm's name.
      model: The model; its classifier starts from Glorot's uniform distribution and zero bias.
      local_update: (the server's weights, Client) -> the client's weights after its local training.
    """

    def client_update(weights, client_message, state, client, round_):
        del client_message, round_
        weights = local_update(weights, client)
        return ClientResult(state, upload(weights, client), (), weights)

    return Algorithm(
        name=name,
        model=model,
        init_server=lambda: ModelState(model.initial_weights()),
        init_client=lambda seed, num_classes: (),
        exchanges=(Exchange(lambda server, round_: server.weights, client_update, take_mean(ModelState)),),
        personalize=lambda server, client: server.weights,
        shared=frozenset({"theta", "head"}),
    )


def average_body(name: str, model: SplitModel, local_update: Callable[[Weights, Client], Weights]) -> Algorithm:
    """Returns a method that averages the body, while each client's head stays with it.

    Args:
      name: The algorithm's name.
      model: The model; heads start Uniform[0, 1), as those of PFLEGO.
      local_update: (the server's theta and the client's head, Client) -> both after the client's local training.
    """

    def client_update(theta, client_message, state, client, round_):
        del client_message, round_
        weights = local_update(Weights(theta, state.head), client)
        return ClientResult(HeadState(weights.head), upload(weights.theta, client), (), weights)

    return Algorithm(
        name=name,
        model=model,
        init_server=lambda: BodyState([tf.constant(w) for w in model.initial_theta]),
        init_client=uniform_heads(model),
        exchanges=(Exchange(lambda server, round_: server.theta, client_update, take_mean(BodyState)),),
        personalize=lambda server, client: Weights(server.theta, client.head),
        shared=frozenset({"theta"}),
    )
