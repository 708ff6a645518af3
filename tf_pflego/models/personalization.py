"""The rules for `Served.personalize`, the on-device training of a client's model.

Each step takes all given examples. Examples in mini-batches are given batch by batch, for one step
each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from tf_pflego.core import nests, settings
from tf_pflego.core.algorithm import Client, Weights
from tf_pflego.core.local_training import gradient, loop
from tf_pflego.models.heads.objective import HeadObjective
from tf_pflego.models.heads.solvers import SOLVERS, STEPWISE, WITH_RATE, automatic_rate, solve
from tf_pflego.models.split_model import SplitModel

Rule: TypeAlias = "Callable[[tf.Tensor, Client, tf.Tensor, tf.Tensor], tf.Tensor]"
LearnOn: TypeAlias = "Callable[[Weights, Client, tf.Tensor, tf.Tensor], Weights]"


def learning_on(model: SplitModel, rule: Rule | None) -> LearnOn:
    """Returns a function for on-device training of body and head, from all examples of a client.

    The rule is the head's, over features that are computed once. Without a rule, gradient steps
    move the whole network. They have no automatic learning rate: with a rate of 0 nothing moves.
    Without a seed the body is in inference mode.
    """

    def network_steps(weights, client, steps, learning_rate):
        client = client._replace(seed=None)

        def step(k, weights):
            slope = gradient(lambda weights: model.loss(weights, client), weights)
            return nests.subtract(weights, nests.scale(learning_rate, slope))

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

    def head_rule(self, model: SplitModel) -> Rule:
        """Returns the rule for on-device training of a client's head: the same solver.

        If the run solves linear equations, which no TFLite file can, it takes Newton's steps.
        """
        solver = self.head_solver
        if solver == "exact":
            if not model.task.outputs_first.is_quadratic:
                raise ValueError(
                    "`head_solver` must be gd, momentum, adam or newton for a task whose loss is "
                    f"not the squared error; got exact for {model.task.name}. Try newton."
                )
            solver = "newton"
        return head_rule(model, solver, self.client_learning_rate, self.head_penalty)


def head_rule(
    model: SplitModel,
    solver: str = "gd",
    adam_rate: float | str = 0.0,
    penalty: float = 0.0,
) -> Rule:
    """Returns the rule for methods that train heads over a fixed body.

    The loss does not rise; see `models.heads.solvers`. The automatic learning rate is one over the
    curvature of the loss at the head, and `adam_rate` with Adam, which has no such rate.
    """

    def personalize(head, client, steps, learning_rate):
        objective = model.head_objective(client.examples, client, penalty)
        automatic = adam_rate
        if solver != "adam":
            automatic = automatic_rate(objective, head, solver, largest=float("inf"))
        rate = tf.where(learning_rate > 0, learning_rate, automatic)
        return solve(objective, head, steps, solver, rate)

    return personalize
