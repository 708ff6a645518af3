"""A client's computation in an exchange and in a test, as operations of a graph of any engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.core import nests
from tf_pflego.core.algorithm import Client, Exchange, Round, Served, Sums, specs_of
from tf_pflego.core.nests import Structure
from tf_pflego.core.statistics import Statistics
from tf_pflego.core.tasks import Task
from tf_pflego.data.mapped import OpenData


class ClientFacts(NamedTuple):
    """The inputs of a client's computation besides messages and state.

    The numbers are packed into one array, since every argument costs time.
    """

    numbers: np.ndarray  # [2 S + 2 + K] int64: for each of the S splits the first row and the
    #                      number of the client's examples, the seed, and the classes
    weight: np.ndarray  # [] float32, alpha_i


class GraphClient:
    """One client in a graph, with rows that are read at the first request."""

    def __init__(self, data: OpenData, facts: ClientFacts):
        splits = splits_of(data)
        *ranges, seed, classes = tf.split(facts.numbers, [2] * len(splits) + [2, -1])
        self._data, self._ranges = data, dict(zip(splits, ranges, strict=True))
        self._rows: dict[str, tuple[tf.Tensor, tf.Tensor]] = {}
        self._seed = tf.cast(seed, tf.int32)
        self._weight = facts.weight
        self.classes = tf.cast(classes, tf.int32)  # [K]; see `Client`

    def rows(self, split: str) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the client's examples and labels of a split."""
        if split not in self._rows:  # To read them is to copy them.
            self._rows[split] = getattr(self._data, split).read(*tf.unstack(self._ranges[split]))
        return self._rows[split]

    def trainee(self, message: Structure = ()) -> Client:
        """Returns the `Client` with its training examples."""
        examples, labels = self.rows("train")
        num_examples = tf.cast(self._ranges["train"][1], tf.int32)
        facts = num_examples, self.classes, self._weight, self._seed
        return Client(examples, labels, *facts, message)

    def adapted(self, served: Served, weights: Structure) -> Structure:
        """Returns the weights for predictions, fine-tuned if the method does that."""
        return weights if served.fine_tune is None else served.fine_tune(weights, self.trainee())

    def sums(
        self, served: Served, weights: Structure, task: Task, statistics: Statistics
    ) -> dict[str, dict[str, tf.Tensor]]:
        """Returns the sums over the client's rows of each split, with adapted weights."""
        weights, sums = self.adapted(served, weights), {}
        for split, named in statistics.items():
            examples, labels = self.rows(split)
            logits = served.predict(weights, examples, self.classes)
            sums[split] = {name: task.measured(one, logits, labels) for name, one in named.items()}
        return sums


class ClientOutputs(NamedTuple):
    """The results of a client's computation, besides the sums over the participants."""

    state: Structure  # the new state
    individual: Structure  # uploaded, and kept apart from the uploads of other clients
    finite: tf.Tensor  # [] bool, whether all numbers of its new state and of its uploads are
    sums: tf.Tensor  # [m] float64, what was counted after local training; see `packed`


class ClientComputation:
    """One client's part of an exchange, traced for `LocalClients` of the same shapes.

    `reads` has for each leaf of a state whether the computation reads it. The others need not be
    passed. The specs are of the `Sums` over the participants, of `ClientOutputs` and of the weights
    that are tested, if `tests`. `sizes` are the numbers of sums of each statistic of the test.
    """

    def __init__(
        self,
        clients: Any,
        exchange: Exchange,
        message: Structure,
        messages: Structure,
        round_: Round,
        evaluate: bool,
    ):
        algorithm, data_spec = clients.algorithm, clients.data_spec
        self._served = next(iter(algorithm.served.values()))
        self._exchange = exchange
        splits = splits_of(data_spec)
        self._task = algorithm.model.task
        self._statistics = statistics_of(self._task, splits, train=False) if evaluate else {}
        self.tests = bool(self._statistics)
        self.sizes: Structure = {}
        self.weights_spec: Structure = ()
        self._state_spec = clients.states.spec
        length = 2 * len(splits) + 2 + algorithm.model.num_classes
        facts = ClientFacts(tf.TensorSpec([length], tf.int64), tf.TensorSpec([], tf.float32))

        leaves = tf.nest.flatten(self._state_spec)
        self.reads = [True] * len(leaves)  # as long as nobody knows
        message_to_one = tf.nest.map_structure(
            lambda leaf: tf.TensorSpec(leaf.shape[1:], tf.as_dtype(leaf.dtype)), messages
        )
        traced = tf.function(self._run, autograph=False).get_concrete_function(
            data_spec, specs_of(message), message_to_one, leaves, facts, specs_of(round_)
        )
        self.summed_spec, self.outputs_spec = specs_of(traced.structured_outputs)
        nests.refuse_unlike(
            self._state_spec, self.outputs_spec.state, "client_update", "init_client"
        )
        first = len(tf.nest.flatten((data_spec, message, message_to_one)))
        placeholders = traced.inputs[first : first + len(leaves)]
        self.reads = [bool(placeholder.consumers()) for placeholder in placeholders]
        self._traced = traced

    def __call__(self, data, message, message_to_one, state_leaves, facts, round_):
        """Returns the sums and the `ClientOutputs` as operations of the graph being built.

        It takes only the leaves of the state that it reads, in order.
        """
        leaves = self._all_leaves(state_leaves)
        return self._traced(data, message, message_to_one, leaves, facts, round_)

    def updated(self, message, state_leaves, client, round_):
        """Returns the same of a `Client` before the test, and the weights to test.

        They are separate operations, for a graph that is compiled.
        """
        state = tf.nest.pack_sequence_as(self._state_spec, self._all_leaves(state_leaves))
        result = self._exchange.client_update(message, state, client.in_round(round_), round_)
        sums = Sums.share(result, client.client_weight)
        finite = nests.all_finite((sums, result.individual, result.state))
        return sums, ClientOutputs(result.state, result.individual, finite, ()), result.weights

    def tested(self, one: GraphClient, weights: Structure) -> dict[str, dict[str, tf.Tensor]]:
        """Returns the sums of the test of a client's weights, by split and statistic."""
        counted = one.sums(self._served, weights, self._task, self._statistics)
        self.sizes = sizes_of(counted)
        return counted

    def zeros(self) -> Sums:
        """Returns the sums over no participants."""
        return tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), self.summed_spec)

    def _all_leaves(self, state_leaves):
        passed, specs = iter(state_leaves), tf.nest.flatten(self._state_spec)
        return [
            next(passed) if read else tf.zeros(spec.shape, spec.dtype)
            for read, spec in zip(self.reads, specs, strict=True)
        ]

    def _run(self, data, message, message_to_one, state_leaves, facts, round_):
        one = GraphClient(data, facts)
        client = one.trainee(message_to_one)
        sums, outputs, weights = self.updated(message, state_leaves, client, round_)
        self.weights_spec = specs_of(weights)
        counted = self.tested(one, weights) if self.tests else {}
        return sums, outputs._replace(sums=packed(counted))


def splits_of(data: OpenData) -> tuple[str, ...]:
    """Returns the names of the splits that exist."""
    return tuple(split for split, rows in data._asdict().items() if rows)


def statistics_of(task: Task, splits: Sequence[str], train: bool) -> Statistics:
    """Returns the statistics of a test on these splits, on training examples only on request."""
    return {split: task.counted(split) for split in splits if train or split != "train"}


def packed(sums: Structure) -> tf.Tensor:
    """Returns all sums of a client as one tensor [m] float64."""
    leaves = tf.nest.flatten(sums)
    return tf.concat(leaves, axis=0) if leaves else tf.zeros([0], tf.float64)


def sizes_of(sums: Structure) -> Structure:
    """Returns the number of sums of each statistic."""
    return tf.nest.map_structure(lambda leaf: leaf.shape[0], sums)


def unpacked(sizes: Structure, numbers: np.ndarray) -> Structure:
    """Returns the sums of each statistic, [c, size] in a nest of sizes, from [c, m] of `packed`."""
    if not sizes:  # Nothing was tested.
        return {}
    places = np.cumsum(tf.nest.flatten(sizes))[:-1]
    return tf.nest.pack_sequence_as(sizes, np.split(np.asarray(numbers), places, axis=1))
