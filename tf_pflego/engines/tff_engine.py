"""The engine that runs a round as a typed federated computation on TensorFlow Federated.

    (message@SERVER, what each client brings@CLIENTS) -> (sum@SERVER, what each client leaves@CLIENTS)

The message is broadcast, the client update mapped, the uploads summed (`federated_sum`: a mean would re-normalise and be
another estimator). Client data is not shipped: the worker inherits the files that hold it, maps them into its memory, and
a client's computation reads its rows there.
"""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tf_pflego.core.algorithm import Algorithm, Exchange, Round, specs_of
from tf_pflego.data.mapped import MappedData
from tf_pflego.engines.exchange import Outcome, Participants, client_facts, run_client
from tf_pflego.engines.packing import Packing
from tf_pflego.engines.worker import Worker, execution_context


class TffEngine:
    """Runs an algorithm's exchanges on a TFF worker of its own.

    Args:
      algorithm: The algorithm.
      data: The clients' data.
      threads_per_operation: How many threads one TensorFlow operation of the worker may use; None for TensorFlow's choice.

    Raises:
      WorkerError: The worker does not start.
    """

    def __init__(self, algorithm: Algorithm, data: MappedData, threads_per_operation: int | None = None):
        self._algorithm = algorithm
        self._data = data
        self.worker = Worker(data.train.descriptors + data.test.descriptors, threads_per_operation)
        self._context = execution_context(self.worker)
        self._computations = {}

    def run_exchange(self, exchange: Exchange, message, participants: Participants, round_: Round, evaluate: bool) -> Outcome:
        """See `Engine.run_exchange`."""
        shared = tuple(np.asarray(leaf) for leaf in tf.nest.flatten((message, round_)))
        brought = (client_facts(self._data.clients, participants), participants.states, participants.messages)
        key = (id(exchange), evaluate)
        if key not in self._computations:
            self._computations[key] = _ExchangeComputation(
                self._algorithm, exchange, self._data, message, round_, brought, evaluate
            )
        computation = self._computations[key]
        clients = list(computation.brought.pack_all(brought, len(participants.ids)))
        with tff.framework.get_context_stack().install(self._context):
            summed, left = computation.run(shared, clients)
        kept, states, hits = computation.left.unpack_all(np.stack(left))
        return Outcome(computation.summed_of(summed), kept, states, hits if evaluate else None)

    def close(self) -> None:
        """See `Engine.close`: ends the worker."""
        self.worker.stop()


class _ExchangeComputation:
    """An exchange as a federated computation.

    Attributes:
      run: The computation.
      brought: How what a client brings is packed.
      left: How what a client leaves is packed.
    """

    def __init__(self, algorithm, exchange, data, message, round_, brought, evaluate):
        one_client = tf.nest.map_structure(lambda leaf: leaf[0], brought)
        self.brought = Packing(one_client)

        def run_one(shared, facts, state, client_message):
            message_, round_here = tf.nest.pack_sequence_as((message, round_), shared)
            summed, *left = run_client(
                algorithm, exchange, data.open(), message_, client_message, state, facts, round_here, evaluate
            )
            return summed, tuple(left)

        shared = tf.nest.flatten((message, round_))
        # Traced once more only to learn the shapes.
        traced = tf.function(run_one).get_concrete_function(specs_of(shared), *specs_of(one_client))
        self._summed, left = specs_of(traced.structured_outputs)
        self.left = Packing(left)
        shared_type = tff.StructWithPythonType(
            [tff.TensorType(leaf.dtype.type, leaf.shape) for leaf in map(np.asarray, shared)], tuple
        )
        client_type = tff.TensorType(np.uint8, [self.brought.num_bytes])

        @tf.function
        def packed_run(shared, packed):
            summed, left = run_one(shared, *self.brought.unpack(packed))
            return tuple(tf.nest.flatten(summed)), self.left.pack(left)

        @tff.tensorflow.computation(shared_type, client_type)
        def client_computation(shared, packed):
            return packed_run(list(shared), packed)

        @tff.federated_computation(tff.FederatedType(shared_type, tff.SERVER), tff.FederatedType(client_type, tff.CLIENTS))
        def exchange_computation(shared, clients):
            results = tff.federated_map(client_computation, (tff.federated_broadcast(shared), clients))
            return tff.federated_sum(results[0]), results[1]

        self.run = exchange_computation

    def summed_of(self, leaves):
        """Returns the nest of sums for the tuple of them that the computation returns."""
        return tf.nest.pack_sequence_as(self._summed, list(leaves))
