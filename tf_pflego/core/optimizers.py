"""Server optimisers as pure functions: all that an optimiser remembers is in the state that it is given."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

NAMES = ("adam", "sgd")


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """Two functions over lists of tensors.

    Attributes:
      init: weights -> state.
      apply: (gradient, state, weights) -> (weights, state).
    """

    init: Callable[[list], Any]
    apply: Callable[[list, Any, list], tuple[list, Any]]


class AdamState(NamedTuple):
    """State of Adam; the moments have the shapes of the weights."""

    step: tf.Tensor  # [] int64, number of steps taken
    first_moment: list
    second_moment: list


def build(name: str, learning_rate: float) -> Optimizer:
    """Returns the optimiser `name`, one of `NAMES`, with a base rate of `learning_rate`."""
    if name == "adam":
        return adam(learning_rate)
    if name == "sgd":
        return sgd(learning_rate)
    raise ValueError(f"`server_optimizer` must be one of {', '.join(NAMES)}; got {name!r}.")


def sgd(learning_rate: float) -> Optimizer:
    """weights <- weights - learning_rate * gradient."""

    def apply(gradient, state, weights):
        return [w - learning_rate * g for w, g in zip(weights, gradient, strict=True)], state

    return Optimizer(init=lambda weights: (), apply=apply)


def adam(learning_rate: float, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-7) -> Optimizer:
    """Adam (Kingma and Ba, 2015, the efficient order at the end of section 2), with Keras' default constants."""

    def init(weights):
        return AdamState(
            step=tf.zeros([], tf.int64),
            first_moment=[tf.zeros_like(w) for w in weights],
            second_moment=[tf.zeros_like(w) for w in weights],
        )

    def apply(gradient, state, weights):
        step = state.step + 1
        t = tf.cast(step, weights[0].dtype)
        rate = learning_rate * tf.sqrt(1 - beta_2**t) / (1 - beta_1**t)
        m = [beta_1 * m + (1 - beta_1) * g for m, g in zip(state.first_moment, gradient, strict=True)]
        v = [beta_2 * v + (1 - beta_2) * tf.square(g) for v, g in zip(state.second_moment, gradient, strict=True)]
        moved = [w - rate * m_w / (tf.sqrt(v_w) + epsilon) for w, m_w, v_w in zip(weights, m, v, strict=True)]
        return moved, AdamState(step, m, v)

    return Optimizer(init, apply)
