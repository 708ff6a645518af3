"""The engine that runs a round as a typed federated computation on TensorFlow Federated.

    (message to all clients@SERVER, message to each client@CLIENTS) -> (sum@SERVER, result of each
        client@CLIENTS)

The message is broadcast, the client update is mapped over the clients, and the uploads are summed
by `federated_sum`, since a mean would re-normalise the sum and be another estimator. The clients'
data are not sent: the worker inherits their files and maps these into its memory, where a client's
computation reads its rows.

A client's further messages and results go through TFF if they are small. Large data, such as a
whole network, go through files that both processes see. They are then copied less often, and no
message between the processes grows with the cohort.

A worker that fails is replaced, and the new worker runs the exchange again. It computes the same,
bit for bit: the states of the clients and of the server are in the program, and an exchange's
random values depend only on its seeds.
"""

import tempfile
import threading

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tf_pflego.core.algorithm import specs_of
from tf_pflego.core.nests import Structure
from tf_pflego.engines.client_computation import ClientComputation, ClientOutputs, unpacked
from tf_pflego.engines.engine import Outcome, WorkerError
from tf_pflego.engines.local_clients import LocalClients
from tf_pflego.engines.threads import threads_per_operation
from tf_pflego.system import log
from tf_pflego.system.temporary import make_directory, remove_directory
from tf_pflego.tff.engine.context import ExecutionContext
from tf_pflego.tff.engine.files import Inbox, Outbox, remove_files
from tf_pflego.tff.engine.packing import Packing
from tf_pflego.tff.engine.worker import Worker

# The most bytes that messages may carry to or from one client, and to or from all participants.
_MESSAGE_BYTES = 2**18
_MESSAGE_BYTES_OF_ALL = 2**28
_REMEDY = (
    "If memory runs out, lower `clients_per_round` or `activation_gigabytes`; "
    "`engine='in_process'` needs no worker. A run with `output_dir` goes on by `resume=True`"
)


class TffEngine(LocalClients):
    """Runs an algorithm's exchanges on its own TFF worker, `worker`."""

    place = "tff"

    def __init__(self, algorithm, clients, server_state, seed, federation, max_restarts):
        super().__init__(algorithm, clients, server_state, seed)
        self._max_clients = federation.max_clients_per_round
        self._context: ExecutionContext | None = None
        self._inbox = tempfile.TemporaryFile(prefix="tf_pflego_inbox_")
        self._threads = threads_per_operation(federation.mean_clients_per_round)
        self._max_restarts = max_restarts
        self._start_worker()
        self._outbox = make_directory()
        self._exchanges: dict[tuple, _FederatedExchange] = {}

    def run_exchange(self, exchange, message, cohort, server_state, round_, evaluate):
        message = tf.nest.map_structure(np.asarray, message)
        self.states.admit(cohort.ids, server_state)
        shapes = tuple(leaf.shape for leaf in tf.nest.flatten(message))
        key = (id(exchange), evaluate, shapes)
        computation = self.traces.get(
            ("client", *key),
            lambda: ClientComputation(self, exchange, message, cohort.messages, round_, evaluate),
        )
        facts = self.facts(cohort.ids, cohort.seeds)
        received = self.states.leaves_of(cohort.ids, computation.reads), cohort.messages
        inputs = message, round_, facts, received
        if key not in self._exchanges:
            self._exchanges[key] = _FederatedExchange(self, computation, *inputs)
        summed, outputs = self._run(self._exchanges[key], *inputs)
        self.states.stage(cohort.ids, outputs.state)
        sums = unpacked(computation.sizes, outputs.sums)
        return Outcome(summed, outputs.individual, outputs.finite, sums)

    def _run(self, federated, *inputs):
        """Returns `federated.run(*inputs)`, on another worker if this one fails."""
        restarts = 0
        while True:
            try:
                if self._context is None:
                    self._start_worker()
                with tff.framework.get_context_stack().install(self._context):
                    return federated.run(*inputs)
            except WorkerError as error:
                self._end_worker()
                remove_files(self._outbox)
                # A worker that another thread starts ends with that thread.
                may_start = threading.current_thread() is threading.main_thread()
                if restarts == self._max_restarts or not may_start:
                    what = f"{error.what} (restarts of this exchange: {restarts}). {_REMEDY}"
                    raise WorkerError(what, error.log) from error
                restarts += 1
                log.warning(
                    f"{error.what}; a new one runs the exchange again "
                    f"(restart {restarts} of {self._max_restarts})"
                )

    def _start_worker(self):
        self.worker = Worker([*self.data.descriptors, self._inbox.fileno()], self._threads)
        self._context = ExecutionContext(self.worker)

    def _end_worker(self):
        if self._context is not None:
            self._context.close()
            self._context = None

    def close(self) -> None:
        self._end_worker()
        for federated in self._exchanges.values():
            federated.close()
        self._inbox.close()
        remove_directory(self._outbox)
        super().close()

    def boxes(self, payload: Packing, outputs: Packing) -> tuple[Inbox | None, Outbox | None]:
        """Returns the files for clients' messages and results, or None if they fit a message."""
        inbox = Inbox(self._inbox, payload, self._max_clients) if self._is_large(payload) else None
        return inbox, Outbox(self._outbox, outputs) if self._is_large(outputs) else None

    def _is_large(self, packing):
        size = packing.num_bytes
        return size > _MESSAGE_BYTES or size * self._max_clients > _MESSAGE_BYTES_OF_ALL


class _FederatedExchange:
    """An exchange as a federated computation, for messages and a cohort of these shapes.

    Clients receive the leaves of their states that the computation reads, and their messages.
    """

    def __init__(
        self, engine: TffEngine, computation: ClientComputation, message, round_, facts, received
    ):
        facts, received = tf.nest.map_structure(lambda leaf: leaf[0], (facts, received))
        payload, self._outputs = Packing(received), Packing(computation.outputs_spec)
        self._inbox, self._outbox = engine.boxes(payload, self._outputs)
        self._input = Packing((np.int32(0), facts, () if self._inbox else received))
        self._round = Packing(round_)
        self._summed_spec = computation.summed_spec
        message_spec = specs_of(message)

        def run_one(sent, packed):
            message_leaves, packed_round = sent
            slot, facts, received = self._input.unpack(packed)
            if self._inbox:
                received = payload.unpack(self._inbox.read(slot))
            states, message_to_one = received
            summed, outputs = computation(
                engine.data.open(),
                tf.nest.pack_sequence_as(message_spec, message_leaves),
                message_to_one,
                states,
                facts,
                self._round.unpack(packed_round),
            )
            packed = self._outputs.pack(outputs)
            return (
                tuple(tf.nest.flatten(summed)),
                self._outbox.write(slot, packed) if self._outbox else packed,
            )

        message_types = [
            tff.TensorType(leaf.dtype.type, leaf.shape) for leaf in tf.nest.flatten(message)
        ]
        sent = [tff.StructWithPythonType(message_types, tuple), _bytes_type(self._round)]
        self._run = _federated(run_one, sent, _bytes_type(self._input))

    def run(self, message, round_, facts, received) -> tuple[Structure, ClientOutputs]:
        """Returns the sum over the participants, and their outputs, each leaf [c, ...]."""
        count = len(facts.weight)
        if self._inbox:
            self._inbox.write(received, count)
            received = ()
        slots = np.arange(count, dtype=np.int32)
        inputs = list(self._input.pack_all((slots, facts, received), count))
        one_round = tf.nest.map_structure(lambda n: np.asarray(n)[None], round_)
        (packed_round,) = self._round.pack_all(one_round, 1)
        summed, outputs = self._run((tuple(tf.nest.flatten(message)), packed_round), inputs)
        rows = self._outbox.read(count) if self._outbox else np.stack(outputs)
        summed = tf.nest.pack_sequence_as(self._summed_spec, list(summed))
        return summed, self._outputs.unpack_all(rows)

    def close(self) -> None:
        """Frees the mapping of the file for what clients receive."""
        if self._inbox:
            self._inbox.close()


def _bytes_type(packing):
    return tff.TensorType(np.uint8, [packing.num_bytes])


def _federated(run_one, sent, received):
    """Returns the federated computation with `run_one(sent, received)` at each client."""
    sent = tff.StructWithPythonType(sent, tuple)
    one = tff.tensorflow.computation(tf.function(run_one, autograph=False), sent, received)

    @tff.federated_computation(
        tff.FederatedType(sent, tff.SERVER), tff.FederatedType(received, tff.CLIENTS)
    )
    def exchange_computation(sent, received):
        results = tff.federated_map(one, (tff.federated_broadcast(sent), received))
        return tff.federated_sum(results[0]), results[1]

    return exchange_computation
