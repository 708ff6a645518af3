"""An exchange of a round as federated computations that can be printed and called.

  broadcast       (server state, round) -> message                                    at the server
  client_message  (<server state, round>, client id) -> message to one client         by selection
  client_work     (message, message to one, client state, inputs, round) -> result    at each client
  aggregation     {upload}@CLIENTS -> received@SERVER                                 in between
  server_update   (server state, received, round) -> server state                     at the server

In PFLEGO, the message is theta. A client's work computes its features once, takes the steps of its
head over them, and gives one gradient of theta. The aggregation is the sum of these, weighted by
alpha_i, and the server's update is a step of its optimiser.
"""

from __future__ import annotations

import collections
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.core import nests
from tf_pflego.core.algorithm import Algorithm, Exchange, Uploads
from tf_pflego.core.nests import Structure
from tf_pflego.tff import counting, types
from tf_pflego.tff.aggregation import SUM, Aggregation, Aggregator, Rows, Upload
from tf_pflego.tff.installed import tff


class WorkResult(NamedTuple):
    """The result of a client's work."""

    state: Structure  # what the client keeps
    upload: Upload
    counts: Structure  # see `metrics.of_sums`


class ExchangeSteps:
    """The federated computations of an exchange.

    Attributes:
      broadcast: See the module, as for the others.
      client_message: None if the server sends nothing to single clients.
      client_work: It returns a `WorkResult`.
      metrics: Makes metrics from the sums of the clients' work (see `metrics.of_sums`).
      sees_single_clients: Whether the server sees what single clients upload.
      aggregation: An `Aggregation`.
      server_update: The server's state does not change without uploads.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        exchange: Exchange,
        rounds: types.Rounds,
        specs: types.Specs,
        aggregator: Aggregator,
        train_metrics: bool,
    ):
        self._exchange, self._rounds, self._returns = exchange, rounds, aggregator.returns
        self._served = next(iter(algorithm.served.values()))
        self._task = algorithm.model.task
        self._train_metrics = train_metrics
        server, inputs = types.of(specs.server), types.of(specs.inputs)
        number = tff.TensorType(np.int32)
        self.broadcast = types.computation(
            lambda state, number: exchange.broadcast(state, rounds(number)), server, number
        )
        message = self.broadcast.type_signature.result
        self.client_message, to_one = None, tff.to_type(())
        if exchange.client_messages is not None:
            self.client_message = types.computation(
                self._message_to_one, tff.to_type((server, number)), number
            )
            to_one = self.client_message.type_signature.result
            self._key = types.computation(lambda inputs: inputs.client_id[None], inputs)
            self._only = types.computation(
                lambda selected: selected.get_single_element(), tff.SequenceType(to_one)
            )
        self.client_work = types.computation(
            self._work, message, to_one, types.of(specs.client_state), inputs, number
        )
        self.metrics = counting.of_sums(self._task, self.client_work.type_signature.result.counts)
        upload = self.client_work.type_signature.result.upload
        self.sees_single_clients = types.num_tensors(upload.rows.individual) > 0
        self.aggregation = Aggregation(aggregator.factory, upload)
        self.server_update = types.computation(
            self._update, server, self.aggregation.received_type, number
        )

    def send_to_each(self, server, number, inputs):
        """Returns the messages to single clients @CLIENTS; call it in a federated computation."""
        if self.client_message is None:
            return tff.federated_value((), tff.CLIENTS)
        selected = tff.federated_select(
            tff.federated_map(self._key, inputs),
            tff.federated_value(self._rounds.federation.num_clients, tff.SERVER),
            tff.federated_zip((server, number)),
            self.client_message,
        )
        return tff.federated_map(self._only, selected)

    def _message_to_one(self, server_and_number, client_id):
        assert self._exchange.client_messages is not None
        server, number = server_and_number
        ids = tf.cast(client_id, tf.int64)[None]
        messages = self._exchange.client_messages(server, ids, self._rounds(number))
        return tf.nest.map_structure(lambda leaf: leaf[0], messages)

    def _work(self, message, message_to_one, state, inputs, number):
        client = types.client_of(inputs, inputs.seeds[self._rounds.position], message_to_one)
        round_ = self._rounds(number)
        result = self._exchange.client_update(message, state, client.in_round(round_), round_)
        uploads = (result.summed, result.averaged, inputs.client_weight)
        finite = nests.all_finite((result.state, *uploads, result.individual))

        def if_finite(new, old):
            return tf.nest.map_structure(lambda *pair: tf.where(finite, *pair), new, old)

        summed, averaged, weight = if_finite(uploads, tf.nest.map_structure(tf.zeros_like, uploads))
        if self._returns == SUM:
            averaged = nests.scale(weight, averaged)
        alone = Rows(tf.cast(inputs.client_id, tf.int64), result.individual)
        num_rows = tf.cast(finite, tf.int32)
        rows = tf.nest.map_structure(lambda leaf: leaf[None][:num_rows], alone)
        counts = collections.OrderedDict(
            clients=num_rows, not_finite=1 - num_rows, examples=client.num_examples
        )
        if self._train_metrics:
            train = types.Data(client.examples, client.labels)
            counts |= counting.counts(self._task, self._served, result.weights, client, train)
        upload = Upload(summed, averaged, weight, rows)
        return WorkResult(if_finite(result.state, state), upload, counts)

    def _update(self, server, received, number):
        round_ = self._rounds(number)
        order = tf.argsort(received.rows.client_ids)
        ids, individual = tf.nest.map_structure(lambda leaf: tf.gather(leaf, order), received.rows)
        summed, averaged = received.summed, received.averaged
        if self._returns == SUM:
            averaged = nests.scale(1 / received.weight, averaged)
        else:
            summed = nests.scale(round_.mean_clients_per_round, summed)
        count = tf.cast(tf.size(ids), tf.float32)
        uploads = Uploads(summed, averaged, individual, ids, count)

        def moved():
            new_state = self._exchange.server_update(server, uploads, round_)
            return tf.nest.map_structure(tf.convert_to_tensor, new_state)

        return tf.cond(tf.size(ids) > 0, moved, lambda: server)
