"""Optimisers as pure functions over nests: all that an optimiser remembers is in its state.

The server, the clients' local training and the solvers of the head use the same optimisers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from tf_pflego.core import nests
from tf_pflego.core.nests import Structure
from tf_pflego.system import values

NAMES = ("adam", "sgd", "momentum", "yogi", "adagrad", "muon")
MOMENTUM = 0.9
# Of the numbers of a step of Adam in training, by Liu et al.; Muon's is brought to it.
_ROOT_MEAN_SQUARE = 0.2

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


class MuonState(NamedTuple):
    """State of Muon."""

    velocity: list  # of the matrices, in the order of the weights
    of_vectors: MomentState  # that of Adam, for all other weights


def build(name: str, learning_rate: Rate, epsilon: float | None = None) -> Optimizer:
    """Returns an optimiser.

    Args:
      name: One of `NAMES`.
      learning_rate: Its (base) rate.
      epsilon: What Adam, Yogi, Adagrad and, for its vectors, Muon add to the root that they divide
        by; None for the default of each. The others have none.
    """
    name = values.one_of("server_optimizer", name, NAMES)
    if name == "sgd":
        return sgd(learning_rate)
    if name == "momentum":
        return sgd(learning_rate, MOMENTUM)
    adaptive: dict[str, Callable[..., Optimizer]]
    adaptive = {"adam": adam, "yogi": yogi, "adagrad": adagrad, "muon": muon}
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


def muon(
    learning_rate: Rate, momentum: float = 0.95, epsilon: float = 1e-7, rounds: int = 5
) -> Optimizer:
    """Muon for matrices (Jordan et al., "Muon: An optimizer for hidden layers", 2024).

    The gradient of a matrix, with Nesterov's momentum, is replaced by about the nearest matrix
    whose singular values are all equal: a polynomial in it, which products of matrices compute,
    brings them all near 1. A step is as long as one of Adam is, in the root of the mean square of
    its numbers (Liu et al., "Muon is Scalable for LLM Training", 2025, section 2.2), so that
    Adam's rates fit. Adam moves vectors and numbers. Of a tensor of more axes, such as the kernel
    of a convolution, all axes but the last count as rows.

    Args:
      learning_rate: The rate of both.
      momentum: mu; v <- mu v + gradient starts from 0, and gradient + mu v is what is replaced.
      epsilon: Of Adam.
      rounds: How often the polynomial is applied.
    """
    of_vectors = adam(learning_rate, epsilon=epsilon)

    def parted(weights):
        leaves = tf.nest.flatten(weights)
        is_matrix = [len(leaf.shape) > 1 for leaf in leaves]
        matrices = [leaf for leaf, is_one in zip(leaves, is_matrix, strict=True) if is_one]
        vectors = [leaf for leaf, is_one in zip(leaves, is_matrix, strict=True) if not is_one]
        return matrices, vectors, is_matrix

    def init(weights):
        matrices, vectors, _ = parted(weights)
        return MuonState(nests.zeros_like(matrices), of_vectors.init(vectors))

    def apply(gradient, state, weights):
        slopes, others, is_matrix = parted(gradient)
        matrices, vectors, _ = parted(weights)
        velocity = [momentum * v + g for v, g in zip(state.velocity, slopes, strict=True)]
        moved = [
            w - learning_rate * _of_equal_singular_values(g + momentum * v, rounds)
            for w, g, v in zip(matrices, slopes, velocity, strict=True)
        ]
        moved_vectors, of_adam = of_vectors.apply(others, state.of_vectors, vectors)
        given = iter(moved), iter(moved_vectors)
        leaves = [next(given[0] if is_one else given[1]) for is_one in is_matrix]
        return tf.nest.pack_sequence_as(weights, leaves), MuonState(velocity, of_adam)

    return Optimizer(init, apply)


def _of_equal_singular_values(tensor, rounds):
    """Returns a tensor of the same shape, whose numbers have about 0.2 as their root mean square.

    Jordan et al.'s polynomial brings the singular values into about [0.7, 1.2].
    """
    rows, columns = np.prod(tensor.shape[:-1]), tensor.shape[-1]
    x = tf.reshape(tensor, [rows, columns])
    if rows > columns:  # The products are between the shorter side and itself.
        x = tf.transpose(x)
    x = tf.math.divide_no_nan(x, tf.norm(x))
    for _ in range(rounds):
        gram = tf.linalg.matmul(x, x, transpose_b=True)
        mixed = -4.7750 * gram + 2.0315 * tf.linalg.matmul(gram, gram)
        x = 3.4445 * x + tf.linalg.matmul(mixed, x)
    if rows > columns:
        x = tf.transpose(x)
    return tf.reshape(_ROOT_MEAN_SQUARE * max(rows, columns) ** 0.5 * x, tensor.shape)


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
