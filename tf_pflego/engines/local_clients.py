"""Clients with data, states and evaluation in this process, for all engines."""

import contextlib
import os

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Algorithm, num_bytes, specs_of
from tf_pflego.core.nests import Structure
from tf_pflego.data.clients import ClientData
from tf_pflego.data.mapped import MappedData, OpenData
from tf_pflego.engines.client_computation import (
    ClientFacts,
    GraphClient,
    packed,
    sizes_of,
    statistics_of,
    unpacked,
)
from tf_pflego.engines.client_states import ClientStates
from tf_pflego.engines.tracing import Traced, traces_of
from tf_pflego.system import rows


class LocalClients:
    """The clients of a federation; a subclass adds how their exchanges run.

    `data` are in files that processes can map; `data_spec` is for any number of rows. `traces` are
    the traced functions, for this simulation of the algorithm and the next.
    """

    def __init__(
        self, algorithm: Algorithm, clients: ClientData, server_state: Structure, seed: int
    ):
        self.algorithm = algorithm
        self.data = MappedData(clients)
        self.states = ClientStates(algorithm, server_state, clients, seed)
        self.data_spec = specs_of(self.data.specs(), any_number=True)
        of_data = tuple(tf.nest.flatten(self.data_spec))
        self.traces = traces_of(algorithm, server_state, *of_data)
        self._opened: OpenData | None = None

    def opened(self) -> OpenData:
        """Returns the rows of all splits, which this process maps into its memory once."""
        if self._opened is None:
            # A call of the function itself would warn that each simulation traces it anew.
            opens = tf.function(self.data.open, autograph=False).get_concrete_function()
            self._opened = opens()
        return self._opened

    def commit(self):
        self.states.commit()

    def roll_back(self):
        self.states.roll_back()

    def read_states(self, ids, server_state):
        return self.states.read(ids, server_state)

    def write_states(self, ids, states):
        self.states.stage(ids, states)
        self.states.commit()

    def close(self):
        self._opened = None
        self.data.close()
        self.states.close()

    def facts(self, ids: np.ndarray, seeds: np.ndarray) -> ClientFacts:
        """Returns the facts of some clients, each array [c, ...]."""
        data = self.data.clients
        ranges = [
            numbers[ids] for s in data.splits.values() for numbers in (s.offsets[:-1], s.sizes)
        ]
        classes = data.head_classes(ids, self.algorithm.model.num_classes)
        numbers = np.column_stack([*ranges, seeds, classes])
        return ClientFacts(numbers.astype(np.int64, copy=False), data.client_weights[ids])

    def evaluate(self, ids, seeds, train, server_state):
        def traced():
            statistics = statistics_of(
                self.algorithm.model.task, tuple(self.data.clients.splits), train
            )
            sizes: Structure = {}
            evaluation = _evaluation(self.algorithm, statistics, sizes)
            return Traced(evaluation, any_number=(0, 2, 3)), sizes

        run, sizes = self.traces.get(("evaluate", train), traced)
        blocks = self._blocks(ids, seeds, server_state)
        return unpacked(sizes, np.concatenate([run(*inputs) for _, inputs in blocks]))

    def predict(self, ids, seeds, split, name, server_state):
        served, task = self.algorithm.served[name], self.algorithm.model.task
        run = self.traces.get(
            ("predict", split, name),
            lambda: Traced(_prediction(served, task, split), any_number=(0, 2, 3)),
        )
        sizes, predicted = self.data.clients.splits[split].sizes, []
        for some, inputs in self._blocks(ids, seeds, server_state):
            predicted += np.split(run(*inputs).numpy(), np.cumsum(sizes[some])[:-1])
        return predicted

    def _blocks(self, ids, seeds, server_state):
        """Yields blocks of clients, and the arguments of a traced function for them."""
        ids = np.asarray(ids, np.int64)
        for block in rows.blocks(len(ids), num_bytes(self.states.spec)):
            some = ids[block]
            states = self.states.read(some, server_state)
            yield some, (self.opened(), server_state, states, self.facts(some, seeds[block]))


def threads_per_operation(clients_per_round: float) -> int | None:
    """Returns the number of threads for one operation: 1, or None to leave it to TensorFlow.

    It is 1 if a round has at least as many participants as there are cores, since they keep every
    core busy then. An operation that is split among busy cores waits for them: with 20 clients on
    two cores, a round would take up to twice as long. The last bits of sums depend on this number,
    so that a run has the same bits on machines that give it the same.
    """
    return 1 if clients_per_round >= (os.cpu_count() or 1) else None


def clients_at_once() -> int:
    """Returns the number of clients that run side by side here, as many as operations do."""
    return tf.config.threading.get_inter_op_parallelism_threads() or os.cpu_count() or 1


def prepare_process(clients_per_round: float) -> None:
    """Sets up TensorFlow in this process for rounds in process.

    Only a program should call this, since the setting holds for the whole process. It has an effect
    only before TensorFlow has run its first operation.
    """
    if threads := threads_per_operation(clients_per_round):
        # TensorFlow may be running already; then rounds are slower, and sums have other last bits.
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(threads)


def _evaluation(algorithm, statistics, sizes):
    """Returns a function that tests a block of clients with each model that is served.

    Its tracing notes in `sizes` the number of sums of each statistic.
    """

    def evaluate(data, server_state, states, facts):
        def one(inputs):
            state, facts = inputs
            client, task = GraphClient(data, facts), algorithm.model.task
            sums = {
                name: client.sums(served, served.weights(server_state, state), task, statistics)
                for name, served in algorithm.served.items()
            }
            sizes.update(sizes_of(sums))
            return packed(sums)

        return tf.map_fn(
            one,
            (states, facts),
            fn_output_signature=tf.float64,
            parallel_iterations=clients_at_once(),
        )

    return evaluate


def _prediction(served, task, split):
    """Returns a function that predicts for a block of clients, whose rows follow each other."""

    def predict(data, server_state, states, facts):
        count = tf.shape(facts.weight)[0]

        def step(k, array):
            state, facts_of_one = tf.nest.map_structure(lambda leaf: leaf[k], (states, facts))
            client = GraphClient(data, facts_of_one)
            weights = client.adapted(served, served.weights(server_state, state))
            logits = served.predict(weights, client.rows(split)[0], client.classes)
            return k + 1, array.write(k, task.predicted(logits))

        array = tf.TensorArray(tf.float32, count, infer_shape=False)
        _, array = tf.while_loop(
            lambda k, _: k < count, step, (0, array), parallel_iterations=clients_at_once()
        )
        return array.concat()

    return predict
