"""The clients' data in files that any process can map into its memory.

Rows are read where they are needed, and never shipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy.typing as npt
import tensorflow as tf

from tf_pflego.data.clients import ClientData
from tf_pflego.data.model_inputs import as_model_inputs, copied_as_model_inputs
from tf_pflego.system import file_arrays, operating_system, temporary


def tensor_of_file(file: BinaryIO, dtype: npt.DTypeLike, shape: Sequence[int]) -> tf.Tensor:
    """Returns the contents of a file, as an operation of the graph being built, without a copy.

    The process that runs the graph is this one, or one that has inherited the open file.
    """
    path = operating_system.path_of(file)
    mapped = tf.raw_ops.ImmutableConst(dtype=dtype, shape=shape, memory_region_name=path)
    # Before a graph first runs, TensorFlow computes the parts of it that are constant. It copies
    # their results, however large, and its allocator with oneDNN keeps the memory. Operations with
    # a `_scoped_allocator` attribute, even an empty one, are left out.
    none = tf.compat.v1.AttrValue(list=tf.compat.v1.AttrValue.ListValue())
    mapped.op._set_attr("_scoped_allocator", none)
    return mapped


class Rows(NamedTuple):
    """All rows of a split."""

    examples: Any  # [N, ...], as stored
    labels: Any  # [N] int32

    def read(self, start: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns `count` rows from row `start` on: (examples float32 or int32, labels int32).

        They are copies: TensorFlow writes results into inputs that nothing else will read, and the
        mapped files are read-only.
        """
        rows = slice(start, start + count)
        examples = copied_as_model_inputs(self.examples[rows])
        return examples, tf.raw_ops.DeepCopy(x=self.labels[rows])

    def gather(self, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns rows by their numbers, as `read` does."""
        return as_model_inputs(tf.gather(self.examples, rows)), tf.gather(self.labels, rows)


class OpenData(NamedTuple):
    """The rows of all splits."""

    train: Rows
    test: Rows
    validation: Rows | tuple[()] = ()  # An empty nest if there are none.


class MappedData:
    """The clients' data in files, which engine and evaluation share.

    Arrays that are not in files are written to temporary files, which are removed with their last
    process.
    """

    def __init__(self, clients: ClientData):
        self.clients = clients
        rows = {name: Rows(split.examples, split.labels) for name, split in clients.splits.items()}
        self._arrays = OpenData(**rows)
        self._made: list[Any] = []
        self._files = tf.nest.map_structure(self._file_of, self._arrays)

    def _file_of(self, array):
        file = file_arrays.file_of(array)
        if file is None:
            file = temporary.mappable_file("tf_pflego_data_")
            self._made.append(file)
            file_arrays.write(file, array)
        return file

    @property
    def descriptors(self) -> list[int]:
        """The open files, for a child process to inherit under the same numbers."""
        return [file.fileno() for file in tf.nest.flatten(self._files)]

    def open(self) -> OpenData:
        """Returns the rows of all splits, as operations of the graph being built.

        They are views of the files, in the process that runs the graph. Running these operations
        maps the files. A loop should open them once, outside.
        """
        if tf.executing_eagerly():
            # TensorFlow would keep the mapping for good, and return it for the next file that gets
            # the same number.
            raise RuntimeError("`open` must be called inside a tf.function.")
        return tf.nest.map_structure(
            lambda array, file: tensor_of_file(file, array.dtype, array.shape),
            self._arrays,
            self._files,
        )

    def specs(self) -> OpenData:
        """Returns the specs of the result of `open`, a nest of `tf.TensorSpec`."""
        return tf.nest.map_structure(lambda a: tf.TensorSpec(a.shape, a.dtype), self._arrays)

    def close(self) -> None:
        """Closes the files that this object made. Existing mappings stay valid."""
        for file in self._made:
            file.close()
