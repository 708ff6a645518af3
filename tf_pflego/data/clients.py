"""The clients' data: arrays in client order, with offsets by client id."""

import dataclasses
import functools

import numpy as np
import tensorflow as tf

from tf_pflego.data import partition as partition_lib
from tf_pflego.data.datasets import Dataset

LABEL_SPACES = ("local", "global")


@dataclasses.dataclass(frozen=True)
class ClientSplit:
    """The training or the test examples of all clients, those of client 0 first.

    Attributes:
      examples: [N, ...] uint8 or float32; uint8 stands for images, read as floats in [0, 1].
      labels: [N] int32.
      offsets: [I + 1] int64; client i has the examples from offsets[i] to offsets[i + 1].
    """

    examples: np.ndarray
    labels: np.ndarray
    offsets: np.ndarray

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        """[I] int64, the number of examples of each client."""
        return np.diff(self.offsets)

    def of(self, client_id: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns views of (examples, labels) of one client, as they are stored."""
        rows = slice(self.offsets[client_id], self.offsets[client_id + 1])
        return self.examples[rows], self.labels[rows]


@dataclasses.dataclass(frozen=True)
class ClientData:
    """The data of a federation.

    Attributes:
      train: Training examples.
      test: Test examples.
      num_classes: [I] int32, K_i, the classes of each client.
      label_space: local (labels 0 .. K_i - 1, a client's own classes in ascending order) or global.
      partition: Which examples of the dataset these are; None if the data came some other way.
      dataset: Name of the dataset.
    """

    train: ClientSplit
    test: ClientSplit
    num_classes: np.ndarray
    label_space: str = "local"
    partition: partition_lib.Partition | None = None
    dataset: str = "custom"

    def __post_init__(self):
        for name, split in (("train", self.train), ("test", self.test)):
            if len(split.offsets) != self.num_clients + 1 or split.offsets[0] or split.offsets[-1] != len(split.labels):
                raise ValueError(f"`{name}.offsets` must go from 0 to {len(split.labels)} in {self.num_clients + 1} numbers.")
            if len(split.examples) != len(split.labels):
                raise ValueError(f"`{name}` has {len(split.examples)} examples but {len(split.labels)} labels.")
            if split.examples.dtype not in (np.uint8, np.float32):
                raise ValueError(f"`{name}.examples` must be uint8 or float32; got {split.examples.dtype}.")
            if np.any(split.sizes < 1):
                raise ValueError(f"client {np.argmin(split.sizes)} has no {name} examples; leave it out.")

    @property
    def num_clients(self) -> int:
        """I."""
        return len(self.num_classes)

    @property
    def example_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return self.train.examples.shape[1:]

    @functools.cached_property
    def client_weights(self) -> np.ndarray:
        """[I] float32, alpha_i = N_i / sum_j N_j over all clients."""
        return (self.train.sizes / self.train.offsets[-1]).astype(np.float32)


def federate(dataset: Dataset, partition: partition_lib.Partition, label_space: str = "local") -> ClientData:
    """Deals a dataset out to clients.

    Args:
      dataset: The examples.
      partition: Who holds which of them.
      label_space: local or global.
    """
    if label_space not in LABEL_SPACES:
        raise ValueError(f"`label_space` must be one of {', '.join(LABEL_SPACES)}; got {label_space!r}.")
    sources = (dataset.train, dataset.train if dataset.test is None else dataset.test)
    splits = []
    for source, indices in zip(sources, (partition.train_indices, partition.test_indices), strict=True):
        labels = source.labels[np.concatenate(indices)]
        offsets = partition_lib.starts([len(part) for part in indices])
        if label_space == "local":
            labels = np.concatenate(
                [
                    np.searchsorted(classes, labels[a:b])
                    for classes, a, b in zip(partition.classes, offsets[:-1], offsets[1:], strict=True)
                ]
            )
        splits.append(ClientSplit(source.examples[np.concatenate(indices)], labels.astype(np.int32), offsets))
    own = [len(classes) for classes in partition.classes]
    num_classes = own if label_space == "local" else [dataset.num_classes] * partition.num_clients
    return ClientData(*splits, np.asarray(num_classes, np.int32), label_space, partition, dataset.name)


def as_floats(examples: tf.Tensor) -> tf.Tensor:
    """Returns examples as float32; the one place where stored images become numbers in [0, 1]."""
    if examples.dtype == tf.uint8:
        # x / 255 in one pass over the memory.
        return tf.raw_ops.Dequantize(input=tf.bitcast(examples, tf.quint8), min_range=0.0, max_range=1.0, mode="MIN_COMBINED")
    return examples
