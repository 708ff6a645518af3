"""The states of an engine's clients between rounds: arrays over all clients, indexed by id."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_pflego.core import seeds
from tf_pflego.core.algorithm import Algorithm, num_bytes
from tf_pflego.core.nests import Structure, positions
from tf_pflego.data.clients import ClientData
from tf_pflego.engines.tracing import Traced, first_state, traces_of
from tf_pflego.system import rows

ClientIds = Sequence[int] | np.ndarray  # [c]


class WrittenStates:
    """The clients of a run that have a state, and the commit that wrote it.

    Staged states count as written by the next commit, until `roll_back` discards them. A checkpoint
    asks for the commits, and therefore need not repeat states of an earlier checkpoint.

    Attributes:
      spec: The spec of a client's state.
      init_reads: For each leaf of the server's state, whether a first state depends on it.
      leaf_names: The names of a state's leaves, as `nests.named` names them.
      num_clients: I.
      num_commits: The number of calls of `commit`.
    """

    def __init__(self, algorithm: Algorithm, server_state: Structure, num_clients: int):
        self.spec, self.init_reads = first_state(algorithm, server_state)
        self.leaf_names = list(positions(self.spec))
        self.num_clients = num_clients
        self.num_commits = 0
        # The commit that wrote a client's state, counted from 1; 0 for a client that has no state.
        self._commits = np.zeros(num_clients, np.int64)
        self._former: list[tuple[np.ndarray, np.ndarray]] = []  # ids and commits before `note`

    def have_state(self, ids: np.ndarray) -> np.ndarray:
        """Returns [c] bool, whether clients have a state, even a staged one."""
        return self._commits[ids] > 0

    def written_since(self, commit: int) -> np.ndarray:
        """Returns the ids, ascending, of clients with a state written after a commit, 0 for any."""
        return np.flatnonzero(self._commits > commit)

    def note(self, ids: np.ndarray) -> None:
        """Notes that states of clients are staged."""
        self._former.append((ids, self._commits[ids]))
        self._commits[ids] = self.num_commits + 1

    def commit(self) -> None:
        """Keeps the states staged since the last commit."""
        self._former.clear()
        self.num_commits += 1

    def roll_back(self) -> None:
        """Discards the states staged since the last commit."""
        while self._former:
            ids, commits = self._former.pop()
            self._commits[ids] = commits

    def forget(self) -> None:
        """Removes the states of all clients, and all staged ones."""
        self._former.clear()
        self._commits[:] = 0


class ClientStates(WrittenStates):
    """The states of the clients of one run, in this process.

    A client's first state is made at its first participation, from the server's state of that
    round, the seed and the client's identity. Rows of the arrays that no client has touched take no
    memory. If the states of all clients would take more than a quarter of the available memory, the
    arrays are in files, and each row is read there when it is needed (see `system.rows`). If not, a
    first state that does not depend on the server's is made once, however often it is read.
    """

    def __init__(
        self, algorithm: Algorithm, server_state: Structure, clients: ClientData, seed: int
    ):
        super().__init__(algorithm, server_state, clients.num_clients)
        self._clients, self._num_rows = clients, algorithm.model.num_classes
        self._seed = seed
        in_memory = rows.fit_memory(self.num_clients * num_bytes(self.spec))
        self._leaves = [
            rows.zeros(self.num_clients, leaf.shape, leaf.dtype.as_numpy_dtype, in_memory)
            for leaf in tf.nest.flatten(self.spec)
        ]
        self._files = [leaf for leaf in self._leaves if isinstance(leaf, rows.RowFile)]
        # The clients whose rows have their first state, which is the same in every round.
        self._prepared = np.zeros(self.num_clients, bool)
        self._prepares = in_memory and not any(self.init_reads)
        first_states = _for_many(algorithm.init_client, self.spec)
        # Algorithms that share their traces do not share these, which may hold initial weights.
        self._init = traces_of(algorithm, server_state).get(
            ("first_states", id(algorithm.init_client)),
            lambda: Traced(first_states, any_number=(1, 2)),
        )
        # Staged states are written when they are needed: most rounds stage once, and then nothing
        # has to be undone.
        self._pending: tuple[np.ndarray, list] | None = None
        self._undo: list[tuple[np.ndarray, list]] = []

    def read(self, client_ids: ClientIds, server_state: Structure) -> Structure:
        """Returns the states of the clients, each leaf [c, ...], as copies.

        A client without a state gets a first state, which is not kept.
        """
        self._write_pending()
        ids = np.asarray(client_ids, np.int64)
        leaves = [leaf[ids] for leaf in self._leaves]
        new = np.flatnonzero(~(self.have_state(ids) | self._prepared[ids]))
        if len(new) and leaves:
            first_states = self._first_states(ids[new], server_state)
            for leaf, first in zip(leaves, first_states, strict=True):
                leaf[new] = first
            if self._prepares:
                self._write(ids[new], first_states)
                self._prepared[ids[new]] = True
        return tf.nest.pack_sequence_as(self.spec, leaves)

    def admit(self, client_ids: np.ndarray, server_state: Structure) -> None:
        """Stages a first state for each of the clients without a state."""
        new = client_ids[~self.have_state(client_ids)]
        if len(new):
            first = self._first_states(new, server_state) if self._leaves else []
            self.stage(new, tf.nest.pack_sequence_as(self.spec, first))

    def leaves_of(self, client_ids: np.ndarray, wanted: Sequence[bool]) -> list[np.ndarray]:
        """Returns the `wanted` leaves of the states of clients that all have one."""
        self._write_pending()
        return [leaf[client_ids] for leaf, want in zip(self._leaves, wanted, strict=True) if want]

    def stage(self, client_ids: ClientIds, states: Structure) -> None:
        """Stages new states of clients, each leaf [c, ...] in the order of the ids.

        If there is no space for them, this raises OSError, and nothing has changed.
        """
        tf.nest.assert_same_structure(self.spec, states)
        self._write_pending()
        ids = np.asarray(client_ids, np.int64)
        for file in self._files:
            file.reserve(np.unique(ids[~self.have_state(ids)]))
        self.note(ids)
        self._pending = ids, tf.nest.flatten(states)

    def commit(self) -> None:
        if self._pending is not None:
            self._write(*self._pending)
            self._pending = None
        self._undo.clear()
        super().commit()

    def roll_back(self) -> None:
        self._pending = None
        while self._undo:
            self._write(*self._undo.pop())
        super().roll_back()

    def forget(self) -> None:
        # A round that was interrupted while it was stored may have left something.
        self._pending = None
        self._undo.clear()
        self._prepared[:] = False
        super().forget()

    def named_leaf(self, client_ids: np.ndarray, name: str) -> np.ndarray:
        """Returns [c, ...], a copy of one leaf of the states of clients that all have one."""
        return self._leaves[self.leaf_names.index(name)][client_ids]

    def close(self) -> None:
        """Frees the files, if there are any. The states cannot be used afterwards."""
        for file in self._files:
            file.close()

    def _write_pending(self):
        if self._pending is not None:
            ids, leaves = self._pending
            self._undo.append((ids, [leaf[ids] for leaf in self._leaves]))
            self._write(ids, leaves)
            self._pending = None

    def _write(self, ids, leaves):
        for leaf, value in zip(self._leaves, leaves, strict=True):
            leaf[ids] = value

    def _first_states(self, ids, server_state):
        identities = self._clients.identities[ids]
        client_seeds = seeds.client_seeds(self._seed, "client_state", identities)
        classes = self._clients.head_classes(ids, self._num_rows)
        states = self._init(server_state, client_seeds, classes)
        return [np.asarray(leaf) for leaf in tf.nest.flatten(states)]


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
