"""Arrays of rows that may be larger than the memory: then they are in a file, row by row."""

import errno
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tf_pflego.system import operating_system

# The part of the memory that is available which an array may take; several processes of one machine
# may have some.
_SHARE = 0.25
# The part of the room that is free in a directory which a file may take.
_SHARE_OF_DISK = 0.5
# Many rows are passed on in blocks of at most so many bytes and rows.
_BLOCK_BYTES = 2**26
_MOST_IN_BLOCK = 4096


def fit_memory(num_bytes: int) -> bool:
    """Returns whether an array of this many bytes may be in memory."""
    return num_bytes <= _SHARE * operating_system.available_memory()


def fit_disk(num_bytes: int, directory: str | os.PathLike) -> bool:
    """Returns whether a file of this many bytes may be in a directory."""
    return num_bytes <= _SHARE_OF_DISK * shutil.disk_usage(directory).free


def blocks(count: int, row_bytes: int) -> Iterator[slice]:
    """Yields slices of `count` rows, in order, each so small that copies of it fit the memory."""
    size = min(max(1, _BLOCK_BYTES // max(1, row_bytes)), _MOST_IN_BLOCK)
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


class RowFile:
    """An array [n, ...] in a file, with copies of rows for reads and writes.

    The file has no name, so that nothing is left of it when the process ends, however it ends. It
    is sparse: only rows that have been reserved or written take space. It is not mapped, since a
    full disk would end a process that writes to a mapped file. `shape` is a row's.
    """

    def __init__(self, count: int, shape: Sequence[int], dtype: npt.DTypeLike):
        self.shape, self.dtype = (count, *shape), np.dtype(dtype)
        self._row_bytes = int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize
        self._directory = tempfile.gettempdir()
        self._file = tempfile.TemporaryFile(prefix="tf_pflego_rows_", buffering=0)

    def reserve(self, rows: np.ndarray) -> None:
        """Takes the space of rows [r], so that writing them cannot fail for want of space."""
        if not operating_system.IS_LINUX:  # There is no call that takes space.
            self[rows] = self[rows]
            return
        file = self._file.fileno()
        for start, stop, _ in self._runs(rows):
            try:
                os.posix_fallocate(file, start, stop - start)  # type: ignore[attr-defined]
            except OSError as error:
                raise self._explained(error) from error

    def __getitem__(self, rows: npt.ArrayLike) -> np.ndarray:
        """Returns a copy of rows [r], an array [r, ...]. Unwritten rows are zero."""
        rows = np.asarray(rows, np.int64)
        copy = np.zeros((len(rows), *self.shape[1:]), self.dtype)
        content, file = self._bytes_of(copy), self._file.fileno()
        for start, stop, place in self._runs(rows):
            view, at = content[place : place + stop - start], start
            # macOS refuses to read or write 2 GB at once.
            while len(view) and (count := os.preadv(file, [view[:_BLOCK_BYTES]], at)):
                view, at = view[count:], at + count
        return copy

    def __setitem__(self, rows: npt.ArrayLike, values: npt.ArrayLike) -> None:
        """Writes rows [r], which are different, from an array [r, ...]."""
        rows = np.asarray(rows, np.int64)
        values = np.asarray(values, self.dtype)
        whole = np.ascontiguousarray(np.broadcast_to(values, (len(rows), *self.shape[1:])))
        content = self._bytes_of(whole)
        for start, stop, place in self._runs(rows):
            view, at = content[place : place + stop - start], start
            while len(view):
                try:
                    count = os.pwrite(self._file.fileno(), view[:_BLOCK_BYTES], at)
                except OSError as error:
                    raise self._explained(error) from error
                view, at = view[count:], at + count

    def close(self) -> None:
        """Frees the space of the file."""
        self._file.close()

    def _bytes_of(self, array):
        return memoryview(array.reshape(-1).view(np.uint8)) if array.size else memoryview(b"")

    def _runs(self, rows):
        """Yields (first byte, end, place in the array) of consecutive rows."""
        if not len(rows) or not self._row_bytes:
            return
        ends = [0, *(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
        for a, b in itertools.pairwise(ends):
            start = int(rows[a]) * self._row_bytes
            yield start, start + (b - a) * self._row_bytes, a * self._row_bytes

    def _explained(self, error):
        """Returns the error with the missing space and the remedy."""
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return error
        return OSError(
            f"{self._directory} must have room for the states of all clients that take part, in "
            f"rows of {self._row_bytes} bytes; it has not ({error.strerror}). Free some, or set "
            "the variable TMPDIR to a directory with more room."
        )


def zeros(
    count: int, shape: Sequence[int], dtype: npt.DTypeLike, in_memory: bool
) -> np.ndarray | RowFile:
    """Returns an array [n, ...] of zeros. Only written rows take space."""
    return np.zeros((count, *shape), dtype) if in_memory else RowFile(count, shape, dtype)
