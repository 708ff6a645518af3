"""A nest of tensors as one vector of bytes, and back: TFF charges by the tensor for what clients bring and leave."""

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Structure, specs_of


class Packing:
    """Packs nests of one fixed structure.

    Args:
      structure: The nest, of arrays, tensors or tensor specs with known shapes.

    Attributes:
      num_bytes: Length of the packed vector.
    """

    def __init__(self, structure: Structure):
        self._structure = specs_of(structure)
        self._specs = tf.nest.flatten(self._structure)
        sizes = [spec.shape.num_elements() * spec.dtype.size for spec in self._specs]
        self._ends = np.cumsum(sizes, dtype=np.int64).tolist()
        self._starts = [end - size for end, size in zip(self._ends, sizes, strict=True)]
        self.num_bytes = sum(sizes)

    def pack_all(self, structure: Structure, count: int) -> np.ndarray:
        """Returns [count, num_bytes] uint8 for a nest of arrays, each leaf [count, ...]."""
        packed = np.empty((count, self.num_bytes), np.uint8)
        for leaf, start, end in zip(tf.nest.flatten(structure), self._starts, self._ends, strict=True):
            packed[:, start:end] = np.ascontiguousarray(leaf).reshape(count, -1).view(np.uint8)
        return packed

    def unpack_all(self, packed: np.ndarray) -> Structure:
        """Returns the nest of arrays, each leaf [count, ...], for [count, num_bytes] uint8."""
        leaves = [
            np.ascontiguousarray(packed[:, start:end]).view(spec.dtype.as_numpy_dtype).reshape(len(packed), *spec.shape)
            for spec, start, end in zip(self._specs, self._starts, self._ends, strict=True)
        ]
        return tf.nest.pack_sequence_as(self._structure, leaves)

    def pack(self, structure: Structure) -> tf.Tensor:
        """Returns [num_bytes] uint8 for a nest of tensors, as operations of the graph being built."""
        leaves = [
            tf.reshape(tf.bitcast(tf.cast(leaf, tf.uint8) if leaf.dtype == tf.bool else leaf, tf.uint8), [-1])
            for leaf in tf.nest.flatten(structure)
        ]
        return tf.concat([tf.zeros([0], tf.uint8), *leaves], axis=0)

    def unpack(self, packed: tf.Tensor) -> Structure:
        """Returns the nest of tensors for [num_bytes] uint8, as operations of the graph being built."""
        leaves = []
        for spec, start, end in zip(self._specs, self._starts, self._ends, strict=True):
            stored = tf.uint8 if spec.dtype == tf.bool else spec.dtype
            elements = packed[start:end] if stored.size == 1 else tf.reshape(packed[start:end], [-1, stored.size])
            leaves.append(tf.cast(tf.reshape(tf.bitcast(elements, stored), spec.shape), spec.dtype))
        return tf.nest.pack_sequence_as(self._structure, leaves)
