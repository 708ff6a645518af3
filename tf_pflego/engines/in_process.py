"""The reference engine: the participants of a round in this process.

In general they run one after the other. Where an exchange leaves theta fixed (`Exchange.features_update`), the body runs
once forward and once backward over the examples of many participants, in passes whose activations fit a budget.
"""

import itertools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Algorithm, Exchange, Round, Structure
from tf_pflego.data.clients import ClientData, as_floats
from tf_pflego.data.partition import starts
from tf_pflego.engines.exchange import Outcome, Participants, count_hits, make_client, run_client

_ACTIVATION_BYTES_PER_PASS = 2**29


class Group(NamedTuple):
    """Some participants, g of them, and their examples end to end."""

    seeds: tf.Tensor  # [g, 2] int32
    states: Structure  # each leaf [g, ...]
    messages: Structure  # each leaf [g, ...]
    num_classes: tf.Tensor  # [g] int32
    client_weights: tf.Tensor  # [g] float32
    examples: tf.Tensor  # [n, ...] as stored
    labels: tf.Tensor  # [n] int32
    offsets: tf.Tensor  # [g + 1] int64, where each one's examples start
    test_examples: tf.Tensor  # as above, for the test; empty if there is none
    test_labels: tf.Tensor
    test_offsets: tf.Tensor


class InProcessEngine:
    """Runs an algorithm's exchanges in this process.

    Args:
      algorithm: The algorithm.
      data: The clients' data.
    """

    def __init__(self, algorithm: Algorithm, data: ClientData):
        self._model = algorithm.model
        self._data = data
        self._weights = data.client_weights
        self._passes = {}

    def run_exchange(self, exchange: Exchange, message, participants: Participants, round_: Round, evaluate: bool) -> Outcome:
        """See `Engine.run_exchange`."""
        total, parts = None, []
        for rows in self._group_rows(exchange, participants.ids):
            group = self._group(participants, rows, evaluate)
            summed, *rest = self._pass(exchange, evaluate, message, group, round_)(message, group, round_)
            total = summed if total is None else tf.nest.map_structure(tf.add, total, summed)
            parts.append(tuple(rest))
        kept, states, hits = tf.nest.map_structure(lambda *leaves: np.concatenate(leaves), *parts)
        return Outcome(total, kept, states, hits if evaluate else None)

    def close(self) -> None:
        """See `Engine.close`; there is nothing to free."""

    def _group_rows(self, exchange, ids):
        """Returns the rows of the participants that each pass takes."""
        if exchange.features_update is None:
            return [[row] for row in range(len(ids))]
        examples_per_pass = max(1, _ACTIVATION_BYTES_PER_PASS // self._model.activation_bytes_per_example)
        pass_of_row = np.cumsum(self._data.train.sizes[ids]) // examples_per_pass
        return [list(rows) for _, rows in itertools.groupby(range(len(ids)), key=lambda row: pass_of_row[row])]

    def _group(self, participants, rows, evaluate):
        ids = participants.ids[rows]
        test_ids = ids if evaluate else ids[:0]
        return Group(
            *tf.nest.map_structure(lambda leaf: np.asarray(leaf)[rows], participants[1:]),
            self._data.num_classes[ids],
            self._weights[ids],
            *self._data.train.gather(ids),
            starts(self._data.train.sizes[ids]),
            *self._data.test.gather(test_ids),
            starts(self._data.test.sizes[test_ids]),
        )

    def _pass(self, exchange, evaluate, *example_args):
        """Returns the traced function that runs a group: (message, group, round) -> (summed, kept, states, hits)."""
        key = (id(exchange), evaluate)
        if key not in self._passes:
            run = _client_pass if exchange.features_update is None else _features_pass
            message, group, round_ = (_specs(arg) for arg in example_args)
            group = tf.nest.map_structure(lambda s: tf.TensorSpec([None, *s.shape[1:]], s.dtype), group)
            self._passes[key] = tf.function(
                lambda *args: run(exchange, self._model, evaluate, *args), input_signature=[message, group, round_]
            )
        return self._passes[key]


def _specs(structure):
    return tf.nest.map_structure(lambda leaf: tf.TensorSpec(np.shape(leaf), tf.as_dtype(leaf.dtype)), structure)


def _client_pass(exchange, model, evaluate, message, group, round_):
    """The pass of a group of one."""
    seed, state, client_message, num_classes, client_weight = tf.nest.map_structure(lambda leaf: leaf[0], group[:5])
    client = make_client(group.examples, group.labels, num_classes, client_weight, seed)
    test = (group.test_examples, group.test_labels) if evaluate else None
    summed, kept, state, hits = run_client(exchange, model, message, client_message, state, client, round_, test)
    return summed, *tf.nest.map_structure(lambda leaf: leaf[None], (kept, state, hits))


def _features_pass(exchange, model, evaluate, theta, group, round_):
    """The pass of a group under one theta: forward, every client's work on its features, backward."""
    with tf.GradientTape() as tape:
        tape.watch(theta)
        features = model.features(theta, as_floats(group.examples))
    test_features = model.features(theta, as_floats(group.test_examples)) if evaluate else None

    def run(k):
        seed, state, num_classes, client_weight = tf.nest.map_structure(
            lambda leaf: leaf[k], (group.seeds, group.states, group.num_classes, group.client_weights)
        )
        rows = slice(group.offsets[k], group.offsets[k + 1])
        client = make_client(group.examples[rows], group.labels[rows], num_classes, client_weight, seed)
        result = exchange.features_update(state, features[rows], client, round_)
        hits = tf.constant(-1)
        if evaluate:
            test_rows = slice(group.test_offsets[k], group.test_offsets[k + 1])
            hits = count_hits(result.head, test_features[test_rows], group.test_labels[test_rows])
        return result.features_gradient, result.state, hits

    num_clients = tf.shape(group.num_classes)[0]
    spec = tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), group.states)
    features_gradient, states, hits = tf.map_fn(
        run,
        tf.range(num_clients),
        fn_output_signature=(tf.RaggedTensorSpec([None, model.num_features], tf.float32, 0), spec, tf.int32),
        parallel_iterations=2,
    )
    theta_gradient = tape.gradient(features, theta, output_gradients=features_gradient.values)
    return theta_gradient, (), states, hits
