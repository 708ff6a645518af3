"""Labelled examples before they are dealt out to clients: those of TFDS, or a user's own."""

import contextlib
import dataclasses
import io
import os
import pathlib
import shutil
import tempfile
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from tf_pflego.data import digits  # noqa: F401  registers the builder `digits` with TFDS

NAMES = ("digits", "mnist", "fashion_mnist", "emnist/byclass", "cifar10", "cifar100", "omniglot")
_OMNIGLOT_SIDE = 28


class DatasetError(ValueError):
    """A dataset is not there, cannot be had, or cannot be read."""


@dataclasses.dataclass(frozen=True)
class Examples:
    """Labelled examples: images, rows of a table, token sequences.

    Attributes:
      examples: [N, ...], of any shape; the datasets of `NAMES` have [N, height, width, channels]
        uint8. `ClientData` says which dtypes there are and how they are read.
      labels: [N] integers, global classes.
      groups: [N] ids or None; where the dataset itself says who holds what (Omniglot's alphabets).
    """

    examples: np.ndarray
    labels: np.ndarray
    groups: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A dataset before partition.

    Attributes:
      name: One of `NAMES`, or a user's own.
      train: Training examples; all examples where `test` is None.
      test: Test examples, or None if the partition is to split `train`.
      num_classes: C, number of global classes.
    """

    name: str
    train: Examples
    test: Examples | None
    num_classes: int


def load(
    name: str,
    data_dir: str | None = None,
    download: bool = False,
    omniglot_splits: Sequence[str] = ("train", "test"),
) -> Dataset:
    """Loads a dataset with TFDS.

    Args:
      name: One of `NAMES`.
      data_dir: TFDS data directory; None for TFDS' own default.
      download: Whether a dataset that is not there may be downloaded. `digits` needs no download.
      omniglot_splits: The splits of Omniglot to merge; an alphabet that an earlier one holds is
        not taken again.

    Raises:
      DatasetError: Unknown name or split, not there and not to be downloaded, or a download that
        failed; a failed download leaves nothing behind.
    """
    if name not in NAMES:
        raise DatasetError(f"`dataset` must be one of {', '.join(NAMES)}; got {name!r}.")
    builder = _prepared_builder(name, data_dir, download or name == "digits")
    if name == "omniglot":
        return _load_omniglot(builder, omniglot_splits)
    train, test = (_read(builder, split) for split in ("train", "test"))
    return Dataset(
        name,
        Examples(train["image"], train["label"].astype(np.int32)),
        Examples(test["image"], test["label"].astype(np.int32)),
        builder.info.features["label"].num_classes,
    )


def merged(dataset: Dataset) -> Dataset:
    """Returns the dataset with training and test examples as one, for a partition to split."""
    if dataset.test is None:
        return dataset
    parts = [dataset.train, dataset.test]
    examples = np.concatenate([part.examples for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    groups = None
    if dataset.train.groups is not None and dataset.test.groups is not None:
        groups = np.concatenate([part.groups for part in parts])
    return dataclasses.replace(dataset, train=Examples(examples, labels, groups), test=None)


def _prepared_builder(name, data_dir, may_prepare):
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        raise DatasetError(f"TFDS does not know {name!r}: {error}") from error
    if os.path.isdir(builder.data_dir):
        return builder
    root = pathlib.Path(data_dir or tfds.core.constants.DATA_DIR).expanduser()
    if not may_prepare:
        raise DatasetError(
            f"`dataset` {name} is not in {root}. Point --data_dir to a TFDS directory that has it, "
            "or let it be fetched with --download."
        )
    try:
        return _prepare(builder, name, root)
    except Exception as error:
        # TFDS, requests and the file system each have their own; the user needs one line.
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise DatasetError(
            f"`dataset` {name} could not be prepared in {root} ({reason}). Check the network and "
            "that the directory can be written, or point --data_dir to a TFDS directory that has "
            "it."
        ) from error


def _prepare(builder, name, root):
    """Prepares a dataset in a directory beside its place and moves it there when it is whole."""
    made = not root.exists()
    root.mkdir(parents=True, exist_ok=True)
    final = pathlib.Path(builder.data_dir)
    staging = tempfile.mkdtemp(prefix=".tf_pflego_", dir=root)
    try:
        staged = tfds.builder(name, data_dir=staging)
        with _quiet() if name == "digits" else contextlib.nullcontext():
            staged.download_and_prepare(download_dir=os.path.join(staging, "downloads"))
        final.parent.mkdir(parents=True, exist_ok=True)
        # Another process may have been faster, with the same files.
        with contextlib.suppress(OSError) if final.exists() else contextlib.nullcontext():
            os.rename(staged.data_dir, final)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if made:
            with contextlib.suppress(OSError):
                root.rmdir()  # Only if it is still empty.
    return tfds.builder(name, data_dir=str(root))


@contextlib.contextmanager
def _quiet():
    """Keeps TFDS' progress bars, of a second's work, off the terminal."""
    tfds.disable_progress_bar()
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def _read(builder, split):
    if split not in builder.info.splits:
        raise DatasetError(
            f"`dataset` {builder.info.name} has no split {split!r} in {builder.data_dir}; it has "
            f"{', '.join(builder.info.splits)}."
        )
    try:
        return tfds.as_numpy(builder.as_dataset(split=split, batch_size=-1))
    except (OSError, tf.errors.OpError) as error:
        raise DatasetError(
            f"`dataset` {builder.info.name}, split {split}, could not be read from "
            f"{builder.data_dir} ({str(error).splitlines()[0][:200]}). Remove that directory and "
            "prepare it again."
        ) from error


def _load_omniglot(builder, splits):
    """Loads 28x28 images with ink high, each in its four rotations. Source: PFLEGO, section 4.2."""
    images, labels, alphabets = [], [], []
    seen: set[int] = set()
    if not splits or len(set(splits)) != len(splits):
        raise DatasetError(
            f"`omniglot_splits` must name different splits; got {','.join(splits)!r}."
        )
    for split in splits:
        if split not in builder.info.splits:
            raise DatasetError(
                f"`omniglot_splits` must be among {', '.join(builder.info.splits)}; got "
                f"{split!r}. There is no other in {builder.data_dir}."
            )
        here = set()
        for example in tfds.as_numpy(builder.as_dataset(split=split)):
            alphabet = int(example["alphabet"])
            if alphabet not in seen:
                here.add(alphabet)
                images.append(example["image"][..., :1])
                labels.append(example["label"])
                alphabets.append(alphabet)
        seen |= here
    large = np.stack(images).astype(np.float32)
    small = tf.image.resize(large, [_OMNIGLOT_SIDE] * 2, method="area").numpy()
    small = np.rint(255 - small).astype(np.uint8)
    return Dataset(
        "omniglot",
        Examples(
            np.concatenate([np.rot90(small, turns, axes=(1, 2)) for turns in range(4)]),
            np.tile(np.asarray(labels, np.int32), 4),
            np.tile(np.asarray(alphabets, np.int32), 4),
        ),
        None,
        builder.info.features["label"].num_classes,
    )
