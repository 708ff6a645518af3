"""What every client, drawn or not, would be served now: the loss of equation 1 and the test accuracy."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Algorithm
from tf_pflego.core.state_store import ClientStateStore
from tf_pflego.data.clients import ClientData, ClientSplit, as_floats
from tf_pflego.engines.exchange import count_hits
from tf_pflego.models import head as head_lib

_ACTIVATION_BYTES_PER_BLOCK = 2**28


class Evaluation(NamedTuple):
    """Mergeable statistics of every client."""

    train_loss: np.ndarray  # [I] float64, l_i
    train_examples: np.ndarray  # [I] int64, N_i
    test_hits: np.ndarray  # [I] int64
    test_examples: np.ndarray  # [I] int64

    def metrics(self) -> dict[str, float]:
        """Returns the loss of equation 1 and the two means of the test accuracy."""
        return {
            "train_loss": float(np.average(self.train_loss, weights=self.train_examples)),
            **accuracies("test_accuracy", self.test_hits, self.test_examples),
        }


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

    def __init__(self, algorithm: Algorithm, data: ClientData):
        self._algorithm = algorithm
        self._data = data
        self._run = None

    def evaluate(self, server_state, store: ClientStateStore) -> Evaluation:
        """Returns the statistics of all clients under the server's state and their own."""
        losses, _ = self._pass(server_state, store, self._data.train)
        _, hits = self._pass(server_state, store, self._data.test)
        sizes = self._data.train.sizes
        return Evaluation(losses / sizes, sizes, hits, self._data.test.sizes)

    def _pass(self, server_state, store, split):
        losses, hits = [], []
        for clients in self._blocks(split):
            rows = slice(split.offsets[clients.start], split.offsets[clients.stop])
            offsets = split.offsets[clients.start : clients.stop + 1] - split.offsets[clients.start]
            states = store.get(clients)
            if self._run is None:
                self._run = self._trace(server_state, store, split)
            block = self._run(server_state, states, split.examples[rows], split.labels[rows], offsets)
            losses.append(block[0])
            hits.append(block[1])
        return np.concatenate(losses).astype(np.float64), np.concatenate(hits).astype(np.int64)

    def _blocks(self, split: ClientSplit):
        """Yields ranges of clients whose examples fit a block, each of at least one client."""
        most = max(1, _ACTIVATION_BYTES_PER_BLOCK // self._algorithm.model.activation_bytes_per_example)
        start = 0
        while start < self._data.num_clients:
            stop = int(np.searchsorted(split.offsets, split.offsets[start] + most, side="right")) - 1
            stop = min(max(stop, start + 1), self._data.num_clients)
            yield range(start, stop)
            start = stop

    def _trace(self, server_state, store, split):
        algorithm, model = self._algorithm, self._algorithm.model
        specs = [
            tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), server_state),
            tf.nest.map_structure(lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype), store.spec),
            tf.TensorSpec([None, *split.examples.shape[1:]], split.examples.dtype),
            tf.TensorSpec([None], tf.int32),
            tf.TensorSpec([None], tf.int64),
        ]

        @tf.function(input_signature=specs)
        def run(server_state, states, examples, labels, offsets):
            shared = None
            if "theta" in algorithm.shared:
                # Any client's state will do: theta does not depend on it.
                anyone = tf.nest.map_structure(lambda leaf: leaf[0], states)
                shared = model.features(algorithm.personalize(server_state, anyone).theta, as_floats(examples))

            def one(k):
                rows = slice(offsets[k], offsets[k + 1])
                weights = algorithm.personalize(server_state, tf.nest.map_structure(lambda leaf: leaf[k], states))
                if shared is None:
                    features = model.features(weights.theta, as_floats(examples[rows]))
                else:
                    features = shared[rows]
                losses = head_lib.example_losses(weights.head, features, labels[rows])
                return tf.reduce_sum(losses), count_hits(weights.head, features, labels[rows])

            count = tf.shape(offsets)[0] - 1
            return tf.map_fn(one, tf.range(count), fn_output_signature=(tf.float32, tf.int32), parallel_iterations=2)

        return run
