"""The counts of clients, and the metrics that the server makes of them."""

from __future__ import annotations

import collections
from collections.abc import Callable

import tensorflow as tf

from tf_pflego.core.algorithm import Client, Served
from tf_pflego.core.nests import Structure
from tf_pflego.core.tasks import Task
from tf_pflego.tff import types
from tf_pflego.tff.installed import tff
from tf_pflego.tff.types import Data


def counts(
    task: Task, served: Served, weights: Structure, client: Client, test: Data
) -> collections.OrderedDict:
    """Returns by name the sums [m] of all that is measured of a model on examples of a client.

    A client that fine-tunes the model does so first, on its training examples.
    """
    if served.fine_tune is not None:
        weights = served.fine_tune(weights, client)
    logits = served.predict(weights, test.examples, client.classes)
    return collections.OrderedDict(
        (name, task.measured(statistic, logits, test.labels))
        for name, statistic in _measured(task).items()
    )


def _measured(task):
    return {**task.counted("train"), **task.counted("test")}


def of_sums(task: Task, counts_type: tff.Type) -> Callable:
    """Returns {counts}@CLIENTS -> metrics@SERVER, to be called in a federated computation.

    A client's counts are, by name, a number or the sums of a statistic.
    """
    divide = types.computation(lambda counts: values(task, counts), counts_type)
    return lambda counts: tff.federated_map(divide, tff.federated_sum(counts))


def values(task: Task, counts: Structure) -> collections.OrderedDict:
    """Returns the metrics of one client's counts, or of the sum over clients."""
    statistics = _measured(task)
    return collections.OrderedDict(
        (name, tf.cast(statistics[name].value(one), tf.float32) if name in statistics else one)
        for name, one in counts.items()
    )
