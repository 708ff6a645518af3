"""The training, test or validation examples of all clients, with offsets by client id."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from tf_pflego.data.partitions.partition import starts
from tf_pflego.system import file_arrays, texts


@dataclasses.dataclass(frozen=True)
class ClientSplit:
    """The training, test or validation examples of all clients, client 0's first.

    `ClientData` checks its splits and converts them to these dtypes.

    Attributes:
      examples: [N, ...] uint8, float32 or int32. A model gets uint8, which are images, as floats in
        [0, 1], and int32, which are tokens and further integers, unchanged.
      labels: [N] int32, or in the form of the clients' task.
      offsets: [I + 1] int64. Client i has the examples from offsets[i] to offsets[i + 1].
    """

    examples: np.ndarray
    labels: np.ndarray
    offsets: np.ndarray

    def __repr__(self) -> str:
        shape = texts.array(self.examples.shape[1:], self.examples.dtype)
        return (
            f"ClientSplit({len(self.labels)} examples of "
            f"{texts.counted(len(self.offsets) - 1, 'client')}, {shape})"
        )

    @functools.cached_property
    def num_labels(self) -> np.ndarray:
        """[I] int64, N_i: each client's number of examples or, for sequences, of labelled
        positions."""
        if self.labels.ndim == 1 or self.labels.dtype != np.int32 or self.labels.min() >= 0:
            return self.sizes
        before = starts(np.count_nonzero(self.labels >= 0, axis=1))
        return np.diff(before[self.offsets])

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        """[I] int64, the number of examples of each client."""
        return np.diff(self.offsets)

    def of(self, client_id: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns views of (examples, labels) of one client, as they are stored."""
        if isinstance(client_id, str):
            raise TypeError(
                "`client_id` must be a whole number, since a split does not know names; got "
                f"{client_id!r}. Give `clients.client_names.index(name)`."
            )
        rows = slice(self.offsets[client_id], self.offsets[client_id + 1])
        return self.examples[rows], self.labels[rows]

    def of_clients(self, clients: slice | np.ndarray) -> ClientSplit:
        """Returns the examples of some clients: views for a slice of clients, else copies."""
        offsets = starts(self.sizes[clients])
        if isinstance(clients, slice):
            rows = slice(self.offsets[clients.start], self.offsets[clients.stop])
            return ClientSplit(self.examples[rows], self.labels[rows], offsets)
        moved = np.repeat(self.offsets[clients] - offsets[:-1], self.sizes[clients])
        return self._at(np.arange(offsets[-1]) + moved, offsets)

    def where(self, chosen: np.ndarray) -> ClientSplit:
        """Returns copies of the examples that are chosen, [N] bool."""
        return self._at(np.flatnonzero(chosen), starts(chosen)[self.offsets])

    def _at(self, rows, offsets):
        return ClientSplit(file_arrays.take(self.examples, rows), self.labels[rows], offsets)

    def followed_by(self, other: ClientSplit) -> ClientSplit:
        """Returns the examples of these clients and of others after them."""
        return ClientSplit(
            file_arrays.concatenated([self.examples, other.examples]),
            np.concatenate([self.labels, other.labels]),
            np.concatenate([self.offsets, self.offsets[-1] + other.offsets[1:]]),
        )
