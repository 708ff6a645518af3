"""The reference engine: the participants of a round in this process, as many at a time as there are cores."""

import os

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Algorithm, Exchange, Round, specs_of
from tf_pflego.data.mapped import MappedData
from tf_pflego.engines.exchange import Outcome, Participants, client_facts, run_client


class InProcessEngine:
    """Runs an algorithm's exchanges in this process.

    Args:
      algorithm: The algorithm.
      data: The clients' data.
    """

    def __init__(self, algorithm: Algorithm, data: MappedData):
        self._algorithm = algorithm
        self._data = data
        self._functions = {}

    def run_exchange(self, exchange: Exchange, message, participants: Participants, round_: Round, evaluate: bool) -> Outcome:
        """See `Engine.run_exchange`."""
        brought = (participants.states, participants.messages)
        facts = client_facts(self._data.clients, participants)
        key = (id(exchange), evaluate)
        if key not in self._functions:
            self._functions[key] = self._trace(exchange, evaluate, message, brought, facts, round_)
        summed, kept, states, hits = self._functions[key](message, brought, facts, round_)
        states = tf.nest.map_structure(np.asarray, states)
        return Outcome(summed, kept, states, hits.numpy() if evaluate else None)

    def close(self) -> None:
        """See `Engine.close`; there is nothing to free."""

    def _trace(self, exchange, evaluate, message, brought, facts, round_):
        def run_one(data, message, brought, facts, round_):
            state, client_message = brought
            return run_client(self._algorithm, exchange, data, message, client_message, state, facts, round_, evaluate)

        @tf.function
        def run(message, brought, facts, round_):
            count = tf.shape(facts.weight)[0]
            data = self._data.open()

            def at(structure, k):
                return tf.nest.map_structure(lambda leaf: leaf[k], structure)

            one = tf.function(run_one).get_concrete_function(data, message, at(brought, 0), at(facts, 0), round_)
            summed_spec, *left_spec = specs_of(one.structured_outputs)
            left_spec = tuple(left_spec)
            arrays = [tf.TensorArray(spec.dtype, count, element_shape=spec.shape) for spec in tf.nest.flatten(left_spec)]

            def step(k, total, arrays):
                summed, *left = run_one(data, message, at(brought, k), at(facts, k), round_)
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

        return run.get_concrete_function(specs_of(message), specs_of(brought, True), specs_of(facts, True), specs_of(round_))
