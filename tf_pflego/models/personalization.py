"""The rules for `Served.personalize`, the on-device training of a client's model.

Each step takes all given examples. Examples in mini-batches are given batch by batch, for one step
each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from tf_pflego.core import nests, optimizers, settings
from tf_pflego.core.algorithm import Client, Weights
from tf_pflego.core.local_training import gradient, loop
from tf_pflego.models.heads.objective import HeadObjective
from tf_pflego.models.heads.solvers import SOLVERS, STEPWISE, WITH_RATE, automatic_rate, solve
from tf_pflego.models.split_model import SplitModel
from tf_pflego.system.by_value import ByValue

Rule: TypeAlias = "Callable[[tf.Tensor, Client, tf.Tensor, tf.Tensor], tf.Tensor]"
LearnOn: TypeAlias = "Callable[[Weights, Client, tf.Tensor, tf.Tensor], Weights]"
_STEPS_PER_TURN = 10  # one of Newton's


class Fit(NamedTuple):
    """Heads that have learnt on until their gradients are small, or their steps are used up."""

    heads: tf.Tensor  # [c, K, M + 1] float32
    steps: tf.Tensor  # [c] int32
    at_limit: tf.Tensor  # [c] bool, whether the gradient is not small yet


def learning_on(model: SplitModel, rule: Rule | None) -> LearnOn:
    """Returns a function for on-device training of body and head, from all examples of a client.

    The rule is the head's, over features that are computed once. Without a rule, gradient steps
    move the whole network, or only the head and personal weights of the body if there are any. They
    have no automatic learning rate: with a rate of 0 nothing moves. Without a seed the body is in
    inference mode.
    """

    def network_steps(weights, client, steps, learning_rate):
        client = client._replace(seed=None)

        def step(k, weights):
            slope = gradient(lambda weights: model.loss(weights, client), weights)
            learnt = nests.subtract(weights, nests.scale(learning_rate, slope))
            if not model.parts.any_personal:
                return learnt
            shared, personal = model.parts.split(weights)[0], model.parts.split(learnt)[1]
            return model.parts.joined(shared._replace(head=learnt.head), personal)

        return loop(step, weights, steps)

    if rule is None:
        return network_steps

    def head_steps(weights, client, steps, learning_rate):
        features = model.features(weights.theta, client._replace(seed=None))
        client = client._replace(examples=features)
        return weights._replace(head=rule(weights.head, client, steps, learning_rate))

    return head_steps


@dataclasses.dataclass(frozen=True)
class HeadTraining(settings.HyperParameters):
    """Hyper-parameters of methods with a choice of solvers for the clients' heads."""

    local_steps: int = settings.local_steps(read_with={"head_solver": STEPWISE})
    client_learning_rate: float | str = settings.client_learning_rate(
        taken=("auto",), read_with={"head_solver": WITH_RATE}
    )
    head_solver: str = settings.setting(
        "gd", "how the head is trained, except in its last step", choices=SOLVERS
    )
    head_penalty: float = settings.setting(
        0.0,
        "weight of half the squared norm of a client's head, without its biases, in the client's "
        "loss as a function of its head",
        at_least=0,
    )

    def __post_init__(self):
        super().__post_init__()
        if self.head_solver == "adam" and self.client_learning_rate == "auto":
            raise ValueError(
                "`client_learning_rate` must be a number for Adam; got 'auto'. "
                "Try `client_learning_rate=0.01`."
            )

    def train_head(
        self, objective: HeadObjective, head: tf.Tensor, steps: int, largest_rate: tf.Tensor
    ) -> tf.Tensor:
        """Returns the head after some steps. An automatic rate is at most `largest_rate`."""
        rate = self.client_learning_rate
        if rate == "auto":
            rate = automatic_rate(objective, head, self.head_solver, largest_rate)
        return solve(objective, head, steps, self.head_solver, rate)

    def train_personal(
        self, model: SplitModel, weights: Weights, client: Client, steps: int
    ) -> Weights:
        """Returns the weights after joint steps on the head and the body's personal weights.

        Each step takes a pass forward and backward, and one more forward shows whether the loss has
        risen. If so, the weights stay as they are.
        """
        if not steps:
            return weights
        shared, personal = model.parts.split(weights)
        momentum = optimizers.MOMENTUM if self.head_solver == "momentum" else 0.0
        optimizer = optimizers.sgd(self.client_learning_rate, momentum)
        if self.head_solver == "adam":
            optimizer = optimizers.adam(self.client_learning_rate)

        def network(head, personal):
            return model.parts.joined(shared._replace(head=head), personal)

        def objective(moved):
            features, pull_back = model.features_and_pull_back(network(*moved).theta, client)
            return model.head_objective(features, client, self.head_penalty), pull_back

        def step(k, carry):
            moved, state, started = carry
            loss, pull_back = objective(moved)
            g_head, g_features = loss.gradients(moved[0], 1.0)
            g_personal = model.parts.split(Weights(pull_back(g_features), g_head))[1]
            started = tf.where(k == 0, loss.loss(moved[0]), started)
            return *optimizer.apply((g_head, g_personal), state, moved), started

        start = shared.head, personal
        moved, _, started = loop(step, (start, optimizer.init(start), tf.zeros([])), steps)
        # The comparison is false also if the loss is not a number.
        falls = objective(moved)[0].loss(moved[0]) <= started
        return network(
            *tf.nest.map_structure(lambda new, old: tf.where(falls, new, old), moved, start)
        )

    def head_rule(self, model: SplitModel) -> Rule:
        """Returns the rule for on-device training of a client's head: the same solver."""
        takes_steps = self.head_solver in WITH_RATE and self.client_learning_rate != "auto"
        if model.parts.any_personal and not takes_steps:
            raise ValueError(
                "`head_solver` must be gd, momentum or adam, with a number as "
                "`client_learning_rate`, for personal weights of a body, which change the "
                f"features of a head; got {self.head_solver} with {self.client_learning_rate}. "
                "Choose them, or remove `personal`."
            )
        if self.head_solver == "exact" and not model.task.outputs_first.is_quadratic:
            raise ValueError(
                "`head_solver` must be gd, momentum, adam or newton for a task with another loss "
                f"than the squared error; got exact for {model.task.name}. Try newton."
            )
        return HeadRule(model, self.head_solver, self.client_learning_rate, self.head_penalty)


@dataclasses.dataclass(frozen=True)
class HeadRule(ByValue):
    """The rule for methods whose clients train heads over a fixed body.

    The loss does not rise (see `models.heads.solvers`). The automatic learning rate is one over the
    curvature of the loss at the head, and `adam_rate` with Adam, which has no such rate. If the
    solver is exact, which no TFLite file supports, steps are Newton's. Only `fit` solves the
    equations.
    """

    model: SplitModel
    solver: str = "gd"
    adam_rate: float | str = 0.0
    penalty: float = 0.0
    toward: tuple[tf.Tensor, tf.Tensor] | None = None  # see `HeadObjective.pulled`

    def __call__(
        self, head: tf.Tensor, client: Client, steps: tf.Tensor, learning_rate: tf.Tensor
    ) -> tf.Tensor:
        """Returns the head [K, M + 1] after some steps, as `Served.personalize` says."""
        objective, automatic = self._objective(client), self.adam_rate
        solver = "newton" if self.solver == "exact" else self.solver
        if solver != "adam":
            automatic = automatic_rate(objective, head, solver, largest=float("inf"))
        rate = tf.where(learning_rate > 0, learning_rate, automatic)
        return solve(objective, head, steps, solver, rate)

    def fit(
        self,
        heads: tf.Tensor,
        clients: Client,
        most_steps: tf.Tensor,
        learning_rate: tf.Tensor,
        tolerance: tf.Tensor,
    ) -> Fit:
        """Lets the heads [c, K, M + 1] of clients learn on, each until its gradient is small.

        A gradient is small if its norm is at most `tolerance` times that at a head of zeros. It is
        looked at after every ten steps, before which an automatic rate is computed anew. The
        clients have equally many examples; each tensor of `clients` has an axis for them.
        """
        # Positions without a label are left out, so that clients of sequences differ in size.
        each = _one_by_one if self.model.positions else tf.vectorized_map
        steps = tf.zeros(tf.shape(heads)[:1], tf.int32)
        if self.solver == "exact":

            def solved(one):
                return solve(self._objective(one[1]), one[0], 1, "exact", 0.0)

            return Fit(each(solved, (heads, clients)), steps, steps > 0)

        def slope(one):
            return self._objective(one[1]).slope_at(one[0])

        def turn(done, heads, steps, rows):
            count = tf.minimum(_STEPS_PER_TURN, most_steps - done)

            def moved(one):
                head, client = one
                return self(head, client, count, learning_rate)

            some = tf.nest.map_structure(lambda leaf: tf.gather(leaf, rows), (heads, clients))
            learnt = tf.ensure_shape(each(moved, some), heads.shape)
            places = rows[:, None]
            heads = tf.tensor_scatter_nd_update(heads, places, learnt)
            done += count
            steps = tf.tensor_scatter_nd_update(steps, places, tf.fill(tf.shape(rows), done))
            is_steep = each(slope, (learnt, some[1])) > tf.gather(small, rows)
            return done, heads, steps, tf.boolean_mask(rows, is_steep)

        small = tolerance * each(slope, (tf.zeros_like(heads), clients))
        rows = tf.where(each(slope, (heads, clients)) > small)[:, 0]
        _, heads, steps, rows = tf.while_loop(
            lambda done, heads, steps, rows: (done < most_steps) & (tf.size(rows) > 0),
            turn,
            (0, heads, steps, rows),
            (tf.TensorShape([]), heads.shape, steps.shape, tf.TensorShape([None])),
        )
        at_limit = tf.scatter_nd(rows[:, None], tf.ones_like(rows), tf.shape(steps, rows.dtype))
        return Fit(heads, steps, at_limit > 0)

    def _objective(self, client):
        objective = self.model.head_objective(client.examples, client, self.penalty)
        return objective.pulled(*self.toward) if self.toward else objective


def _one_by_one(function, inputs):
    """Maps a function to a float tensor, as `tf.vectorized_map`, over clients that differ."""
    return tf.map_fn(function, inputs, fn_output_signature=tf.float32)
