"""The reference engine: the participants of a round in this process, as many at a time as there are cores."""

import os

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Algorithm, Exchange, Round
from tf_pflego.data.clients import ClientData
from tf_pflego.data.mapped import MappedSplit
from tf_pflego.engines.exchange import NUM_FACTS, ClientFacts, Outcome, Participants, client_facts, run_client


class InProcessEngine:
    """Runs an algorithm's exchanges in this process.

    Args:
      algorithm: The algorithm.
      data: The clients' data.
    """

    def __init__(self, algorithm: Algorithm, data: ClientData):
        self._model = algorithm.model
        self._data = data
        self._train, self._test = MappedSplit(data.train), MappedSplit(data.test)
        self._functions = {}

    def run_exchange(self, exchange: Exchange, message, participants: Participants, round_: Round, evaluate: bool) -> Outcome:
        """See `Engine.run_exchange`."""
        brought = (participants.states, participants.messages)
        facts = client_facts(self._data, participants)
        key = (id(exchange), evaluate)
        if key not in self._functions:
            self._functions[key] = self._trace(exchange, evaluate, message, brought, round_)
        summed, kept, states, hits = self._functions[key](message, brought, facts, round_)
        states = tf.nest.map_structure(np.asarray, states)
        return Outcome(summed, kept, states, hits.numpy() if evaluate else None)

    def close(self) -> None:
        """See `Engine.close`: lets go of the data files."""
        self._train.close()
        self._test.close()

    def _trace(self, exchange, evaluate, message, brought, round_):
        signature = [
            _specs(message),
            tf.nest.map_structure(lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype), _specs(brought)),
            ClientFacts(tf.TensorSpec([None, NUM_FACTS], tf.int64), tf.TensorSpec([None], tf.float32)),
            _specs(round_),
        ]

        def run_one(message, brought, facts, round_):
            state, client_message = brought
            return run_client(
                exchange, self._model, (self._train, self._test), message, client_message, state, facts, round_, evaluate
            )

        @tf.function(input_signature=signature)
        def run(message, brought, facts, round_):
            count = tf.shape(facts.weight)[0]

            def at(structure, k):
                return tf.nest.map_structure(lambda leaf: leaf[k], structure)

            one = tf.function(run_one).get_concrete_function(message, at(brought, 0), at(facts, 0), round_)
            summed_spec, *left_spec = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), one.structured_outputs)
            left_spec = tuple(left_spec)
            arrays = [tf.TensorArray(spec.dtype, count, element_shape=spec.shape) for spec in tf.nest.flatten(left_spec)]

            def step(k, total, arrays):
                summed, *left = run_one(message, at(brought, k), at(facts, k), round_)
                total = tf.nest.map_structure(tf.add, total, summed)
                return k + 1, total, [a.write(k, leaf) for a, leaf in zip(arrays, tf.nest.flatten(left), strict=True)]

            # Only the sum and the arrays pass from one turn to the next: the clients' work runs side by side.
            _, total, arrays = tf.while_loop(
                lambda k, total, arrays: k < count,
                step,
                (0, tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), summed_spec), arrays),
                parallel_iterations=os.cpu_count(),
            )
            return total, *tf.nest.pack_sequence_as(left_spec, [array.stack() for array in arrays])

        return run


def _specs(structure):
    return tf.nest.map_structure(lambda leaf: tf.TensorSpec(np.shape(leaf), tf.as_dtype(leaf.dtype)), structure)
