"""A split in files that any process can map into its memory: clients' rows are read where they are needed, not shipped."""

import tempfile

import tensorflow as tf

from tf_pflego.data.clients import ClientSplit


class MappedSplit:
    """Examples and labels in two files without names, which end with the last process that has them open.

    Args:
      split: The split; its arrays are written to the files.
    """

    def __init__(self, split: ClientSplit):
        self._arrays = (split.examples, split.labels)
        self._files = []
        for array in self._arrays:
            self._files.append(tempfile.TemporaryFile(prefix="tf_pflego_data_"))
            array.tofile(self._files[-1])
            self._files[-1].flush()

    @property
    def descriptors(self) -> list[int]:
        """The open files, for a child process to inherit under the same numbers."""
        return [file.fileno() for file in self._files]

    def read(self, start: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns, as operations of the graph being built, `count` (examples, labels) from row `start` on, as stored.

        They are views of the mapped files, in the process that runs the graph and has the files open.
        """
        whole = (
            tf.raw_ops.ImmutableConst(dtype=array.dtype, shape=array.shape, memory_region_name=f"/proc/self/fd/{file.fileno()}")
            for array, file in zip(self._arrays, self._files, strict=True)
        )
        return tuple(rows[start : start + count] for rows in whole)

    def close(self) -> None:
        """Closes the files."""
        for file in self._files:
            file.close()
