"""What a client computes in an exchange, as operations of a graph, whichever engine runs them."""

from __future__ import annotations

from typing import NamedTuple

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
from tf_pflego.core.nests import Structure
from tf_pflego.data.clients import ClientData
from tf_pflego.data.mapped import MappedData, OpenData, Rows


class ClientFacts(NamedTuple):
    """What a client's computation must be told besides messages and state.

    The numbers are packed into one array, since every argument costs time.
    """

    numbers: np.ndarray  # [6 + K] int64: first row and number of the training examples, the same
    #                      for the test examples, the two numbers of the seed, and the classes
    weight: np.ndarray  # [] float32, alpha_i
    validation: np.ndarray | tuple[()] = ()  # [2] int64, first row and number of the validation
    #                                          examples; an empty nest if there are none


class UnpackedFacts(NamedTuple):
    """The same in a graph."""

    first: tf.Tensor  # [] int64, row of its first training example
    count: tf.Tensor  # [] int64, number of its training examples
    first_test: tf.Tensor  # [] int64
    count_test: tf.Tensor  # [] int64
    seed: tf.Tensor  # [2] int32
    classes: tf.Tensor  # [K] int32; see `Client`
    weight: tf.Tensor  # [] float32, alpha_i
    validation: tf.Tensor | tuple[()]  # [2] int64; see `ClientFacts`


def client_facts(
    data: ClientData, ids: np.ndarray, seeds: np.ndarray, num_rows: int
) -> ClientFacts:
    """Returns the facts of clients, with a leading axis [c].

    Args:
      data: The clients' data.
      ids: [c] int64.
      seeds: [c, 2] int32.
      num_rows: K, the rows of a head.
    """
    train, test = data.train, data.test
    columns = [
        train.offsets[ids],
        train.sizes[ids],
        test.offsets[ids],
        test.sizes[ids],
        seeds,
        data.head_classes(ids, num_rows),
    ]
    numbers = np.column_stack(columns).astype(np.int64, copy=False)
    facts = ClientFacts(numbers, data.client_weights[ids])
    held = data.validation
    if held is None:
        return facts
    return facts._replace(validation=np.column_stack([held.offsets[ids], held.sizes[ids]]))


def unpacked(facts: ClientFacts) -> UnpackedFacts:
    """Returns one client's facts, as operations of a graph."""
    places, *rest = tf.split(facts.numbers, [4, 2, facts.numbers.shape[0] - 6])
    first, count, first_test, count_test = tf.unstack(places)
    seed, classes = (tf.cast(part, tf.int32) for part in rest)
    return UnpackedFacts(first, count, first_test, count_test, seed, classes, *facts[1:])


class ClientOutputs(NamedTuple):
    """What a client's computation returns, besides what is summed over the participants."""

    state: Structure  # the new state
    individual: Structure  # uploaded, and kept apart from the uploads of other clients
    finite: tf.Tensor  # [] bool, whether all numbers of its new state and of its uploads are
    test_hits: tf.Tensor  # [] int32, correct answers after local training; -1 if not tested
    validation_hits: tf.Tensor | tuple[()] = ()  # The same; an empty nest without such examples.

    def hits(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns those on test and validation examples as arrays; None if there are none."""
        held = self.validation_hits
        return np.asarray(self.test_hits), None if isinstance(held, tuple) else np.asarray(held)


class ClientComputation:
    """One client's part of an exchange.

    Args:
      algorithm: The algorithm.
      exchange: One of its exchanges.
      data: The clients' data.
      state_spec: The spec of a client's state.
      message: The message to all, for its shapes.
      messages: The messages to single clients, each leaf [c, ...], for their shapes.
      round_: The round, for its shapes.
      evaluate: Whether to test the client's weights on its test and validation examples after its
        training.

    Attributes:
      reads: For each leaf of a state, whether the computation reads it; the other leaves need not
        be passed to it.
      summed_spec: The spec of the `Sums` that are added up over the participants.
      outputs_spec: The spec of `ClientOutputs`.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        exchange: Exchange,
        data: MappedData,
        state_spec: Structure,
        message: Structure,
        messages: Structure,
        round_: Round,
        evaluate: bool,
    ):
        self._served = next(iter(algorithm.served.values()))
        self._exchange = exchange
        self._evaluate = evaluate
        self._state_spec = state_spec
        length = 6 + algorithm.model.num_classes
        facts = ClientFacts(tf.TensorSpec([length], tf.int64), tf.TensorSpec([], tf.float32))
        if data.clients.validation is not None:
            facts = facts._replace(validation=tf.TensorSpec([2], tf.int64))

        leaves = tf.nest.flatten(state_spec)
        message_to_one = tf.nest.map_structure(
            lambda leaf: tf.TensorSpec(leaf.shape[1:], tf.as_dtype(leaf.dtype)), messages
        )
        traced = tf.function(self._run, autograph=False).get_concrete_function(
            data.specs(), specs_of(message), message_to_one, leaves, facts, specs_of(round_)
        )
        self.summed_spec, self.outputs_spec = specs_of(traced.structured_outputs)
        nests.refuse_unlike(state_spec, self.outputs_spec.state, "client_update", "init_client")
        first = len(tf.nest.flatten((data.specs(), message, message_to_one)))
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

        Args:
          data: The clients' data, opened.
          message: From the server to all.
          message_to_one: From the server to this client.
          state_leaves: The leaves of the client's state that the computation reads, in order.
          facts: The client's facts.
          round_: The round.
        """
        given = iter(state_leaves)
        leaves = [
            next(given) if read else tf.zeros(spec.shape, spec.dtype)
            for read, spec in zip(self.reads, tf.nest.flatten(self._state_spec), strict=True)
        ]
        return self._traced(data, message, message_to_one, leaves, facts, round_)

    def _run(self, data, message, message_to_one, state_leaves, facts, round_):
        facts = unpacked(facts)
        client = read_client(data.train, facts)._replace(message=message_to_one)
        state = tf.nest.pack_sequence_as(self._state_spec, state_leaves)
        result = self._exchange.client_update(message, state, client, round_)
        hits, validation_hits = tf.constant(-1), ()
        if self._evaluate:
            weights = fine_tuned(self._served, result.weights, client)
            examples, labels = data.test.read(facts.first_test, facts.count_test)
            hits = count_hits(self._served.predict(weights, examples, facts.classes), labels)
            if data.validation:
                examples, labels = data.validation.read(*tf.unstack(facts.validation))
                logits = self._served.predict(weights, examples, facts.classes)
                validation_hits = count_hits(logits, labels)
        sums = Sums.share(result, client.client_weight)
        finite = all_finite((sums, result.individual, result.state))
        outputs = ClientOutputs(result.state, result.individual, finite, hits, validation_hits)
        return sums, outputs


def all_finite(structure: Structure) -> tf.Tensor:
    """Returns [] bool, whether no number of a nest of tensors is infinite or NaN."""
    floats = [leaf for leaf in tf.nest.flatten(structure) if leaf.dtype.is_floating]
    found = [tf.reduce_all(tf.math.is_finite(leaf)) for leaf in floats]
    return tf.reduce_all(tf.stack([tf.constant(True), *found]))


def read_client(rows: Rows, facts: UnpackedFacts) -> Client:
    """Returns a client with its examples among the rows of the training examples."""
    examples, labels = rows.read(facts.first, facts.count)
    return Client(
        examples=examples,
        labels=labels,
        num_examples=tf.cast(facts.count, tf.int32),
        classes=facts.classes,
        client_weight=facts.weight,
        seed=facts.seed,
    )


def fine_tuned(served: Served, weights: Structure, client: Client) -> Structure:
    """Returns the weights that the client predicts with."""
    return weights if served.fine_tune is None else served.fine_tune(weights, client)


def count_hits(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns [] int32, the number of examples that are classified correctly."""
    predicted = tf.argmax(logits, axis=1, output_type=tf.int32)
    # In the graphs that TFF builds, `==` would compare the Python objects.
    return tf.math.count_nonzero(tf.equal(predicted, labels), dtype=tf.int32)
