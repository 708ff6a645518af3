"""What every engine is given and gives back, and what a client computes whichever engine runs it."""

from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Algorithm, Client, Exchange, Round, Structure
from tf_pflego.data.clients import ClientData
from tf_pflego.data.mapped import OpenData, Rows
from tf_pflego.models import head as head_lib


class Participants(NamedTuple):
    """The participants of an exchange; c of them, in ascending order of their ids."""

    ids: np.ndarray  # [c] int64
    seeds: np.ndarray  # [c, 2] int32
    states: Structure  # each leaf [c, ...]
    messages: Structure  # what the server sends to each alone; each leaf [c, ...]


class Outcome(NamedTuple):
    """What an exchange leaves."""

    summed: Structure  # the sum over participants
    kept: Structure  # each leaf [c, ...]
    states: Structure  # the new states, each leaf [c, ...]
    test_hits: np.ndarray | None  # [c] int32, right answers after local training, if they were asked for


class Engine(Protocol):
    """Runs the exchanges of one algorithm over one federation."""

    def run_exchange(self, exchange: Exchange, message, participants: Participants, round_: Round, evaluate: bool) -> Outcome:
        """Runs `exchange` at all participants, of which there is at least one.

        Args:
          exchange: One of the algorithm's.
          message: What the server sends to all.
          participants: Who they are and what they bring.
          round_: The round.
          evaluate: Whether to test, after its local training, each participant's weights on its test examples.
        """

    def close(self) -> None:
        """Frees what the engine holds; it cannot be used afterwards."""


class ClientFacts(NamedTuple):
    """What a client's computation must be told besides messages and state; packed, since every argument costs."""

    numbers: np.ndarray  # [7] int64: first row and number of training examples, of test examples, K_i, seed
    weight: np.ndarray  # [] float32, alpha_i


# Columns of `ClientFacts.numbers`.
NUM_FACTS = 7


def client_facts(data: ClientData, participants: Participants) -> ClientFacts:
    """Returns the facts of all participants, with a leading axis [c]."""
    ids, train, test = participants.ids, data.train, data.test
    columns = [train.offsets[ids], train.sizes[ids], test.offsets[ids], test.sizes[ids], data.num_classes[ids]]
    return ClientFacts(np.column_stack([*columns, participants.seeds]).astype(np.int64), data.client_weights[ids])


def count_hits(head: tf.Tensor, features: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns [] int32, how many of the examples the head classifies right."""
    predicted = tf.argmax(head_lib.logits(head, features), axis=1, output_type=tf.int32)
    # Not `==`, which in the graphs that TFF builds compares the Python objects.
    return tf.math.count_nonzero(tf.equal(predicted, labels), dtype=tf.int32)


def read_client(rows: Rows, first, count, num_classes, client_weight, seed) -> Client:
    """Returns a client that sees `count` training examples from row `first` on."""
    examples, labels = rows.read(first, count)
    return Client(
        examples=examples,
        labels=labels,
        example_weights=tf.fill([count], 1.0 / tf.cast(count, tf.float32)),
        num_examples=tf.cast(count, tf.int32),
        num_classes=tf.cast(num_classes, tf.int32),
        client_weight=client_weight,
        seed=tf.cast(seed, tf.int32),
    )


def run_client(
    algorithm: Algorithm, exchange: Exchange, data: OpenData, message, client_message, state, facts, round_, evaluate: bool
):
    """Runs one client's part of an exchange, as operations of the graph being built.

    Args:
      algorithm: The algorithm.
      exchange: The exchange, one of the algorithm's.
      data: The clients' data, opened.
      message: From the server to all.
      client_message: From the server to this client.
      state: The client's state.
      facts: The client's `ClientFacts`.
      round_: The round.
      evaluate: Whether to test the client's weights on its test examples after its training.

    Returns:
      (summed, kept, state, hits); hits is -1 if not evaluated.
    """
    first, count, first_test, count_test, num_classes, *seed = tf.unstack(facts.numbers)
    client = read_client(data.train, first, count, num_classes, facts.weight, tf.stack(seed))
    result = exchange.client_update(message, client_message, state, client, round_)
    hits = tf.constant(-1)
    if evaluate:
        weights = result.weights if algorithm.fine_tune is None else algorithm.fine_tune(result.weights, client)
        examples, labels = data.test.read(first_test, count_test)
        hits = count_hits(weights.head, algorithm.model.features(weights.theta, examples), labels)
    return result.summed, result.kept, result.state, hits
