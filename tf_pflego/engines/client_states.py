"""The states of an engine's clients between rounds: arrays over all clients, reached by id."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tf_pflego.core import seeds
from tf_pflego.core.algorithm import Algorithm, num_bytes, specs_of
from tf_pflego.core.nests import Structure, positions
from tf_pflego.engines.tracing import Traced, traces_of
from tf_pflego.system import rows

ClientIds = Sequence[int] | np.ndarray  # [c]


class WrittenStates:
    """Which clients of a run have a state, and the commit that wrote it, wherever the states are.

    Args:
      algorithm: The algorithm whose client states these are.
      server_state: The server's first state, for its shapes.
      num_clients: I.

    Attributes:
      spec: The spec of a client's state.
      init_reads: For each leaf of the server's state, whether a first state depends on it.
      leaf_names: The names of a state's leaves, as `nests.named` names them.
      num_clients: I.
      num_commits: How often `commit` was called.
    """

    def __init__(self, algorithm: Algorithm, server_state: Structure, num_clients: int):
        self.spec, self.init_reads = _spec_and_reads(algorithm, server_state)
        self.leaf_names = list(positions(self.spec))
        self.num_clients = num_clients
        self.num_commits = 0
        # The commit that wrote a client's state, counted from 1; 0 for a client that has no state.
        self._commits = np.zeros(num_clients, np.int64)

    def written_since(self, commit: int) -> np.ndarray:
        """Returns the ids, ascending, of the clients whose states were written after a commit.

        Args:
          commit: The commit's number; 0 for all clients that have a state.
        """
        return np.flatnonzero(self._commits > commit)

    def forget(self) -> None:
        """Leaves all clients without a state."""
        self._commits[:] = 0

    def _note(self, ids):
        """Remembers that the states of clients are written by the next commit."""
        self._commits[ids] = self.num_commits + 1


class ClientStates(WrittenStates):
    """The states of the clients of one run, in this process.

    A client's first state is made when it first takes part, from the server's state of that round,
    the seed and the client's identity. Rows of the arrays that no client has touched take no
    memory. If the states of all clients would take more than a quarter of the memory that is
    available, the arrays are in files, of which a row is read when it is needed; see `system.rows`.

    What a round writes is staged: it is read like the rest until `commit` keeps it or `roll_back`
    discards it. Each state remembers the commit that wrote it, so that a checkpoint need not hold
    what an earlier one has.

    Args:
      algorithm: The algorithm whose client states these are.
      server_state: The server's first state, for its shapes.
      head_classes: (client ids [c], K) -> [c, K] int32; see `ClientData.head_classes`.
      seed: The seed of the run.
      identities: [I] int64, from which clients' draws follow; see `ClientData`.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        server_state: Structure,
        head_classes: Callable[[np.ndarray, int], np.ndarray],
        seed: int,
        identities: np.ndarray,
    ):
        super().__init__(algorithm, server_state, len(identities))
        self._head_classes, self._num_rows = head_classes, algorithm.model.num_classes
        self._seed = seed
        self._identities = identities
        in_memory = rows.fit_memory(self.num_clients * num_bytes(self.spec))
        self._leaves = [
            rows.zeros(self.num_clients, leaf.shape, leaf.dtype.as_numpy_dtype, in_memory)
            for leaf in tf.nest.flatten(self.spec)
        ]
        self._files = [leaf for leaf in self._leaves if isinstance(leaf, rows.RowFile)]
        first_states = _for_many(algorithm.init_client, self.spec)
        self._init = traces_of(algorithm, server_state).get(
            "first_states", lambda: Traced(first_states, any_number=(1, 2))
        )
        self._pending: tuple[np.ndarray, list] | None = None
        self._undo: list[tuple[np.ndarray, list, np.ndarray]] = []

    def read(self, client_ids: ClientIds, server_state: Structure) -> Structure:
        """Returns the states of the clients, each leaf [c, ...]; the arrays are copies.

        For a client that has no state yet, this is the state that it would start from; that state
        is not kept.
        """
        self._write_pending()
        ids = np.asarray(client_ids, np.int64)
        leaves = [leaf[ids] for leaf in self._leaves]
        new = np.flatnonzero(self._commits[ids] == 0)
        if len(new) and leaves:
            for leaf, first in zip(leaves, self._first_states(ids[new], server_state), strict=True):
                leaf[new] = first
        return tf.nest.pack_sequence_as(self.spec, leaves)

    def admit(self, client_ids: ClientIds, server_state: Structure) -> None:
        """Stages a first state for each of the clients that has none."""
        self._write_pending()
        ids = np.asarray(client_ids, np.int64)
        new = ids[self._commits[ids] == 0]
        if len(new):
            first = self._first_states(new, server_state) if self._leaves else []
            self.stage(new, tf.nest.pack_sequence_as(self.spec, first))

    def leaves_of(self, client_ids: ClientIds, wanted: Sequence[bool]) -> list[np.ndarray]:
        """Returns the leaves that are `wanted` of the states of clients, all of which have one."""
        self._write_pending()
        return [leaf[client_ids] for leaf, want in zip(self._leaves, wanted, strict=True) if want]

    def stage(self, client_ids: ClientIds, states: Structure) -> None:
        """Stages new states of clients, each leaf [c, ...] in the order of the ids.

        Raises:
          OSError: There is no space for them; nothing has changed.
        """
        tf.nest.assert_same_structure(self.spec, states)
        self._write_pending()
        self._reserve(client_ids)
        # States are written when they are needed: most rounds stage once, and then nothing has to
        # be undone.
        self._pending = np.asarray(client_ids, np.int64), tf.nest.flatten(states)

    def commit(self) -> None:
        """Keeps what was staged since the last commit."""
        if self._pending is not None:
            self._write(*self._pending)
            self._pending = None
        self._undo.clear()
        self.num_commits += 1

    def roll_back(self) -> None:
        """Discards what was staged since the last commit."""
        self._pending = None
        while self._undo:
            ids, leaves, commits = self._undo.pop()
            self._write(ids, leaves)
            self._commits[ids] = commits

    def named_leaf(self, client_ids: np.ndarray, name: str) -> np.ndarray:
        """Returns [c, ...], a copy of one leaf of the states of clients, all of which have one."""
        return self._leaves[self.leaf_names.index(name)][client_ids]

    def set_named(self, client_ids: np.ndarray, leaves: dict[str, np.ndarray]) -> None:
        """Replaces the states of clients, given as `named_leaf` returns them.

        Raises:
          OSError: There is no space for them; none has changed.
        """
        self._reserve(client_ids)
        self._write(client_ids, [leaves[name] for name in self.leaf_names])

    def close(self) -> None:
        """Frees the space of the files, if there are any; the states cannot be used afterwards."""
        for file in self._files:
            file.close()

    def _write_pending(self):
        if self._pending is not None:
            ids, leaves = self._pending
            before = [leaf[ids] for leaf in self._leaves]
            self._undo.append((ids, before, self._commits[ids]))
            self._write(ids, leaves)
            self._pending = None

    def _reserve(self, client_ids):
        """Takes the space of states that are the first of their clients."""
        if self._files:
            ids = np.asarray(client_ids, np.int64)
            new = np.unique(ids[self._commits[ids] == 0])
            for file in self._files:
                file.reserve(new)

    def _write(self, ids, leaves):
        for leaf, value in zip(self._leaves, leaves, strict=True):
            leaf[ids] = value
        self._note(ids)

    def _first_states(self, ids, server_state):
        client_seeds = seeds.client_seeds(self._seed, "client_state", self._identities[ids])
        classes = self._head_classes(ids, self._num_rows)
        states = self._init(server_state, client_seeds, classes)
        return [np.asarray(leaf) for leaf in tf.nest.flatten(states)]


def _spec_and_reads(algorithm, server_state):
    """Returns the spec of a client's state, and which leaves of the server's it reads."""
    seed, classes = (tf.TensorSpec([n], tf.int32) for n in (2, algorithm.model.num_classes))

    def traced():
        init = tf.function(algorithm.init_client, autograph=False).get_concrete_function(
            specs_of(server_state), seed, classes
        )
        placeholders = init.inputs[: len(tf.nest.flatten(server_state))]
        reads = [bool(placeholder.consumers()) for placeholder in placeholders]
        return specs_of(init.structured_outputs), reads

    return traces_of(algorithm, server_state).get("spec", traced)


def _for_many(init_client, spec):
    def init(server_state, client_seeds, classes):
        # Parallel clients would cost more than they save: a state takes a few small operations.
        return tf.map_fn(
            lambda client: init_client(server_state, *client),
            (client_seeds, classes),
            fn_output_signature=spec,
            parallel_iterations=1,
        )

    return init
