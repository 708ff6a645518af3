"""The reference engine: participants run in this process, as many at a time as there are cores."""

import numpy as np
import tensorflow as tf

from tf_pflego.engines.client_computation import ClientComputation, unpacked
from tf_pflego.engines.engine import Outcome
from tf_pflego.engines.local_clients import LocalClients
from tf_pflego.engines.threads import clients_at_once
from tf_pflego.engines.tracing import Traced


class InProcessEngine(LocalClients):
    """Runs an algorithm's exchanges in this process."""

    place = "in_process"

    def run_exchange(self, exchange, message, cohort, server_state, round_, evaluate):
        def traced():
            computation = ClientComputation(
                self, exchange, message, cohort.messages, round_, evaluate
            )
            return computation, Traced(_side_by_side(computation), any_number=(0, 2, 3, 4))

        computation, run = self.traces.get((id(exchange), evaluate), traced)
        self.states.admit(cohort.ids, server_state)
        facts = self.facts(cohort.ids, cohort.seeds)
        states = self.states.leaves_of(cohort.ids, computation.reads)
        summed, outputs = run(self.opened(), message, cohort.messages, states, facts, round_)
        self.states.stage(cohort.ids, tf.nest.map_structure(np.asarray, outputs.state))
        sums = unpacked(computation.sizes, outputs.sums)
        return Outcome(summed, outputs.individual, outputs.finite.numpy(), sums)


def _side_by_side(computation: ClientComputation):
    """Returns a function of a whole cohort, whose arguments have a leading axis of clients."""
    specs = tf.nest.flatten(computation.outputs_spec)

    def run(data, message, messages, states, facts, round_):
        count = tf.shape(facts.weight)[0]

        def step(k, total, arrays):
            to_one, state, of_one = tf.nest.map_structure(
                lambda leaf: leaf[k], (messages, states, facts)
            )
            summed, outputs = computation(data, message, to_one, state, of_one, round_)
            total = tf.nest.map_structure(tf.add, total, summed)
            outputs = tf.nest.flatten(outputs)
            return k + 1, total, [a.write(k, o) for a, o in zip(arrays, outputs, strict=True)]

        # Only the sum and the arrays pass from one turn to the next: clients run in parallel.
        zeros = tf.nest.map_structure(
            lambda spec: tf.zeros(spec.shape, spec.dtype), computation.summed_spec
        )
        arrays = [tf.TensorArray(spec.dtype, count, element_shape=spec.shape) for spec in specs]
        _, total, arrays = tf.while_loop(
            lambda k, total, arrays: k < count,
            step,
            (0, zeros, arrays),
            parallel_iterations=clients_at_once(),
        )
        outputs = [array.stack() for array in arrays]
        return total, tf.nest.pack_sequence_as(computation.outputs_spec, outputs)

    return run
