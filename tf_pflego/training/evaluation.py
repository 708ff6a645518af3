"""What every client, drawn or not, would be served now: the loss of equation 1 and the test accuracy."""

import itertools
import os
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Algorithm, specs_of
from tf_pflego.core.state_store import ClientStateStore
from tf_pflego.data.clients import ClientSplit
from tf_pflego.data.mapped import MappedData
from tf_pflego.engines.exchange import count_hits, read_client
from tf_pflego.models import head as head_lib

_ACTIVATION_BYTES_PER_BLOCK = 2**28
_PARTS = os.cpu_count()


class Evaluation(NamedTuple):
    """Mergeable statistics of every client."""

    train_loss: np.ndarray | None  # [I] float64, l_i, if it was asked for
    train_examples: np.ndarray  # [I] int64, N_i
    test_hits: np.ndarray  # [I] int64
    test_examples: np.ndarray  # [I] int64

    def metrics(self) -> dict[str, float]:
        """Returns the loss of equation 1 and the two means of the test accuracy."""
        loss = {}
        if self.train_loss is not None:
            loss["train_loss"] = float(np.average(self.train_loss, weights=self.train_examples))
        return loss | accuracies("test_accuracy", self.test_hits, self.test_examples)


def accuracies(name: str, hits: np.ndarray, examples: np.ndarray) -> dict[str, float]:
    """Returns the accuracy as the mean over clients and over examples."""
    return {
        f"{name}/client_mean": float(np.mean(hits / examples)),
        f"{name}/example_mean": float(hits.sum() / examples.sum()),
    }


class Evaluator:
    """Evaluates all clients of a federation; no example is left out.

    Args:
      algorithm: The algorithm.
      data: The clients' data.
    """

    def __init__(self, algorithm: Algorithm, data: MappedData):
        self._algorithm = algorithm
        self._data = data
        self._functions = {}

    def evaluate(self, server_state, store: ClientStateStore, train_loss: bool = True) -> Evaluation:
        """Returns the statistics of all clients under the server's state and their own.

        Args:
          server_state: The server's state.
          store: The clients' states.
          train_loss: Whether to compute the losses; a pass over all training examples, of which there are often many more.
        """
        clients = self._data.clients
        losses = None
        if train_loss:
            losses = self._pass("train_losses", server_state, store, clients.train).astype(np.float64) / clients.train.sizes
        hits = self._pass("test_hits", server_state, store, clients.test).astype(np.int64)
        return Evaluation(losses, clients.train.sizes, hits, clients.test.sizes)

    def _pass(self, statistic, server_state, store, split):
        results = []
        for clients in self._blocks(split):
            states = store.get(clients)
            if statistic not in self._functions:
                self._functions[statistic] = self._trace(statistic, server_state, store)
            offsets = split.offsets[clients.start : clients.stop + 1]
            results.append(self._functions[statistic](server_state, states, offsets, np.asarray(clients)))
        return np.concatenate(results)

    def _blocks(self, split: ClientSplit):
        """Yields ranges of clients whose examples fit a block, each of at least one client."""
        most = max(1, _ACTIVATION_BYTES_PER_BLOCK // self._algorithm.model.activation_bytes_per_example)
        num_clients = self._data.clients.num_clients
        start = 0
        while start < num_clients:
            stop = int(np.searchsorted(split.offsets, split.offsets[start] + most, side="right")) - 1
            stop = min(max(stop, start + 1), num_clients)
            yield range(start, stop)
            start = stop

    def _trace(self, statistic, server_state, store):
        algorithm, model = self._algorithm, self._algorithm.model
        measure, split, dtype = {
            "train_losses": (_loss_sum, self._data.train, tf.float32),
            "test_hits": (count_hits, self._data.test, tf.int32),
        }[statistic]

        @tf.function
        def run(server_state, states, offsets, ids):
            examples, labels = split.open().read(offsets[0], offsets[-1] - offsets[0])
            training = self._data.train.open()
            shared = None
            if "theta" in algorithm.shared and algorithm.fine_tune is None:
                # Any client's state will do: theta does not depend on it.
                anyone = tf.nest.map_structure(lambda leaf: leaf[0], states)
                theta = algorithm.personalize(server_state, anyone).theta
                # A part for each core, side by side.
                bounds = [tf.shape(labels)[0] * part // _PARTS for part in range(_PARTS + 1)]
                parts = itertools.pairwise(bounds)
                shared = tf.concat([model.features(theta, examples[start:end]) for start, end in parts], axis=0)

            def one(k):
                rows = slice(offsets[k] - offsets[0], offsets[k + 1] - offsets[0])
                weights = algorithm.personalize(server_state, tf.nest.map_structure(lambda leaf: leaf[k], states))
                if algorithm.fine_tune is not None:
                    weights = algorithm.fine_tune(weights, self._client(training, ids[k]))
                features = model.features(weights.theta, examples[rows]) if shared is None else shared[rows]
                return measure(weights.head, features, labels[rows])

            count = tf.shape(offsets)[0] - 1
            return tf.map_fn(one, tf.range(count), fn_output_signature=dtype, parallel_iterations=_PARTS)

        states_spec = tf.nest.map_structure(lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype), store.spec)
        numbers = tf.TensorSpec([None], tf.int64)
        return run.get_concrete_function(specs_of(server_state), states_spec, numbers, numbers)

    def _client(self, training, client_id):
        """Returns a client outside of any round, as operations of the graph being built."""
        clients = self._data.clients
        columns = clients.train.offsets[:-1], clients.train.sizes, clients.num_classes, clients.client_weights
        first, count, num_classes, weight = (tf.gather(tf.constant(column), client_id) for column in columns)
        return read_client(training, first, count, num_classes, weight, tf.zeros([2], tf.int32))


def _loss_sum(head, features, labels):
    return tf.reduce_sum(head_lib.example_losses(head, features, labels))
