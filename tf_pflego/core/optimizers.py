"""Optimisers as pure functions over nests: all that an optimiser remembers is in its state.

The server, the clients' local training and the solvers of the head use the same optimisers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from tf_pflego.core import nests, values
from tf_pflego.core.nests import Structure

NAMES = ("adam", "sgd", "momentum", "yogi", "adagrad")
MOMENTUM = 0.9

Rate: TypeAlias = "float | tf.Tensor"


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """Two functions over nests of weights.

    Attributes:
      init: weights -> state.
      apply: (gradient, state, weights) -> (weights, state).
    """

    init: Callable[[Structure], Any]
    apply: Callable[[Structure, Any, Structure], tuple[Structure, Any]]


class MomentState(NamedTuple):
    """State of Adam and Yogi; the moments have the structure of the weights."""

    step: tf.Tensor  # [] int64, number of steps taken
    first_moment: Structure
    second_moment: Structure


def build(name: str, learning_rate: Rate, epsilon: float | None = None) -> Optimizer:
    """Returns an optimiser.

    Args:
      name: One of `NAMES`.
      learning_rate: Its (base) rate.
      epsilon: What Adam, Yogi and Adagrad add to the root that they divide by; None for the
        default of each. The others have none.
    """
    name = values.one_of("server_optimizer", name, NAMES)
    if name == "sgd":
        return sgd(learning_rate)
    if name == "momentum":
        return sgd(learning_rate, MOMENTUM)
    adaptive: dict[str, Callable[..., Optimizer]]
    adaptive = {"adam": adam, "yogi": yogi, "adagrad": adagrad}
    constants = {} if epsilon is None else {"epsilon": epsilon}
    return adaptive[name](learning_rate, **constants)


def sgd(learning_rate: Rate, momentum: float = 0.0) -> Optimizer:
    """weights <- weights - learning_rate * v, where v <- momentum * v + gradient starts from 0."""

    def move(weights, direction):
        return tf.nest.map_structure(lambda w, v: w - learning_rate * v, weights, direction)

    def apply_plain(gradient, state, weights):
        return move(weights, gradient), state

    def apply_with_momentum(gradient, velocity, weights):
        velocity = tf.nest.map_structure(lambda v, g: momentum * v + g, velocity, gradient)
        return move(weights, velocity), velocity

    if not momentum:
        return Optimizer(lambda weights: (), apply_plain)
    return Optimizer(nests.zeros_like, apply_with_momentum)


def adam(
    learning_rate: Rate, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-7
) -> Optimizer:
    """Adam (Kingma and Ba 2015, efficient order at the end of section 2) with Keras' constants."""

    def second_moment(v, g):
        return beta_2 * v + (1 - beta_2) * tf.square(g)

    return _with_moments(learning_rate, beta_1, beta_2, epsilon, second_moment)


def yogi(
    learning_rate: Rate, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-3
) -> Optimizer:
    """Yogi (Zaheer et al. 2018, Algorithm 2): Adam whose second moment grows and shrinks slowly."""

    def second_moment(v, g):
        square = tf.square(g)
        return v - (1 - beta_2) * tf.sign(v - square) * square

    return _with_moments(learning_rate, beta_1, beta_2, epsilon, second_moment)


def adagrad(learning_rate: Rate, epsilon: float = 1e-7) -> Optimizer:
    """Adagrad (Duchi et al. 2011).

    The rate of each weight is divided by the root of the sum of its squared gradients.
    """

    def apply(gradient, total, weights):
        total = tf.nest.map_structure(lambda s, g: s + tf.square(g), total, gradient)
        moved = tf.nest.map_structure(
            lambda w, g, s: w - learning_rate * g / (tf.sqrt(s) + epsilon), weights, gradient, total
        )
        return moved, total

    return Optimizer(nests.zeros_like, apply)


def _with_moments(learning_rate, beta_1, beta_2, epsilon, second_moment):
    def init(weights):
        return MomentState(
            tf.zeros([], tf.int64), nests.zeros_like(weights), nests.zeros_like(weights)
        )

    def apply(gradient, state, weights):
        step = state.step + 1
        t = tf.cast(step, tf.float32)
        rate = learning_rate * tf.sqrt(1 - beta_2**t) / (1 - beta_1**t)
        first = tf.nest.map_structure(
            lambda m, g: beta_1 * m + (1 - beta_1) * g, state.first_moment, gradient
        )
        second = tf.nest.map_structure(second_moment, state.second_moment, gradient)
        moved = tf.nest.map_structure(
            lambda w, m, v: w - rate * m / (tf.sqrt(v) + epsilon), weights, first, second
        )
        return moved, MomentState(step, first, second)

    return Optimizer(init, apply)
