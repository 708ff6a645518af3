"""Where the clients' states live between rounds: arrays over all clients, reached by id."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_pflego.core import seeds
from tf_pflego.core.algorithm import Algorithm, Structure


class ClientStateStore:
    """The states of all clients of one run.

    A state is made at the client's first visit, as a pure function of (seed, client id): who is looked at, and when,
    changes nothing. Pages of the arrays that no client has touched take no memory.

    Args:
      algorithm: Whose client states these are.
      num_classes: [I] int32, K_i.
      seed: The seed of the run.
    """

    def __init__(self, algorithm: Algorithm, num_classes: Sequence[int], seed: int):
        self._spec = algorithm.client_state_spec()
        self._num_classes = np.asarray(num_classes, np.int32)
        self._seed = seed
        self._leaves = [
            np.zeros((len(self._num_classes), *leaf.shape), leaf.dtype.as_numpy_dtype) for leaf in tf.nest.flatten(self._spec)
        ]
        self._exists = np.zeros(len(self._num_classes), bool)
        self._init = _traced_for_many(algorithm.init_client, self._spec) if self._leaves else None

    @property
    def spec(self) -> Structure:
        """Nest of `tf.TensorSpec` of one client's state."""
        return self._spec

    def get(self, client_ids: Sequence[int]) -> Structure:
        """Returns the states of the clients, each leaf with a leading axis [c]; the arrays are copies."""
        ids = np.asarray(client_ids, np.int64)
        new = ids[~self._exists[ids]]
        if len(new) and self._leaves:
            self.put(new, self._init(seeds.client_seeds(self._seed, "client_state", new), self._num_classes[new]))
        return tf.nest.pack_sequence_as(self._spec, [leaf[ids] for leaf in self._leaves])

    def put(self, client_ids: Sequence[int], states: Structure) -> None:
        """Writes the states of the clients; leaves with a leading axis [c], in the order of `client_ids`."""
        tf.nest.assert_same_structure(self._spec, states)
        ids = np.asarray(client_ids, np.int64)
        for leaf, value in zip(self._leaves, tf.nest.flatten(states), strict=True):
            leaf[ids] = value
        self._exists[ids] = True


def _traced_for_many(init_client, spec):
    @tf.function
    def init(client_seeds, num_classes):
        # Side by side would cost more than it saves: a state is a few small operations.
        return tf.map_fn(
            lambda args: init_client(*args), (client_seeds, num_classes), fn_output_signature=spec, parallel_iterations=1
        )

    return init.get_concrete_function(tf.TensorSpec([None, 2], tf.int32), tf.TensorSpec([None], tf.int32))
