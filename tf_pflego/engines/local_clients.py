"""Clients with data, states and evaluation in this process, for all engines."""

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Algorithm, num_bytes, specs_of
from tf_pflego.core.nests import Structure
from tf_pflego.data.clients import ClientData
from tf_pflego.data.mapped import MappedData, OpenData
from tf_pflego.engines import small_clients
from tf_pflego.engines.client_computation import (
    ClientFacts,
    GraphClient,
    packed,
    sizes_of,
    statistics_of,
    unpacked,
)
from tf_pflego.engines.client_states import ClientStates
from tf_pflego.engines.engine import Engine
from tf_pflego.engines.threads import clients_at_once, side_by_side
from tf_pflego.engines.tracing import Traced, traces_of
from tf_pflego.system import rows


class LocalClients(Engine):
    """The clients of a federation. A subclass runs their exchanges.

    `data` are in files that processes can map, and `data_spec` is for any number of rows. `traces`
    are the traced functions, for this simulation of the algorithm and the next.
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
        ids = np.asarray(ids, np.int64)
        one_by_one, sizes = self.traces.get(("evaluate", train), lambda: self._one_by_one(train))
        tested = self._examples_tested(ids, train)
        order, few, sums = np.arange(len(ids)), 0, []
        width = self.algorithm.model.activation_bytes_per_example
        num_small = int(np.count_nonzero(small_clients.are_small(tested, width)))
        in_groups = None
        if num_small >= small_clients.FEWEST_CLIENTS:
            in_groups = self.traces.get(
                ("evaluate groups", train), lambda: self._in_groups(train, server_state, sizes)
            )
        if in_groups is not None:
            # By size, since clients with their own networks are padded to the largest in a group.
            order, few = np.argsort(tested, kind="stable"), num_small
            first = order[:few]
            sums = [
                in_groups(*inputs, small_clients.groups_of(tested[first][block], width))
                for block, inputs in self._blocks(ids[first], seeds[first], server_state)
            ]
        others = self._blocks(ids[order[few:]], seeds[order[few:]], server_state)
        sums += [one_by_one(*inputs) for _, inputs in others]
        return unpacked(sizes, np.concatenate(sums)[np.argsort(order)])

    def _one_by_one(self, train):
        """Returns a test of clients one by one, and the sizes of its sums."""
        sizes: Structure = {}
        test = _evaluation(self.algorithm, self._statistics(train), sizes)
        return Traced(test, any_number=(0, 2, 3)), sizes

    def _in_groups(self, train, server_state, sizes):
        """Returns a test of clients in groups, if that is possible."""
        models = small_clients.models_of_groups(
            self.algorithm, server_state, self.states.spec, self.data_spec
        )
        if models is None:
            return None
        test = small_clients.evaluation(self.algorithm, models, self._statistics(train), sizes)
        return Traced(test, any_number=(0, 2, 3, 4))

    def _statistics(self, train):
        return statistics_of(self.algorithm.model.task, tuple(self.data.clients.splits), train)

    def _examples_tested(self, ids, train):
        """Returns the examples of clients [c] in the split with most of them."""
        splits = self.data.clients.splits.items()
        return np.max([s.sizes[ids] for name, s in splits if train or name != "train"], axis=0)

    def predict(self, ids, seeds, split, name, server_state):
        served, task = self.algorithm.served[name], self.algorithm.model.task
        run = self.traces.get(
            ("predict", split, name),
            lambda: Traced(_prediction(served, task, split), any_number=(0, 2, 3)),
        )
        sizes, predicted = self.data.clients.splits[split].sizes, []
        for block, inputs in self._blocks(ids, seeds, server_state):
            predicted += np.split(run(*inputs).numpy(), np.cumsum(sizes[ids[block]])[:-1])
        return predicted

    def _blocks(self, ids, seeds, server_state):
        """Yields slices of clients, and the arguments of a traced function for them."""
        ids = np.asarray(ids, np.int64)
        for block in rows.blocks(len(ids), num_bytes(self.states.spec)):
            some = ids[block]
            states = self.states.read(some, server_state)
            yield block, (self.opened(), server_state, states, self.facts(some, seeds[block]))


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
    """Returns a function that predicts for a block of clients with consecutive rows."""

    def predict(data, server_state, states, facts):
        def step(k):
            state, facts_of_one = tf.nest.map_structure(lambda leaf: leaf[k], (states, facts))
            client = GraphClient(data, facts_of_one)
            weights = client.adapted(served, served.weights(server_state, state))
            logits = served.predict(weights, client.rows(split)[0], client.classes)
            return (), task.predicted(logits)

        spec = tf.TensorSpec(None, tf.float32)
        return side_by_side(tf.shape(facts.weight)[0], step, spec, join="concat")[1]

    return predict
