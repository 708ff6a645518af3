"""Files for data between a program and its worker that are too large for a message.

Both run on one machine. The program writes a file of rows, which the worker maps into its memory,
and the worker writes a file per client, which the program reads and removes.
"""

import os
import pathlib
from typing import BinaryIO

import numpy as np
import tensorflow as tf

from tf_pflego.core.nests import Structure
from tf_pflego.data.mapped import tensor_of_file
from tf_pflego.tff.engine.packing import Packing


def remove_files(directory: str) -> None:
    """Removes the files in a directory that `make_directory` has made, but for its lock."""
    for path in pathlib.Path(directory).glob("[!.]*"):
        path.unlink()


class Inbox:
    """One row of bytes for each client of a cohort, written here and read by the worker.

    `file` is an open file without a name, which the worker has inherited.
    """

    def __init__(self, file: BinaryIO, packing: Packing, max_clients: int):
        self._packing = packing
        self._shape = (max_clients, packing.num_bytes)
        self._file = file
        size = max_clients * packing.num_bytes
        if os.fstat(file.fileno()).st_size < size:
            file.truncate(size)
        self._rows: np.ndarray = np.memmap(file, np.uint8, "r+", shape=self._shape)

    def write(self, structure: Structure, count: int) -> None:
        """Writes a nest of arrays, each leaf [count, ...], into the first rows."""
        self._packing.pack_into(self._rows[:count], structure)

    def close(self) -> None:
        """Ends the mapping of the file, which has its own descriptor."""
        self._rows = np.zeros((0, 0), np.uint8)

    def read(self, slot: tf.Tensor) -> tf.Tensor:
        """Returns row `slot` [num_bytes] uint8, as operations of the worker's graph.

        The row is a copy, because TensorFlow writes results into inputs that nothing else will
        read, and the worker's view of the file is read-only.
        """
        rows = tensor_of_file(self._file, tf.uint8, self._shape)
        return tf.raw_ops.DeepCopy(x=rows[slot])


class Outbox:
    """A file for each client of a cohort, written by the worker and read here.

    No other program writes to the directory.
    """

    def __init__(self, directory: str, packing: Packing):
        self._directory = pathlib.Path(directory)
        self._packing = packing

    def write(self, slot: tf.Tensor, packed: tf.Tensor) -> tf.Tensor:
        """Writes [num_bytes] uint8 for client `slot`, as operations of the worker's graph.

        The slot, which is returned, becomes available when the file is written.
        """
        # The data file of a checkpoint of one tensor has the tensor's bytes and nothing else.
        written = tf.raw_ops.SaveV2(
            prefix=tf.strings.join([f"{self._directory}/", tf.strings.as_string(slot)]),
            tensor_names=["packed"],
            shape_and_slices=[""],
            tensors=[packed],
        )
        with tf.control_dependencies([written]):
            return tf.identity(slot)

    def read(self, count: int) -> np.ndarray:
        """Returns [count, num_bytes] uint8, and removes the files."""
        rows = np.empty((count, self._packing.num_bytes), np.uint8)
        for slot, row in enumerate(rows):
            path = self._directory / f"{slot}.data-00000-of-00001"
            with open(path, "rb") as file:
                file.readinto(row)
            path.unlink()
        return rows
