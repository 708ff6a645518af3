"""A partition has, for each client, lists of indices into the arrays of a dataset."""

import dataclasses
import itertools
import operator
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tf_pflego.data import checks
from tf_pflego.data.partitions.validation import held_out
from tf_pflego.system import limited_files, texts, values

# The values of a run's `partition` and `personalization`.
NAMES = ("round_robin", "dirichlet", "groups")
PERSONALIZATIONS = ("high", "medium", "no")
# The lists that every client has; a partition may have more.
_LISTS = ("classes", "train_indices", "test_indices")
_MORE_LISTS = ("validation_indices", "renamings")


@dataclasses.dataclass(frozen=True)
class Partition:
    """The examples of every client, as indices into the arrays of the dataset.

    Attributes:
      classes: For each client its global classes, ascending: the local label of a class is its
        position among them. A client that renames classes has the new names here.
      train_indices: For each client the indices of its training examples, ascending.
      test_indices: For each client the indices of its test examples, ascending.
      renamings: For each client [C] its names of the dataset's classes, a permutation of 0 .. C -
        1, or None for the dataset's names. None if all clients use these.
      shifts: For each client the change of its images, one of `disagreement.SHIFTS`, or "" for
        none. None if no images are changed.
      validation_indices: For each client the indices, among the training arrays, of its validation
        examples, ascending, or None.

    Example, explained in docs/data.md#partitions:
      >>> classes, halves = ([0, 1], [0, 1]), (np.arange(10), np.arange(10, 20))
      >>> pfl.Partition(classes, train_indices=halves, test_indices=halves)
      Partition(2 clients, 20 training and 20 test examples; per client 10 and 10, of 2 classes)
    """

    classes: tuple[np.ndarray, ...]
    train_indices: tuple[np.ndarray, ...]
    test_indices: tuple[np.ndarray, ...]
    renamings: tuple[np.ndarray | None, ...] | None = None
    shifts: tuple[str, ...] | None = None
    validation_indices: tuple[np.ndarray, ...] | None = None

    def __repr__(self) -> str:
        sizes = {split: list(map(len, indices)) for split, indices in self.indices.items()}
        sizes = {"training": sizes.pop("train")} | sizes
        totals = " and ".join(f"{sum(counts)} {split}" for split, counts in sizes.items())
        return (
            f"Partition({texts.counted(self.num_clients, 'client')}, {totals} examples; per client "
            f"{' and '.join(map(texts.span, sizes.values()))}, "
            f"of {texts.span([len(classes) for classes in self.classes])} classes"
            + "".join(f"; {sum(group)} {name}" for name, group in self.client_groups.items())
            + ")"
        )

    @property
    def num_clients(self) -> int:
        """I."""
        return len(self.classes)

    @property
    def indices(self) -> dict[str, tuple[np.ndarray, ...]]:
        """The lists of indices that there are, by the names of their splits."""
        indices = {"train": self.train_indices, "test": self.test_indices}
        if self.validation_indices is not None:
            indices["validation"] = self.validation_indices
        return indices

    @property
    def client_groups(self) -> dict[str, np.ndarray]:
        """[I] bool by name: the `permuted` and `shifted` clients. No entry without such data."""
        groups = {}
        if self.renamings is not None:
            groups["permuted"] = np.array([renaming is not None for renaming in self.renamings])
        if self.shifts is not None:
            groups["shifted"] = np.array([shift != "" for shift in self.shifts])
        return groups

    def with_validation(self, labels: np.ndarray, fraction: float, seed: int) -> "Partition":
        """Returns the partition with a validation part of each client's training examples.

        `labels` [N] are the classes of the training arrays that the indices point into. For the
        other arguments and the errors see `ClientData.with_validation`.
        """
        rows, offsets = joined(self.train_indices, "train indices")
        labels = checks.integers(labels, "`labels`")
        if rows.max() >= len(labels):
            raise ValueError(
                f"`labels` must cover the training arrays, {rows.max() + 1} or more; got "
                f"{len(labels)}. Give the labels of the partition's dataset."
            )
        return self.with_rows_held_out(held_out(labels[rows], offsets, fraction, seed))

    def with_rows_held_out(self, chosen: np.ndarray) -> "Partition":
        """Returns the partition with some of all training indices, end to end, for validation."""
        if self.validation_indices is not None:
            raise ValueError(
                "the partition must not have validation examples yet; it has "
                f"{sum(map(len, self.validation_indices))}. Choose them once."
            )
        rows, offsets = joined(self.train_indices, "train indices")
        before = starts(chosen)  # How many are held out before each row.
        return dataclasses.replace(
            self,
            train_indices=parted(rows[~chosen], offsets - before[offsets]),
            validation_indices=parted(rows[chosen], before[offsets]),
        )

    def save(self, file: Any, class_counts: np.ndarray | None = None, **about: np.ndarray) -> None:
        """Writes .npz: each list end to end as `<name>`, and `<name>_offsets` [I + 1].

        `shifts` is an array [I] of text. Lists that are None are not written. A client without a
        renaming has an empty list.

        Args:
          file: A path, or a binary file that is open for writing.
          class_counts: `ClientData.class_counts`, written under that name for readers without the
            dataset and its labels.
          **about: Arrays that are written in addition to the lists. `load` ignores them.
        """
        if not hasattr(file, "write"):
            file = values.path("file", file, may_be_empty=False)
        if class_counts is not None:
            about["class_counts"] = class_counts
        arrays: dict[str, Any] = dict(about)
        none = np.zeros(0, np.int64)
        for name in (*_LISTS, *_MORE_LISTS):
            if (parts := getattr(self, name)) is not None:
                parts = [none if part is None else part for part in parts]
                arrays[name], arrays[f"{name}_offsets"] = joined(parts, name)
        if self.shifts is not None:
            arrays["shifts"] = np.array(self.shifts, str)
        for name, array in about.items():
            try:
                is_array = name.isidentifier() and np.asarray(array).dtype.kind in "biufU"
            except Exception:  # An object of others may raise anything.
                is_array = False
            if not is_array:
                raise ValueError(
                    f"`{name}` must be an array of numbers or text, under the name of an argument; "
                    f"got {values.shown(array)}. Leave it out, or make it one."
                )
        np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: str | pathlib.Path) -> "Partition":
        """Reads a file that `save` wrote.

        Raises:
          ValueError: It is not such a file, or a damaged one.
          OSError: It cannot be read.
        """
        path = values.path("path", path)
        try:
            arrays = limited_files.arrays(path)
            if max(len(arrays[f"{name}_offsets"]) for name in _LISTS) > os.path.getsize(path):
                raise ValueError("it has more clients than bytes")
            fields: dict[str, Any] = {
                name: parted(arrays[name], arrays[f"{name}_offsets"])
                for name in (*_LISTS, *_MORE_LISTS)
                if name in _LISTS or name in arrays
            }
            if "shifts" in arrays:
                fields["shifts"] = tuple(arrays["shifts"].tolist())
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(
                f"{path} must be a whole file that `Partition.save` wrote; it cannot be read as "
                f"one ({error}). Save the partition again, to another file."
            ) from error
        if "renamings" in fields:
            fields["renamings"] = tuple(one if len(one) else None for one in fields["renamings"])
        return cls(**fields)


def starts(sizes: Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns [len(sizes) + 1] int64, the bounds of parts of these sizes, end to end."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def joined(
    parts: Sequence[Any], what: str, check: Callable[[Any, str], np.ndarray] = checks.integers
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the parts of all clients end to end, [n] int64, and their offsets, [I + 1] int64.

    Parts that `check` refuses are refused, such as floats or arrays of another rank.
    """
    arrays = checks.arrays(parts, what)
    if not arrays:
        raise ValueError(f"there must be at least one client; got no {what}. Add clients.")
    if not set(map(operator.attrgetter("ndim", "dtype.kind"), arrays)) <= {(1, "i"), (1, "u")}:
        for client, array in enumerate(arrays):
            check(array, f"client {client}'s {what}")
    offsets = starts(np.fromiter(map(len, arrays), np.int64, len(arrays)))
    return np.concatenate(arrays, dtype=np.int64, casting="unsafe"), offsets


def parted(values: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, ...]:
    """Returns a view of each client's part; the inverse of `joined`."""
    return tuple(values[a:b] for a, b in itertools.pairwise(offsets))


def by_owner(owner: np.ndarray, num_clients: int) -> tuple[np.ndarray, ...]:
    """Returns the ascending indices of each client's items, by their owners; -1 is no client."""
    order = np.argsort(owner, kind="stable")
    return parted(order, np.searchsorted(owner[order], np.arange(num_clients + 1)))


def classes_of_owners(
    owner: np.ndarray, labels: np.ndarray, num_clients: int
) -> tuple[np.ndarray, ...]:
    """Returns for each client the classes of its examples, ascending, by the owner [N] of each."""
    span = int(labels.max()) + 1
    pairs = np.unique(owner.astype(np.int64) * span + labels)
    return parted(pairs % span, np.searchsorted(pairs, np.arange(num_clients + 1) * span))


def of_one_source(
    owner: np.ndarray, is_test: np.ndarray, labels: np.ndarray, num_clients: int
) -> Partition:
    """Returns the partition of examples with a test set, given as [N] bool."""
    return Partition(
        classes_of_owners(owner, labels, num_clients),
        by_owner(np.where(is_test, -1, owner), num_clients),
        by_owner(np.where(is_test, owner, -1), num_clients),
    )


def refuse_clients_without(
    split: str, indices: Sequence[np.ndarray], num_examples: int, remedy: str
) -> None:
    """Raises ValueError if a random partition left clients without examples."""
    empty = [client for client, rows in enumerate(indices) if not len(rows)]
    if empty:
        raise ValueError(
            f"every client must have {split} examples; {len(empty)} of {len(indices)} would have "
            f"none of the {num_examples} (the first is client {empty[0]}). {remedy}"
        )
