"""What PFLEGO and FedRecon have in common: theta moves at the server, by one gradient from each participant."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tf_pflego.algorithms.personal_head import HeadState, uniform_heads
from tf_pflego.core import optimizers
from tf_pflego.core.algorithm import Algorithm, Client, FeatureResult, Round, Weights, features_exchange
from tf_pflego.models.split import SplitModel


class ServerState(NamedTuple):
    """What the server keeps."""

    theta: list  # the body's weights
    optimizer: Any  # state of the server optimiser


def gradient_server(
    name: str,
    model: SplitModel,
    features_update: Callable[[HeadState, tf.Tensor, Client, Round], FeatureResult],
    server_optimizer: str,
    server_learning_rate: float,
) -> Algorithm:
    """Returns a method whose clients train their heads and upload alpha_i g_i, one gradient of theta.

    The server hands (I/r) sum_i alpha_i g_i to its optimiser.

    Args:
      name: The algorithm's name.
      model: The model; heads start Uniform[0, 1).
      features_update: What a client does, see `core.algorithm.features_exchange`.
      server_optimizer: The optimiser's name.
      server_learning_rate: rho.
    """
    optimizer = optimizers.build(server_optimizer, server_learning_rate)

    def init_server():
        theta = [tf.constant(w) for w in model.initial_theta]
        return ServerState(theta, optimizer.init(theta))

    def server_update(state, theta_gradient, kept, client_ids, round_):
        del kept, client_ids
        gradient = [round_.participation_scale * g for g in theta_gradient]
        return ServerState(*optimizer.apply(gradient, state.optimizer, state.theta))

    return Algorithm(
        name=name,
        model=model,
        init_server=init_server,
        init_client=uniform_heads(model),
        exchanges=(features_exchange(model.features, features_update, server_update),),
        personalize=lambda server, client: Weights(server.theta, client.head),
        shared=frozenset({"theta"}),
    )
