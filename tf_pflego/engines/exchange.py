"""What every engine is given and gives back, and what a client computes whichever engine runs it."""

from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Client, Exchange, Round, Structure
from tf_pflego.data.clients import ClientData, as_floats
from tf_pflego.models import head as head_lib
from tf_pflego.models.split import SplitModel


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


def make_client(examples, labels, num_classes, client_weight, seed) -> Client:
    """Returns a `Client` without padding from examples as they are stored."""
    count = tf.shape(labels)[0]
    weights = tf.fill([count], 1.0 / tf.cast(count, tf.float32))
    return Client(as_floats(examples), labels, weights, count, num_classes, client_weight, seed)


def count_hits(head: tf.Tensor, features: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns [] int32, how many of the examples the head classifies right."""
    predicted = tf.argmax(head_lib.logits(head, features), axis=1, output_type=tf.int32)
    # Not `==`, which in the graphs that TFF builds compares the Python objects.
    return tf.math.count_nonzero(tf.equal(predicted, labels), dtype=tf.int32)


def run_client(exchange: Exchange, model: SplitModel, message, client_message, state, client, round_, test):
    """Runs one client's part of an exchange.

    Args:
      exchange: The exchange.
      model: The algorithm's model.
      message: From the server to all.
      client_message: From the server to this client.
      state: The client's state.
      client: The client.
      round_: The round.
      test: (stored examples, labels) to test the client's weights on after its training, or None.

    Returns:
      (summed, kept, state, hits); hits is -1 if `test` is None.
    """
    result = exchange.client_update(message, client_message, state, client, round_)
    hits = tf.constant(-1)
    if test is not None:
        features = model.features(result.weights.theta, as_floats(test[0]))
        hits = count_hits(result.weights.head, features, test[1])
    return result.summed, result.kept, result.state, hits


def example_spec(data: ClientData) -> tf.TensorSpec:
    """Returns the spec of a client's examples as they are stored."""
    return tf.TensorSpec([None, *data.example_shape], data.train.examples.dtype)
