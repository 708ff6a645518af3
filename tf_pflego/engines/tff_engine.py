"""The engine that runs a round as a typed federated computation on TensorFlow Federated.

    (message@SERVER, what each client brings@CLIENTS) -> (sum@SERVER, what each client leaves@CLIENTS)

The message is broadcast, the client update mapped, the uploads summed (`federated_sum`: a mean would re-normalise and be
another estimator). Client data is not shipped: the worker inherits the files that hold it, maps them into its memory, and
a client's computation reads its rows there.
"""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tf_pflego.core.algorithm import Algorithm, Exchange, Round
from tf_pflego.data.clients import ClientData
from tf_pflego.data.mapped import MappedSplit
from tf_pflego.engines.exchange import NUM_FACTS, ClientFacts, Outcome, Participants, client_facts, run_client
from tf_pflego.engines.worker import Worker, execution_context


class TffEngine:
    """Runs an algorithm's exchanges on a TFF worker of its own.

    Args:
      algorithm: The algorithm.
      data: The clients' data.

    Raises:
      WorkerError: The worker does not start.
    """

    def __init__(self, algorithm: Algorithm, data: ClientData):
        self._model = algorithm.model
        self._data = data
        self._splits = MappedSplit(data.train), MappedSplit(data.test)
        self.worker = Worker([descriptor for split in self._splits for descriptor in split.descriptors])
        self._context = execution_context(self.worker)
        self._computations = {}

    def run_exchange(self, exchange: Exchange, message, participants: Participants, round_: Round, evaluate: bool) -> Outcome:
        """See `Engine.run_exchange`."""
        computation, structures = self._computation(exchange, message, participants, round_, evaluate)
        shared = _leaves((message, round_))
        brought = [np.asarray(leaf) for leaf in tf.nest.flatten((participants.states, participants.messages))]
        arrays = [*client_facts(self._data, participants), *brought]
        clients = [[leaf[k] for leaf in arrays] for k in range(len(participants.ids))]
        with tff.framework.get_context_stack().install(self._context):
            result = computation(shared, clients)
        summed, left = result
        summed_structure, left_structure = structures
        stacked = [np.stack([client[k] for client in left]) for k in range(len(left[0]))]
        kept, states, hits = tf.nest.pack_sequence_as(left_structure, stacked)
        return Outcome(tf.nest.pack_sequence_as(summed_structure, list(summed)), kept, states, hits if evaluate else None)

    def close(self) -> None:
        """See `Engine.close`: ends the worker and lets go of the data files."""
        self.worker.stop()
        for split in self._splits:
            split.close()

    def _computation(self, exchange, message, participants, round_, evaluate):
        key = (id(exchange), evaluate)
        if key not in self._computations:
            self._computations[key] = self._trace(exchange, message, participants, round_, evaluate)
        return self._computations[key]

    def _trace(self, exchange, message, participants, round_, evaluate):
        structures = []
        shared_type = _tuple_type(_leaves((message, round_)))
        brought = [leaf[0] for leaf in _leaves((participants.states, participants.messages))]
        client_type = _tuple_type([np.zeros([NUM_FACTS], np.int64), np.float32(0), *brought])
        num_states = len(tf.nest.flatten(participants.states))

        @tf.function
        def run(shared, numbers, client_weight, *brought):
            message_, round_here = tf.nest.pack_sequence_as((message, round_), shared)
            state = tf.nest.pack_sequence_as(participants.states, brought[:num_states])
            client_message = tf.nest.pack_sequence_as(participants.messages, brought[num_states:])
            facts = ClientFacts(numbers, client_weight)
            summed, *left = run_client(
                exchange, self._model, self._splits, message_, client_message, state, facts, round_here, evaluate
            )
            structures[:] = [summed, tuple(left)]
            return tuple(tf.nest.flatten(summed)), tuple(tf.nest.flatten(left))

        @tff.tensorflow.computation(shared_type, client_type)
        def client_computation(shared, client):
            return run(list(shared), *client)

        @tff.federated_computation(tff.FederatedType(shared_type, tff.SERVER), tff.FederatedType(client_type, tff.CLIENTS))
        def exchange_computation(shared, clients):
            results = tff.federated_map(client_computation, (tff.federated_broadcast(shared), clients))
            return tff.federated_sum(results[0]), results[1]

        summed, left = (tf.nest.map_structure(lambda t: None, structure) for structure in structures)
        return exchange_computation, (summed, left)


def _leaves(structure):
    return tuple(np.asarray(leaf) for leaf in tf.nest.flatten(structure))


def _tuple_type(leaves):
    return tff.StructWithPythonType([tff.TensorType(leaf.dtype.type, leaf.shape) for leaf in leaves], tuple)
