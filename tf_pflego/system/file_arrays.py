"""Arrays in files that are mapped into memory, for examples that are larger than the memory.

Nothing is left of the files when the process ends, however it ends: see `temporary.mappable_file`.
They are in the directory for temporary files, which the variable TMPDIR names.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

import numpy as np

from tf_pflego.system import temporary

# Rows are passed on in blocks of about so many bytes.
_BLOCK_BYTES = 2**24


class NoRoomError(OSError):
    """There is no room for a file of examples."""


class FileArray(np.memmap):
    """The array in a file, read-only: nothing of it is in memory before it is looked at."""

    file: BinaryIO  # It begins with these bytes.


def file_of(array: np.ndarray) -> BinaryIO | None:
    """Returns the file that begins with this whole array, or None."""
    for base in _in_file(array):
        if hasattr(base, "file"):
            whole = base.ctypes.data == array.ctypes.data and base.nbytes == array.nbytes
            return base.file if whole and array.flags.c_contiguous else None
    return None


class Writer:
    """Makes an array in a file, from consecutive blocks along the first axis."""

    def __init__(self):
        self._file = temporary.mappable_file("tf_pflego_data_")
        self._count, self._last = 0, np.zeros(0)

    def append(self, block: np.ndarray) -> None:
        """Appends a block, of the dtype and, but for the first axis, the shape of the others."""
        write(self._file, block)
        self._count += len(block)
        self._last = block[:0]

    def array(self) -> np.ndarray:
        """Returns the array, after the last block."""
        return mapped(self._file, self._last.dtype, (self._count, *self._last.shape[1:]))


def mapped(file: BinaryIO, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the array at the start of an open file."""
    if not np.prod(shape):
        return np.zeros(shape, dtype)
    array = FileArray(file, dtype, "r", shape=shape)
    array.file = file
    return array


def write(file: BinaryIO, array: np.ndarray) -> None:
    """Appends an array's bytes to a file, or raises a NoRoomError with the place."""
    try:
        for block in _blocks(array):
            file.write(np.ascontiguousarray(block).data)
        file.flush()
    except OSError as error:
        raise NoRoomError(
            f"{tempfile.gettempdir()} must have room for the clients' data, at least "
            f"{array.nbytes} bytes; it has not ({error.strerror}). Free some, or set the variable "
            "TMPDIR to a directory with more room."
        ) from error


def take(
    array: np.ndarray,
    rows: np.ndarray,
    change: Callable[[np.ndarray, int], np.ndarray] | None = None,
) -> np.ndarray:
    """Returns `array[rows]`, in a file if the array is in one.

    `change` gets a block of the result and the position of its first row, and returns the changed
    block. It may write into the block.
    """
    if not _in_file(array):
        return array[rows] if change is None else change(array[rows], 0)
    step = _rows_in_block(array)
    blocks = (
        (np.asarray(array[rows[start : start + step]]), start)
        for start in range(0, max(1, len(rows)), step)
    )
    return _written(block if change is None else change(block, start) for block, start in blocks)


def concatenated(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Returns arrays along the first axis, in a file if one of them is in one."""
    if not any(map(_in_file, arrays)):
        return np.concatenate(arrays)
    return _written(block for array in arrays for block in _blocks(array))


def _written(blocks):
    writer = Writer()
    for block in blocks:
        writer.append(block)
    return writer.array()


def _in_file(array):
    """Returns the arrays in files among an array and the arrays that it is a view of."""
    bases = []
    while isinstance(array, np.ndarray):
        bases += [array] if isinstance(array, FileArray) else []
        array = array.base
    return bases


def _rows_in_block(array):
    return max(1, _BLOCK_BYTES // max(1, array.nbytes // max(1, len(array))))


def _blocks(array) -> Iterator[np.ndarray]:
    step = _rows_in_block(array)
    for start in range(0, len(array), step):
        yield np.asarray(array[start : start + step])
