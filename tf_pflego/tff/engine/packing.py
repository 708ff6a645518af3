"""Packs a nest of tensors into one vector of bytes and back: each tensor costs TFF extra time."""

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import specs_of
from tf_pflego.core.nests import Structure


class Packing:
    """Packs nests of one structure, of arrays, tensors or tensor specs with known shapes."""

    def __init__(self, structure: Structure):
        self._structure = specs_of(structure)
        self._specs = tf.nest.flatten(self._structure)
        sizes = [spec.shape.num_elements() * spec.dtype.size for spec in self._specs]
        self._ends = np.cumsum(sizes, dtype=np.int64).tolist()
        self._starts = [end - size for end, size in zip(self._ends, sizes, strict=True)]
        self.num_bytes = sum(sizes)  # the length of the packed vector

    def pack_all(self, structure: Structure, count: int) -> np.ndarray:
        """Returns [count, num_bytes] uint8 for a nest of arrays, each leaf [count, ...]."""
        packed = np.empty((count, self.num_bytes), np.uint8)
        self.pack_into(packed, structure)
        return packed

    def pack_into(self, packed: np.ndarray, structure: Structure) -> None:
        """Writes a nest of arrays, each leaf [count, ...], into [count, num_bytes] uint8."""
        leaves = tf.nest.flatten(structure)
        for leaf, start, end in zip(leaves, self._starts, self._ends, strict=True):
            rows = np.ascontiguousarray(leaf).reshape(len(packed), -1)
            packed[:, start:end] = rows.view(np.uint8)

    def unpack_all(self, packed: np.ndarray) -> Structure:
        """Returns the nest of arrays, each leaf [count, ...], for [count, num_bytes] uint8."""
        leaves = [
            np.ascontiguousarray(packed[:, start:end])
            .view(spec.dtype.as_numpy_dtype)
            .reshape(len(packed), *spec.shape)
            for spec, start, end in zip(self._specs, self._starts, self._ends, strict=True)
        ]
        return tf.nest.pack_sequence_as(self._structure, leaves)

    def pack(self, structure: Structure) -> tf.Tensor:
        """Returns [num_bytes] uint8 for a nest of tensors, as operations of a graph."""
        leaves = [tf.zeros([0], tf.uint8)]
        for leaf in tf.nest.flatten(structure):
            stored = tf.cast(leaf, tf.uint8) if leaf.dtype == tf.bool else leaf
            leaves.append(tf.reshape(tf.bitcast(stored, tf.uint8), [-1]))
        return tf.concat(leaves, axis=0)

    def unpack(self, packed: tf.Tensor) -> Structure:
        """Returns the nest of tensors for [num_bytes] uint8, as operations of a graph."""
        leaves = []
        for spec, start, end in zip(self._specs, self._starts, self._ends, strict=True):
            stored = tf.uint8 if spec.dtype == tf.bool else spec.dtype
            elements = packed[start:end]
            if stored.size > 1:
                elements = tf.reshape(elements, [-1, stored.size])
            leaf = tf.reshape(tf.bitcast(elements, stored), spec.shape)
            leaves.append(tf.cast(leaf, spec.dtype))
        return tf.nest.pack_sequence_as(self._structure, leaves)
