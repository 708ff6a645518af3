"""Labelled examples from TFDS or a user, before a partition assigns them to clients."""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tf_pflego.core.tasks import CLASSIFICATION
from tf_pflego.data.datasets import omniglot, prepared
from tf_pflego.data.datasets.prepared import DatasetError
from tf_pflego.system import file_arrays, forked, texts, values

if TYPE_CHECKING:
    from tf_pflego.data.tables.preprocessing import Preprocessing  # It takes pyarrow.


class Known(NamedTuple):
    """A dataset that `load` knows, with the defaults of a run on it."""

    network: str = "mlp"  # one of `models.networks.NETWORKS`
    partition: str = "round_robin"  # one of `partition.NAMES`
    num_clients: int = 100  # I; the partition `groups` has its own
    # Whether its TFDS builder is ours, in the module of this folder that has the dataset's name.
    own_builder: bool = False


KNOWN = {
    "digits": Known(own_builder=True),
    "mnist": Known(),
    "fashion_mnist": Known(),
    "emnist/byclass": Known(),
    "cifar10": Known("cifar_cnn"),
    "cifar100": Known("cifar_cnn"),
    "omniglot": Known("omniglot_cnn", "groups"),
    "organamnist": Known("cnn_fedavg", own_builder=True),
    "office_home": Known("cnn_fedavg", "dirichlet", 20, True),
}
NAMES = tuple(KNOWN)
OF_TABLES = Known(partition="groups", num_clients=0)  # A column says whose row it is.


@dataclasses.dataclass(frozen=True)
class Examples:
    """Labelled examples: images, rows of a table, token sequences.

    Attributes:
      examples: [N, ...], of any shape. The datasets of `NAMES` have [N, height, width, channels]
        uint8. `ClientData` lists the dtypes and their conversions.
      labels: [N] integers, global classes, or in the form of the `Dataset`'s task.
      groups: [N] ids, if the dataset has groups (Omniglot's alphabets, Office-Home's domains), else
        None.

    Example, explained in docs/data.md#partitions:
      >>> pfl.Examples(x[0], y[0])
      Examples(20 examples, float64 [4])
    """

    examples: np.ndarray
    labels: np.ndarray
    groups: np.ndarray | None = None

    def __repr__(self) -> str:
        shape = texts.array(np.shape(self.examples)[1:], np.asarray(self.examples).dtype)
        groups = "" if self.groups is None else f", {len(np.unique(self.groups))} groups"
        return f"Examples({len(self.labels)} examples, {shape}{groups})"


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A dataset before partition.

    Attributes:
      name: One of `NAMES`, or a user's own.
      train: Training examples, or all examples if `test` is None.
      test: Test examples, or None if the partition splits `train`.
      num_classes: C, number of global classes.
      class_names: Their C names, in the order of the labels, or None if they have only numbers.
      task: The task (see `ClientData`). Without classes, C is the number of outputs.
      preprocessing: The preprocessing of a table's columns, or None without a table.

    Example, explained in docs/data.md#partitions:
      >>> train, test = pfl.Examples(x[0], y[0]), pfl.Examples(x[1], y[1])
      >>> pfl.Dataset("own", train, test, num_classes=2)
      Dataset(own, 20 training and 20 test examples, float64 [4], 2 classes)
    """

    name: str
    train: Examples
    test: Examples | None
    num_classes: int
    class_names: tuple[str, ...] | None = None
    task: str = CLASSIFICATION
    preprocessing: Preprocessing | None = None

    def __repr__(self) -> str:
        counts = f"{len(self.train.labels)}"
        if self.test is not None:
            counts += f" training and {len(self.test.labels)} test"
        array = np.asarray(self.train.examples)
        shape = texts.array(array.shape[1:], array.dtype)
        outputs = "classes" if self.task == CLASSIFICATION else f"outputs for {self.task}"
        return f"Dataset({self.name}, {counts} examples, {shape}, {self.num_classes} {outputs})"


def load(
    name: str,
    data_dir: str | os.PathLike | None = None,
    download: bool = False,
    omniglot_splits: Sequence[str] = ("train", "test"),
) -> Dataset:
    """Loads a dataset with TFDS.

    The examples are in memory-mapped files, read-only. Only `omniglot` is in memory, since its
    images are made smaller.

    The splits `train` and `test` become the training and test examples, except for

    - `omniglot`: training examples are the requested splits, groups the alphabets, `test` None;
    - `organamnist`: training examples are the splits `train` and `validation`;
    - `office_home`: training examples are all there are, groups the domains, numbered 0 to 3 (Art,
      Clipart, Product, Real World), `test` None.

    Args:
      name: One of `NAMES`.
      data_dir: TFDS data directory, or None for TFDS' own default.
      download: Whether a dataset that is not there may be downloaded. `digits` needs no download,
        nor do `organamnist` and `office_home`, which are made from the files that their authors
        publish: `organamnist.npz` and the folder `office_home` in `<data_dir>/downloads/manual`.
      omniglot_splits: The splits of Omniglot to merge. An alphabet of an earlier split is not
        repeated.

    Raises:
      DatasetError: The name or split is unknown, the dataset is absent and must not be downloaded,
        a published file is missing or damaged, or a download failed, which leaves no files.
      RuntimeError: This process was forked from one that had used TensorFlow.
      ValueError: `data_dir` is no path of this machine, or `download` no truth value.

    Example, explained in docs/data.md#datasets:
      >>> pfl.load_dataset("digits", data_dir="data")
      Dataset(digits, 1438 training and 359 test examples, uint8 [8, 8, 1], 10 classes)
    """
    if name not in NAMES:
        raise DatasetError(
            f"`dataset` must be one of {', '.join(NAMES)}; got {name!r}. Correct `dataset`."
        )
    forked.refuse("a dataset must be loaded")
    data_dir = None if data_dir is None else values.path("data_dir", data_dir)
    download = values.truth("download", download)
    is_ours = KNOWN[name].own_builder
    if is_ours:  # The import makes the builder known to TFDS.
        importlib.import_module(f"tf_pflego.data.datasets.{name}")
    builder = prepared.builder(name, data_dir, download, is_ours)
    test = None
    if name == "omniglot":
        train = Examples(*omniglot.read(builder, omniglot_splits))
    elif name == "office_home":
        train = _examples(builder, "train", groups="domain")
    else:
        train = _examples(builder, "train+validation" if name == "organamnist" else "train")
        test = _examples(builder, "test")
    label = builder.info.features["label"]
    return Dataset(name, train, test, label.num_classes, tuple(label.names))


def merge_splits(dataset: Dataset) -> Dataset:
    """Returns the dataset with training and test examples as one, for a partition to split.

    Example, explained in docs/data.md#partitions:
      >>> pfl.merge_splits(dataset)
      Dataset(own, 40 examples, float64 [4], 2 classes)
    """
    values.instance("dataset", dataset, Dataset, "Make one, or use `load`.")
    if dataset.test is None:
        return dataset
    parts = [dataset.train, dataset.test]
    examples = file_arrays.concatenated([part.examples for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    groups = None
    if dataset.train.groups is not None and dataset.test.groups is not None:
        groups = np.concatenate([part.groups for part in parts])
    return dataclasses.replace(dataset, train=Examples(examples, labels, groups), test=None)


def _examples(builder, split, groups=None):
    names = ["image", "label"] if groups is None else ["image", "label", groups]
    examples, *others = prepared.read(builder, split, names)
    return Examples(examples, *(other.astype(np.int32).view(np.ndarray) for other in others))
