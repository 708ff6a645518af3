"""What a client computes in an exchange, as operations of a graph, whichever engine runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.core import nests
from tf_pflego.core.algorithm import (
    Algorithm,
    Client,
    Exchange,
    Round,
    Served,
    Sums,
    specs_of,
)
from tf_pflego.core.measures import Counts, Measures
from tf_pflego.core.nests import Structure
from tf_pflego.data.clients import ClientData
from tf_pflego.data.mapped import OpenData


class ClientFacts(NamedTuple):
    """What a client's computation must be told besides messages and state.

    The numbers are packed into one array, since every argument costs time.
    """

    numbers: np.ndarray  # [2 S + 2 + K] int64: for each of the S splits the first row and the
    #                      number of the client's examples, the seed, and the classes
    weight: np.ndarray  # [] float32, alpha_i


class UnpackedFacts(NamedTuple):
    """The same in a graph."""

    ranges: dict[str, tf.Tensor]  # [2] int64 by split: first row and number of its examples
    seed: tf.Tensor  # [2] int32
    classes: tf.Tensor  # [K] int32; see `Client`
    weight: tf.Tensor  # [] float32, alpha_i


def client_facts(
    data: ClientData, ids: np.ndarray, seeds: np.ndarray, num_rows: int
) -> ClientFacts:
    """Returns the facts of clients `ids` [c], whose heads have K rows, with a leading axis [c]."""
    ranges = [numbers[ids] for s in data.splits.values() for numbers in (s.offsets[:-1], s.sizes)]
    numbers = np.column_stack([*ranges, seeds, data.head_classes(ids, num_rows)])
    return ClientFacts(numbers.astype(np.int64, copy=False), data.client_weights[ids])


def unpacked(facts: ClientFacts, splits: Sequence[str]) -> UnpackedFacts:
    """Returns one client's facts, as operations of a graph."""
    sizes = [2] * len(splits) + [2, -1]
    *ranges, seed, classes = tf.split(facts.numbers, sizes)
    ranges = dict(zip(splits, ranges, strict=True))
    return UnpackedFacts(ranges, tf.cast(seed, tf.int32), tf.cast(classes, tf.int32), facts.weight)


class ClientOutputs(NamedTuple):
    """What a client's computation returns, besides what is summed over the participants."""

    state: Structure  # the new state
    individual: Structure  # uploaded, and kept apart from the uploads of other clients
    finite: tf.Tensor  # [] bool, whether all numbers of its new state and of its uploads are
    counts: tf.Tensor  # [m] float64, what was counted after local training; see `packed`


class ClientComputation:
    """One client's part of an exchange, traced for specs or for what has the same shapes.

    Attributes:
      reads: For each leaf of a state, whether the computation reads it; the other leaves need not
        be passed to it.
      summed_spec: The spec of the `Sums` that are added up over the participants.
      outputs_spec: The spec of `ClientOutputs`.
      measures: What is counted at the test.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        exchange: Exchange,
        data_spec: OpenData,
        state_spec: Structure,
        message: Structure,
        messages: Structure,
        round_: Round,
        evaluate: bool,
    ):
        self._served = next(iter(algorithm.served.values()))
        self._exchange = exchange
        self._splits = splits_of(data_spec)
        self.measures = measures_of(self._served, self._splits, train=False) if evaluate else {}
        self._state_spec = state_spec
        length = 2 * len(self._splits) + 2 + algorithm.model.num_classes
        facts = ClientFacts(tf.TensorSpec([length], tf.int64), tf.TensorSpec([], tf.float32))

        leaves = tf.nest.flatten(state_spec)
        message_to_one = tf.nest.map_structure(
            lambda leaf: tf.TensorSpec(leaf.shape[1:], tf.as_dtype(leaf.dtype)), messages
        )
        traced = tf.function(self._run, autograph=False).get_concrete_function(
            data_spec, specs_of(message), message_to_one, leaves, facts, specs_of(round_)
        )
        self.summed_spec, self.outputs_spec = specs_of(traced.structured_outputs)
        nests.refuse_unlike(state_spec, self.outputs_spec.state, "client_update", "init_client")
        first = len(tf.nest.flatten((data_spec, message, message_to_one)))
        placeholders = traced.inputs[first : first + len(leaves)]
        self.reads = [bool(placeholder.consumers()) for placeholder in placeholders]
        self._traced = traced

    def __call__(
        self,
        data: OpenData,
        message: Structure,
        message_to_one: Structure,
        state_leaves: list,
        facts: ClientFacts,
        round_: Round,
    ) -> tuple[Structure, ClientOutputs]:
        """Returns (summed, outputs) as operations of the graph being built.

        Of the state it takes those leaves alone that it reads, in order.
        """
        passed = iter(state_leaves)
        leaves = [
            next(passed) if read else tf.zeros(spec.shape, spec.dtype)
            for read, spec in zip(self.reads, tf.nest.flatten(self._state_spec), strict=True)
        ]
        return self._traced(data, message, message_to_one, leaves, facts, round_)

    def _run(self, data, message, message_to_one, state_leaves, facts, round_):
        facts = unpacked(facts, self._splits)
        client = read_client(data, facts)._replace(message=message_to_one)
        state = tf.nest.pack_sequence_as(self._state_spec, state_leaves)
        result = self._exchange.client_update(message, state, client, round_)
        counts: Counts = {}
        if self.measures:
            weights = fine_tuned(self._served, result.weights, client)
            rows = {split: read_rows(data, facts, split) for split in self.measures}
            counts = counted(self._served, weights, self.measures, rows, facts.classes)
        sums = Sums.share(result, client.client_weight)
        finite = all_finite((sums, result.individual, result.state))
        outputs = ClientOutputs(result.state, result.individual, finite, packed(counts))
        return sums, outputs


def all_finite(structure: Structure) -> tf.Tensor:
    """Returns [] bool, whether no number of a nest of tensors is infinite or NaN."""
    floats = [leaf for leaf in tf.nest.flatten(structure) if leaf.dtype.is_floating]
    finite = [tf.reduce_all(tf.math.is_finite(leaf)) for leaf in floats]
    return tf.reduce_all(tf.stack([tf.constant(True), *finite]))


def splits_of(data: OpenData) -> tuple[str, ...]:
    """Returns the names of the splits that there are."""
    return tuple(split for split, rows in data._asdict().items() if rows)


def read_rows(data: OpenData, facts: UnpackedFacts, split: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns a client's examples and labels of a split."""
    return getattr(data, split).read(*tf.unstack(facts.ranges[split]))


def read_client(data: OpenData, facts: UnpackedFacts) -> Client:
    """Returns a client with its training examples."""
    examples, labels = read_rows(data, facts, "train")
    return Client(
        examples=examples,
        labels=labels,
        num_examples=tf.cast(facts.ranges["train"][1], tf.int32),
        classes=facts.classes,
        client_weight=facts.weight,
        seed=facts.seed,
    )


def fine_tuned(served: Served, weights: Structure, client: Any) -> Structure:
    """Returns the weights that the client predicts with; without fine-tuning it is not read."""
    return weights if served.fine_tune is None else served.fine_tune(weights, client)


def measures_of(served: Served, splits: Sequence[str], train: bool) -> Measures:
    """Returns what a test counts on these splits, on the training examples only if asked to."""
    return {split: served.measures[split] for split in splits if train or split != "train"}


def counted(
    served: Served,
    weights: Structure,
    measures: Measures,
    rows: Mapping[str, tuple[tf.Tensor, tf.Tensor]],
    classes: tf.Tensor,
) -> Counts:
    """Returns what is counted of a client with `classes` [K] on its rows of each split."""
    counts = {}
    for split, of_split in measures.items():
        examples, labels = rows[split]
        logits = served.predict(weights, examples, classes)
        counts[split] = {name: measure(logits, labels) for name, measure in of_split.items()}
    return counts


def packed(counts: Structure) -> tf.Tensor:
    """Returns all sums and counts of a client as one tensor [m] float64."""
    numbers = [tf.cast(number, tf.float64) for number in tf.nest.flatten(counts)]
    return tf.stack(numbers) if numbers else tf.zeros([0], tf.float64)


def counts_of_packed(measures: Structure, numbers: np.ndarray) -> Structure:
    """Returns the nest of (sum [c], count [c]) of these measures from [c, m] of `packed`."""
    places = tf.nest.map_structure(lambda measure: (0, 0), measures)
    return tf.nest.pack_sequence_as(places, list(np.asarray(numbers).T))
