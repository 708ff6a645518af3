"""Arrays of rows that may be larger than the memory: then they are in a file, row by row."""

import contextlib
import errno
import itertools
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

# The part of the memory that is available which an array may take; several processes of one machine
# may have some.
_SHARE = 0.25
# The part of the room that is free in a directory which a file may take.
_SHARE_OF_DISK = 0.5
# Many rows are passed on in blocks of at most so many bytes and rows.
_BLOCK_BYTES = 2**26
_MOST_IN_BLOCK = 4096
_CGROUPS = pathlib.Path("/sys/fs/cgroup")
_OWN_GROUPS = pathlib.Path("/proc/self/cgroup")
_MEMINFO = pathlib.Path("/proc/meminfo")
# The files of a group's limit and of its use, and the line of memory.stat with the cached pages of
# files, which the kernel gives back at once. Version 2 comes first.
_VERSIONS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def fit_memory(num_bytes: int) -> bool:
    """Returns whether an array of so many bytes may be in memory."""
    return num_bytes <= _SHARE * available_memory()


def fit_disk(num_bytes: int, directory: str | os.PathLike) -> bool:
    """Returns whether a file of so many bytes may be in a directory."""
    return num_bytes <= _SHARE_OF_DISK * shutil.disk_usage(directory).free


def blocks(count: int, row_bytes: int) -> Iterator[slice]:
    """Yields slices of `count` rows, in order, each so small that copies of it fit the memory."""
    size = min(max(1, _BLOCK_BYTES // max(1, row_bytes)), _MOST_IN_BLOCK)
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


class RowFile:
    """An array [n, ...] in a file, from which rows are copied and into which they are written.

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
        for start, stop, _ in self._runs(rows):
            try:
                os.posix_fallocate(self._file.fileno(), start, stop - start)
            except OSError as error:
                raise self._explained(error) from error

    def __getitem__(self, rows: npt.ArrayLike) -> np.ndarray:
        """Returns a copy of rows [r], an array [r, ...]; what was never written is zero."""
        rows = np.asarray(rows, np.int64)
        copy = np.zeros((len(rows), *self.shape[1:]), self.dtype)
        content = self._bytes_of(copy)
        for start, stop, place in self._runs(rows):
            view, at = content[place : place + stop - start], start
            while len(view) and (count := os.preadv(self._file.fileno(), [view], at)):
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
                    count = os.pwrite(self._file.fileno(), view, at)
                except OSError as error:
                    raise self._explained(error) from error
                view, at = view[count:], at + count

    def close(self) -> None:
        """Frees the space of the file."""
        self._file.close()

    def _bytes_of(self, array):
        return memoryview(array.reshape(-1).view(np.uint8)) if array.size else memoryview(b"")

    def _runs(self, rows):
        """Yields (first byte, end, place in the array) of rows that stand one after the other."""
        if not len(rows) or not self._row_bytes:
            return
        ends = [0, *(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
        for a, b in itertools.pairwise(ends):
            start = int(rows[a]) * self._row_bytes
            yield start, start + (b - a) * self._row_bytes, a * self._row_bytes

    def _explained(self, error):
        """Returns the error with what is missing and what to do about it."""
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
    """Returns an array [n, ...] of zeros; of it, only rows that are written take space."""
    return np.zeros((count, *shape), dtype) if in_memory else RowFile(count, shape, dtype)


def available_memory() -> int:
    """Returns how many bytes this process can take before the machine's or container's limit."""
    limits = [int(_table(_MEMINFO)["MemAvailable:"]) * 1024]
    for group in _groups():
        for limit, used, cached in _VERSIONS:
            # A group without a limit has the word max there, or no such file.
            with contextlib.suppress(OSError, ValueError, KeyError):
                left = int((group / limit).read_text()) - int((group / used).read_text())
                limits.append(left + int(_table(group / "memory.stat")[cached]))
    return max(0, min(limits))


def _groups():
    """Yields the directories of the control groups of this process, and of those above them."""
    with contextlib.suppress(OSError):
        for line in _OWN_GROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root = _CGROUPS / "memory" if controllers else _CGROUPS
            group = root / path.lstrip("/")
            yield from (group, *(above for above in group.parents if above.is_relative_to(root)))


def _table(path):
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0]: words[1] for words in lines if len(words) > 1}
