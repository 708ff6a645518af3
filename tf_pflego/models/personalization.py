"""How a client's model learns on where it serves: the rules for `Served.personalize`.

Both take all examples that they are given in each step. Examples that come in mini-batches are
given batch by batch, for one step each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from tf_pflego.core import nests
from tf_pflego.core.algorithm import Client, Weights
from tf_pflego.core.local_training import gradient
from tf_pflego.models.heads.solvers import automatic_rate, solve
from tf_pflego.models.split import SplitModel

Rule: TypeAlias = "Callable[[tf.Tensor, Client, tf.Tensor, tf.Tensor], tf.Tensor]"
LearnOn: TypeAlias = "Callable[[Weights, Client, tf.Tensor, tf.Tensor], Weights]"


def learning_on(model: SplitModel, rule: Rule | None) -> LearnOn:
    """Returns how body and head learn on, from all examples of a client.

    The rule is that of the head, over features that are computed once. Without one, gradient steps
    move the whole network; they have no automatic learning rate: with a rate of 0 nothing moves.
    """

    def network_steps(weights, client, steps, learning_rate):
        def step(k, weights):
            slope = gradient(lambda weights: model.loss(weights, client), weights)
            return k + 1, nests.subtract(weights, nests.scale(learning_rate, slope))

        return tf.while_loop(lambda k, _: k < steps, step, (tf.constant(0), weights))[1]

    if rule is None:
        return network_steps

    def head_steps(weights, client, steps, learning_rate):
        features = model.features(weights.theta, client.examples)
        client = client._replace(examples=features)
        return weights._replace(head=rule(weights.head, client, steps, learning_rate))

    return head_steps


def head_rule(model: SplitModel, solver: str = "gd", adam_rate: float | str = 0.0) -> Rule:
    """Returns the rule of methods whose clients train their heads over a fixed body.

    The loss does not rise; see `models.heads.solvers`. The automatic learning rate is one over the
    curvature of the loss at the head.

    Args:
      model: The model.
      solver: One of `SOLVERS`.
      adam_rate: What stands in the place of the automatic rate if the solver is Adam, which has
        none.
    """

    def personalize(head, client, steps, learning_rate):
        objective = model.head_objective(client.examples, client)
        if solver == "adam":
            automatic = adam_rate
        else:
            automatic = automatic_rate(objective, head, solver, largest=float("inf"))
        rate = tf.where(learning_rate > 0, learning_rate, automatic)
        return solve(objective, head, steps, solver, rate)

    return personalize
