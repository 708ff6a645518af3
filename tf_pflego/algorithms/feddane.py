"""FedDANE: local objectives corrected by the mean gradient of another cohort.

Li et al., "FedDANE: A Federated Newton-Type Method", in full-batch form. What is learnt: one body and one classifier.

A round:
  1. The server sends theta_t to a first cohort; each of its clients uploads g_i = grad l_i(theta_t), weighted by N_i.
  2. The server takes their N_i-weighted mean g, and sends theta_t and g to a second cohort, drawn apart.
  3. There client i takes tau full-batch gradient steps of rate beta, from theta_t, on
     l_i(theta) + <g - g_i, theta - theta_t> + (mu / 2) ||theta - theta_t||^2.
  4. It uploads the result, weighted by N_i, and the server takes the N_i-weighted mean.

The server keeps theta, and g between the two exchanges; a client keeps nothing.

  paper    here                     shape
  theta    ServerState.weights      body and classifier
  g        ServerState.gradient     the same
  mu       proximal_weight
  tau      local_steps
  beta     client_learning_rate
  alpha_i  client.client_weight     []

Differences from the paper: a fixed number of steps instead of a solution of given inexactness. Where nobody is drawn for the
first cohort, g is the last one.
"""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from tf_pflego.algorithms import settings
from tf_pflego.algorithms.averaging import mean, upload
from tf_pflego.core.algorithm import Algorithm, ClientResult, Exchange, Weights
from tf_pflego.core.local_training import gradient, gradient_descent, squared_distance
from tf_pflego.models.split import SplitModel


@dataclasses.dataclass(frozen=True)
class FedDaneConfig(settings.HyperParameters):
    """Hyper-parameters of FedDANE."""

    local_steps: int = settings.local_steps()
    client_learning_rate: float = settings.client_learning_rate()
    proximal_weight: float = settings.proximal_weight()


class ServerState(NamedTuple):
    """What the server keeps."""

    weights: Weights  # body and classifier
    gradient: Weights  # g, of the last first cohort; 0 at first


def build_feddane(model: SplitModel, config: FedDaneConfig) -> Algorithm:
    """Returns FedDANE for `model`."""

    def gradient_at(weights, client):
        return gradient(lambda weights: model.loss(weights, client), weights)

    def give_gradient(weights, client_message, state, client, round_):
        del client_message, round_
        return ClientResult(state, upload(gradient_at(weights, client), client), (), weights)

    def keep_gradient(state, total, kept, client_ids, round_):
        del kept, client_ids, round_
        return ServerState(state.weights, mean(total))

    def train(message, client_message, state, client, round_):
        del client_message, round_
        server_weights, mean_gradient = message
        correction = tf.nest.map_structure(tf.subtract, mean_gradient, gradient_at(server_weights, client))

        def loss(weights):
            moved = tf.nest.map_structure(tf.subtract, weights, server_weights)
            products = tf.nest.map_structure(lambda c, d: tf.reduce_sum(c * d), correction, moved)
            proximal = config.proximal_weight / 2 * squared_distance(weights, server_weights)
            return model.loss(weights, client) + tf.add_n(tf.nest.flatten(products)) + proximal

        weights = gradient_descent(loss, server_weights, config.local_steps, config.client_learning_rate)
        return ClientResult(state, upload(weights, client), (), weights)

    def take_mean(state, total, kept, client_ids, round_):
        del kept, client_ids, round_
        return ServerState(mean(total), state.gradient)

    def init_server():
        weights = model.initial_weights()
        return ServerState(weights, tf.nest.map_structure(tf.zeros_like, weights))

    return Algorithm(
        name="feddane",
        model=model,
        init_server=init_server,
        init_client=lambda seed, num_classes: (),
        exchanges=(
            Exchange(lambda server, round_: server.weights, give_gradient, keep_gradient, cohort="gradients"),
            Exchange(lambda server, round_: (server.weights, server.gradient), train, take_mean),
        ),
        personalize=lambda server, client: server.weights,
        shared=frozenset({"theta", "head"}),
    )
