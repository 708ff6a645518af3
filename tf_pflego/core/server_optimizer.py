"""The server's optimiser: one of `core.optimizers` whose learning rate may fall over the rounds.

The rate of round t = 1, 2, ... is rho times a share that a schedule gives, over T rounds:

  constant      1
  late_linear   1 in the first half, up to round T/2 (rounded up); then it falls by the same amount
                in each round, to 0 in round T + 1: min(1, (T + 1 - t) / (floor(T/2) + 1))
  last_fifth    the same with T/5 in the place of T/2: 1 up to round 4T/5
  cosine        half a cosine, from 1 in round 1 to 0 in round T + 1: (1 + cos(pi (t - 1) / T)) / 2

So round T still moves, and rounds after it do not. The state of the optimiser, such as the moments
of Adam, does not know of the schedule.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_pflego.core import optimizers
from tf_pflego.core.algorithm import Round
from tf_pflego.core.nests import Structure
from tf_pflego.core.optimizers import Rate
from tf_pflego.system import values

CONSTANT = "constant"
# By what T is divided to give the rounds in which the rate falls.
_FALLING_PARTS = {"late_linear": 2, "last_fifth": 5}
SCHEDULES = (CONSTANT, *_FALLING_PARTS, "cosine")


@dataclasses.dataclass(frozen=True)
class ServerOptimizer:
    """Three functions; the first gives the learning rate, the others are those of an `Optimizer`.

    Attributes:
      rate: Round -> the learning rate in this round, a float or a tensor [] float32.
      init: weights -> state.
      apply: (gradient, state, weights, Round) -> (weights, state).
    """

    rate: Callable[[Round], Rate]
    init: Callable[[Structure], Any]
    apply: Callable[[Structure, Any, Structure, Round], tuple[Structure, Any]]


def build(config: Any, epsilon: float | None = None) -> ServerOptimizer:
    """Returns the server's optimiser that a method's configuration describes.

    Args:
      config: A configuration with `server_optimizer`, `server_learning_rate`, `server_schedule` and
        `schedule_rounds`; see `core.settings`.
      epsilon: See `optimizers.build`.

    Raises:
      ValueError: The rate has a schedule, and the number of its rounds is not given.
    """
    base, name, rounds = config.server_learning_rate, config.server_schedule, config.schedule_rounds
    if name != CONSTANT and not rounds:
        raise ValueError(
            f"`schedule_rounds` must be at least 1 for server_schedule={name} outside of a run, "
            "which has a number of rounds; got 0. Set it, e.g. `schedule_rounds=200`."
        )

    def rate(round_):
        return base if name == CONSTANT else base * share(name, round_.number, rounds)

    def optimizer(learning_rate):
        return optimizers.build(config.server_optimizer, learning_rate, epsilon)

    def apply(gradient, state, weights, round_):
        return optimizer(rate(round_)).apply(gradient, state, weights)

    return ServerOptimizer(rate, optimizer(base).init, apply)


def share(schedule: str, number: tf.Tensor, num_rounds: int) -> tf.Tensor:
    """Returns [] float32, by what the rate is multiplied in a round.

    Args:
      schedule: One of `SCHEDULES`.
      number: [] int32, the round's number t, from 1 on.
      num_rounds: T, from 1 on.
    """
    values.one_of("server_schedule", schedule, SCHEDULES)
    if schedule == CONSTANT:
        return tf.ones([])
    left = tf.cast(tf.maximum(num_rounds + 1 - number, 0), tf.float32)
    if schedule in _FALLING_PARTS:
        return tf.minimum(left / (num_rounds // _FALLING_PARTS[schedule] + 1), 1.0)
    # The same as (1 + cos(pi (t - 1) / T)) / 2, which would lose its digits near the end.
    return tf.square(tf.sin(math.pi / (2 * num_rounds) * left))
