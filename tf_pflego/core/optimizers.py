"""Optimisers as pure functions over nests: an optimiser's memory is its state.

The server, the clients' local training and the solvers of the head use the same optimisers. At the
server the learning rate may fall: in round t = 1, 2, ... it is rho times a scheduled share, over T
rounds:

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
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from tf_pflego.core import nests, settings
from tf_pflego.core.algorithm import Round, Weights
from tf_pflego.core.nests import Structure
from tf_pflego.system import values

NAMES = ("adam", "sgd", "momentum", "yogi", "adagrad", "muon")
MOMENTUM = 0.9
_BETA_1, _BETA_2 = 0.9, 0.999  # Of Adam and Yogi.
_MUON_TURNS = 5
CONSTANT = "constant"
# T divided by these gives the rounds in which the rate falls.
_FALLING_PARTS = {"late_linear": 2, "last_fifth": 5}
SCHEDULES = (CONSTANT, *_FALLING_PARTS, "cosine")
# The root of the mean square of the numbers of a step of Muon, in learning rates. Liu et al. scaled
# it to 0.2, as they measured for Adam. Here the layers before the head move twice as fast, as the
# choice for `pflego_shared_head` found best.
_ROOT_MEAN_SQUARE = 0.4

Rate: TypeAlias = "float | tf.Tensor"


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """Two functions over nests of weights."""

    init: Callable[[Structure], Any]  # weights -> state
    # (gradient, state, weights) -> (weights, state)
    apply: Callable[[Structure, Any, Structure], tuple[Structure, Any]]


class MomentState(NamedTuple):
    """State of Adam and Yogi; the moments have the structure of the weights."""

    step: tf.Tensor  # [] int64, number of steps taken
    first_moment: Structure
    second_moment: Structure


class MuonState(NamedTuple):
    """State of Muon."""

    velocity: list  # of the body's matrices, in the order of the weights
    of_others: MomentState  # that of Adam, for all other weights


def build(name: str, learning_rate: Rate, epsilon: float | None = None) -> Optimizer:
    """Returns the optimiser of one of `NAMES`.

    `epsilon` is the number that Adam, Yogi, Adagrad and, for its vectors, Muon add to the root in
    their divisor. None uses the default of each. Other optimisers have no epsilon.
    """
    name = values.one_of("server_optimizer", name, NAMES)
    if name in ("sgd", "momentum"):
        return sgd(learning_rate, MOMENTUM if name == "momentum" else 0.0)
    adaptive: Any = {"adam": adam, "yogi": yogi, "adagrad": adagrad, "muon": muon}[name]
    return adaptive(learning_rate) if epsilon is None else adaptive(learning_rate, epsilon)


def sgd(learning_rate: Rate, momentum: float = 0.0, weight_decay: float = 0.0) -> Optimizer:
    """weights <- weights - learning_rate * v, where v <- momentum * v + gradient starts from 0.

    The gradient is of the loss + weight_decay / 2 ||weights||^2.
    """

    def apply(gradient, velocity, weights):
        if weight_decay:
            gradient = tf.nest.map_structure(lambda g, w: g + weight_decay * w, gradient, weights)
        if momentum:
            gradient = tf.nest.map_structure(lambda v, g: momentum * v + g, velocity, gradient)
            velocity = gradient
        moved = tf.nest.map_structure(lambda w, v: w - learning_rate * v, weights, gradient)
        return moved, velocity

    return Optimizer(nests.zeros_like if momentum else lambda weights: (), apply)


def adam(learning_rate: Rate, epsilon: float = 1e-7) -> Optimizer:
    """Adam (Kingma and Ba 2015, efficient order at the end of section 2) with Keras' constants."""

    def second_moment(v, g):
        return _BETA_2 * v + (1 - _BETA_2) * tf.square(g)

    return _with_moments(learning_rate, epsilon, second_moment)


def yogi(learning_rate: Rate, epsilon: float = 1e-3) -> Optimizer:
    """Yogi (Zaheer et al. 2018, Algorithm 2): Adam with a slower second moment."""

    def second_moment(v, g):
        square = tf.square(g)
        return v - (1 - _BETA_2) * tf.sign(v - square) * square

    return _with_moments(learning_rate, epsilon, second_moment)


def adagrad(learning_rate: Rate, epsilon: float = 1e-7) -> Optimizer:
    """Adagrad (Duchi et al. 2011) divides rates by the root of the sum of squared gradients."""

    def apply(gradient, total, weights):
        total = tf.nest.map_structure(lambda s, g: s + tf.square(g), total, gradient)
        moved = tf.nest.map_structure(
            lambda w, g, s: w - learning_rate * g / (tf.sqrt(s) + epsilon), weights, gradient, total
        )
        return moved, total

    return Optimizer(nests.zeros_like, apply)


def muon(learning_rate: Rate, epsilon: float = 1e-7) -> Optimizer:
    """Muon for matrices (Jordan et al., "Muon: An optimizer for hidden layers", 2024).

    The gradient of a matrix, with Nesterov's momentum, is replaced by about the nearest matrix with
    equal singular values: a polynomial in it, computed by products of matrices, moves them all near
    1. A step is twice as long as Adam's, in the root of the mean square of its numbers (Liu et al.,
    "Muon is Scalable for LLM Training", 2025, section 2.2). Adam's rates therefore fit roughly. As
    its authors advise, Adam moves vectors, numbers and the last layer, the head of `Weights`. In a
    tensor of more axes, such as the kernel of a convolution, all axes except the last count as
    rows. With v <- mu v + gradient, starting at 0, gradient + mu v is replaced.
    """
    for_others = adam(learning_rate, epsilon)

    def parted(nest):
        """Returns the matrices of the body, all other leaves, and the kind of each leaf."""
        leaves, kinds = tf.nest.flatten(nest), are_matrices_of_body(nest)
        matrices = [leaf for leaf, is_matrix in zip(leaves, kinds, strict=True) if is_matrix]
        others = [leaf for leaf, is_matrix in zip(leaves, kinds, strict=True) if not is_matrix]
        return matrices, others, kinds

    def init(weights):
        matrices, others, _ = parted(weights)
        return MuonState(nests.zeros_like(matrices), for_others.init(others))

    def apply(gradient, state, weights):
        slopes, other_slopes, _ = parted(gradient)
        matrices, others, kinds = parted(weights)
        velocity = [MOMENTUM * v + g for v, g in zip(state.velocity, slopes, strict=True)]
        moved_matrices = iter(
            w - learning_rate * with_equal_singular_values(g + MOMENTUM * v)
            for w, g, v in zip(matrices, slopes, velocity, strict=True)
        )
        others, adam_state = for_others.apply(other_slopes, state.of_others, others)
        moved_others = iter(others)
        leaves = [next(moved_matrices if is_matrix else moved_others) for is_matrix in kinds]
        return tf.nest.pack_sequence_as(weights, leaves), MuonState(velocity, adam_state)

    return Optimizer(init, apply)


def are_matrices_of_body(nest: Structure) -> list[bool]:
    """Returns for each leaf of a nest whether Muon moves it; of `Weights`, no leaf of the head."""
    leaves = tf.nest.flatten(nest)
    in_body = len(tf.nest.flatten(nest.theta)) if isinstance(nest, Weights) else len(leaves)
    return [len(leaf.shape) > 1 and k < in_body for k, leaf in enumerate(leaves)]


def with_equal_singular_values(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor of the same shape, of two or more axes, with a root mean square near 0.4."""
    rows, columns = np.prod(tensor.shape[:-1]), tensor.shape[-1]
    x = tf.reshape(tensor, [rows, columns])
    if rows > columns:  # The products are between the shorter side and itself.
        x = tf.transpose(x)
    x = tf.math.divide_no_nan(x, tf.norm(x))
    for _ in range(_MUON_TURNS):  # They bring the singular values into about [0.7, 1.2].
        gram = tf.linalg.matmul(x, x, transpose_b=True)
        mixed = -4.7750 * gram + 2.0315 * tf.linalg.matmul(gram, gram)
        x = 3.4445 * x + tf.linalg.matmul(mixed, x)
    if rows > columns:
        x = tf.transpose(x)
    return tf.reshape(_ROOT_MEAN_SQUARE * max(rows, columns) ** 0.5 * x, tensor.shape)


def _with_moments(learning_rate, epsilon, second_moment):
    def init(weights):
        return MomentState(
            tf.zeros([], tf.int64), nests.zeros_like(weights), nests.zeros_like(weights)
        )

    def apply(gradient, state, weights):
        step = state.step + 1
        t = tf.cast(step, tf.float32)
        rate = learning_rate * tf.sqrt(1 - _BETA_2**t) / (1 - _BETA_1**t)
        first = tf.nest.map_structure(
            lambda m, g: _BETA_1 * m + (1 - _BETA_1) * g, state.first_moment, gradient
        )
        second = tf.nest.map_structure(second_moment, state.second_moment, gradient)
        moved = tf.nest.map_structure(
            lambda w, m, v: w - rate * m / (tf.sqrt(v) + epsilon), weights, first, second
        )
        return moved, MomentState(step, first, second)

    return Optimizer(init, apply)


server_optimizer = settings.shared(
    "adam", "optimiser of the shared weights at the server", choices=NAMES
)
server_learning_rate = settings.shared(
    0.001,
    "rho, (base) learning rate of the server's optimiser; auto means 1 with sgd and 0.01 otherwise",
    above=0,
    words=("auto",),
    taken=(),
)
server_schedule = settings.shared(
    CONSTANT,
    "how rho changes over T rounds: not at all (constant), in equal steps down to 0 in their "
    "second half (late_linear) or last fifth (last_fifth), or down to 0 as half a cosine (cosine)",
    choices=SCHEDULES,
)
server_weight_decay = settings.shared(
    0.0,
    "share of the shared weights that the server subtracts in each round, times server_schedule's "
    "factor",
    at_least=0,
)


@dataclasses.dataclass(frozen=True)
class ServerOptimizer:
    """The optimiser of a server: an `Optimizer` with the learning rate of each round."""

    rate: Callable[[Round], tf.Tensor]  # [] float32
    init: Callable[[Structure], Any]  # weights -> state
    # (gradient, state, weights, Round) -> (weights, state)
    apply: Callable[[Structure, Any, Structure, Round], tuple[Structure, Any]]

    def follow(self, difference: Structure, server: Any, round_: Round) -> Any:
        """Returns a server's state after a step along a mean difference, which is minus a gradient.

        The state is a named tuple with the weights as `weights`, and with `optimizer`.
        """
        gradient = nests.scale(-1.0, difference)
        weights, state = self.apply(gradient, server.optimizer, server.weights, round_)
        return server._replace(weights=weights, optimizer=state)


@dataclasses.dataclass(frozen=True)
class ServerSettings(settings.HyperParameters):
    """The hyper-parameters of a server's optimiser; the defaults suit gradients."""

    server_learning_rate: float = server_learning_rate()
    server_optimizer: str = server_optimizer()
    server_schedule: str = server_schedule()
    server_weight_decay: float = server_weight_decay()
    schedule_rounds: int = settings.setting(
        0,
        "T of the schedule of rho, at least the rounds of the run, or 0 for these rounds",
        at_least=0,
        read_with={"server_schedule": SCHEDULES[1:]},
    )

    def server(self, epsilon: float | None = None) -> ServerOptimizer:
        """Returns the optimiser; for `epsilon` see `build`."""
        base, name, rounds = self.server_learning_rate, self.server_schedule, self.schedule_rounds
        if name != CONSTANT and not rounds:
            raise ValueError(
                f"`schedule_rounds` must be at least 1 for server_schedule={name} outside of a "
                "run, which has a number of rounds; got 0. Set it, e.g. `schedule_rounds=200`."
            )

        def rate(round_):
            return base * share(name, round_.number, rounds)

        def optimizer(learning_rate):
            return build(self.server_optimizer, learning_rate, epsilon)

        def apply(gradient, state, weights, round_):
            moved, state = optimizer(rate(round_)).apply(gradient, state, weights)
            if self.server_weight_decay:
                decay = self.server_weight_decay * share(name, round_.number, rounds)
                moved = tf.nest.map_structure(lambda m, w: m - decay * w, moved, weights)
            return moved, state

        return ServerOptimizer(rate, optimizer(base).init, apply)


@dataclasses.dataclass(frozen=True)
class AveragingServer(ServerSettings):
    """The same for a server that averages: it follows the mean of the participants' differences.

    By default, sgd with a rate of 1, its weights become the mean of the participants' weights. The
    other optimisers are FedOpt: Reddi et al., "Adaptive Federated Optimization", ICLR 2021,
    Algorithm 2. momentum gives FedAvgM, and adam, yogi and adagrad give FedAdam, FedYogi and
    FedAdagrad.

    Adam and Yogi correct the bias of their moments, with beta_1 = 0.9 and beta_2 = 0.999, and
    second moments start from 0. So the authors ran them (google-research/federated on GitHub:
    README.md and docs/hyperparameters.md in optimization, utils/optimizers/yogi.py), while
    Algorithm 2 has no correction and second moments that start from tau^2 or more.
    """

    server_learning_rate: float = server_learning_rate("auto", taken=("auto",))
    server_optimizer: str = server_optimizer("sgd")

    def __post_init__(self):
        super().__post_init__()
        if self.server_learning_rate == "auto":
            rate = 1.0 if self.server_optimizer == "sgd" else 0.01
            object.__setattr__(self, "server_learning_rate", rate)

    def server(self, epsilon: float | None = 1e-3) -> ServerOptimizer:
        """Returns the optimiser; epsilon is tau in FedOpt, as its authors recommend there."""
        return super().server(epsilon)


def share(schedule: str, number: tf.Tensor, num_rounds: int) -> tf.Tensor:
    """Returns [] float32, the factor of the rate in round t = `number`, [] int32."""
    if schedule == CONSTANT:
        return tf.ones([])
    left = tf.cast(tf.maximum(num_rounds + 1 - number, 0), tf.float32)
    if schedule in _FALLING_PARTS:
        return tf.minimum(left / (num_rounds // _FALLING_PARTS[schedule] + 1), 1.0)
    # The same as (1 + cos(pi (t - 1) / T)) / 2, which would lose its digits near the end.
    return tf.square(tf.sin(math.pi / (2 * num_rounds) * left))
