"""The form of uploads in an exchange, known before any client has been asked."""

from __future__ import annotations

import tensorflow as tf

from tf_pflego.core.algorithm import (
    Algorithm,
    Client,
    ClientResult,
    Exchange,
    Round,
    Sums,
    specs_of,
)
from tf_pflego.core.nests import Structure


class Uploaded:
    """The form of uploads in an exchange, which tracing shows once."""

    def __init__(self, algorithm: Algorithm, exchange: Exchange):
        self._algorithm, self._exchange = algorithm, exchange
        self._specs: ClientResult | None = None

    def specs(self, server_state: Structure) -> ClientResult:
        """Returns the `ClientResult` of specs, with neither weights nor a state."""
        if self._specs is None:
            model, int32 = self._algorithm.model, tf.int32
            client = Client(
                examples=tf.TensorSpec([None, *model.example_shape], model.example_dtype),
                labels=model.task.label_spec(model.num_classes, model.positions),
                num_examples=tf.TensorSpec([], int32),
                classes=tf.TensorSpec([model.num_classes], int32),
                client_weight=tf.TensorSpec([]),
                seed=tf.TensorSpec([2], int32),
            )
            number, rate = tf.TensorSpec([], int32), tf.TensorSpec([])
            round_ = Round(number, client.seed, rate, number, rate)
            traced = tf.function(self._upload, autograph=False)
            concrete = traced.get_concrete_function(specs_of(server_state), client, round_)
            self._specs = ClientResult(weights=(), **specs_of(concrete.structured_outputs))
        return self._specs

    def sums(self, server_state: Structure) -> tuple[Sums, Structure]:
        """Returns the specs of the `Sums` of a client, and of the individual part."""
        result = self.specs(server_state)
        weight = tf.TensorSpec([]) if tf.nest.flatten(result.averaged) else ()
        return Sums(result.summed, result.averaged, weight), result.individual

    def _upload(self, server_state, client, round_):
        exchange = self._exchange
        state = self._algorithm.init_client(server_state, client.seed, client.classes)
        if exchange.client_messages is not None:
            messages = exchange.client_messages(server_state, tf.zeros([1], tf.int64), round_)
            message = tf.nest.map_structure(_of_one, messages)
            client = client._replace(message=message)
        sent = exchange.broadcast(server_state, round_)
        result = exchange.client_update(sent, state, client.in_round(round_), round_)
        return {name: getattr(result, name) for name in ("summed", "averaged", "individual")}


def _of_one(leaf):
    """Returns one client's part of messages, which may be missing between two rounds."""
    return leaf[0] if leaf.shape[0] != 0 else tf.zeros(leaf.shape[1:], leaf.dtype)
