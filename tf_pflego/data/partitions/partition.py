"""Who holds which examples: pure functions of labels and a seed.

Source: PFLEGO, appendix A.2 (round robin) and section 4.2 (one alphabet per client).
"""

import dataclasses
import itertools
import operator
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tf_pflego.core import seeds
from tf_pflego.data import checks
from tf_pflego.data.partitions.validation import held_out
from tf_pflego.system import limited_files, texts, values

PERSONALIZATIONS = ("high", "medium", "no")
NAMES = ("round_robin", "dirichlet", "groups")
# What every partition has for each client.
_LISTS = ("classes", "train_indices", "test_indices")


@dataclasses.dataclass(frozen=True)
class Partition:
    """The examples of every client, as indices into the arrays of the dataset.

    Attributes:
      classes: For each client its global classes, ascending: the local label of a class is its
        position among them. A client that renames classes has the new names here.
      train_indices: For each client the indices of its training examples, ascending.
      test_indices: For each client the indices of its test examples, ascending.
      renamings: For each client [C] what it calls each class of the dataset, a permutation of
        0 .. C - 1, or None if it calls them as the dataset does; None if all do.
      shifts: For each client how its images are changed, one of `disagreement.SHIFTS`, or "" if
        they are not; None if nobody's are.
      validation_indices: For each client the indices, among the training arrays, of its examples
        that are not trained on but held out, ascending; None if none are.
    """

    classes: tuple[np.ndarray, ...]
    train_indices: tuple[np.ndarray, ...]
    test_indices: tuple[np.ndarray, ...]
    renamings: tuple[np.ndarray | None, ...] | None = None
    shifts: tuple[str, ...] | None = None
    validation_indices: tuple[np.ndarray, ...] | None = None

    def __repr__(self) -> str:
        parts = {"training": self.train_indices, "test": self.test_indices}
        if self.validation_indices is not None:
            parts["validation"] = self.validation_indices
        sizes = {name: list(map(len, own)) for name, own in parts.items()}
        totals = " and ".join(f"{sum(own)} {name}" for name, own in sizes.items())
        return (
            f"Partition({texts.counted(self.num_clients, 'client')}, {totals} examples; per client "
            f"{' and '.join(map(texts.span, sizes.values()))}, "
            f"of {texts.span([len(own) for own in self.classes])} classes"
            + "".join(f"; {sum(group)} {name}" for name, group in self.client_groups.items())
            + ")"
        )

    @property
    def num_clients(self) -> int:
        """I."""
        return len(self.classes)

    @property
    def client_groups(self) -> dict[str, np.ndarray]:
        """[I] bool by name: which clients are `permuted`, `shifted`; no entry if none can be."""
        groups = {}
        if self.renamings is not None:
            groups["permuted"] = np.array([own is not None for own in self.renamings])
        if self.shifts is not None:
            groups["shifted"] = np.array([own != "" for own in self.shifts])
        return groups

    def with_validation(self, labels: np.ndarray, fraction: float, seed: int) -> "Partition":
        """Returns the partition with a part of each client's training examples held out.

        Which ones is drawn as `data.held_out` says.

        Args:
          labels: [N] the classes of the training arrays that the indices point into.
          fraction: The share of each client's training examples, in (0, 1).
          seed: The seed of the run.

        Raises:
          ValueError: `fraction` or `seed` is out of its range, a client has a single training
            example, or validation examples are held out already.
        """
        rows, offsets = joined(self.train_indices, "train indices")
        labels = checks.integers(labels, "`labels`")
        if rows.max() >= len(labels):
            raise ValueError(
                f"`labels` must be those of the training arrays, {rows.max() + 1} or more; got "
                f"{len(labels)}. Give the labels of the dataset that was dealt out."
            )
        return self.with_rows_held_out(held_out(labels[rows], offsets, fraction, seed))

    def with_rows_held_out(self, held: np.ndarray) -> "Partition":
        """Returns the partition with these training examples held out for validation.

        Args:
          held: [n] bool, for the training indices of all clients, end to end.
        """
        if self.validation_indices is not None:
            raise ValueError(
                "the partition must not have validation examples yet; it has "
                f"{sum(map(len, self.validation_indices))}. Leave out one of the two draws."
            )
        parts = parted(held, joined(self.train_indices, "train indices")[1])
        pairs = list(zip(self.train_indices, parts, strict=True))
        return dataclasses.replace(
            self,
            train_indices=tuple(own[~of_client] for own, of_client in pairs),
            validation_indices=tuple(own[of_client] for own, of_client in pairs),
        )

    def save(self, file: Any, class_counts: np.ndarray | None = None, **about: np.ndarray) -> None:
        """Writes .npz: each list end to end as `<name>`, and `<name>_offsets` [I + 1].

        `shifts` is an array [I] of text. What is None is left out; a client without a renaming has
        an empty one.

        Args:
          file: A path, or a binary file that is open for writing.
          class_counts: What `ClientData.class_counts` gives; it is written under that name, for
            those who read the file without the dataset and its labels.
          **about: Arrays that are written beside the lists; `load` leaves them out.
        """
        if not hasattr(file, "write"):
            file = values.path("file", file, may_be_empty=False)
        arrays: dict[str, Any] = dict(about)
        if class_counts is not None:
            arrays["class_counts"] = class_counts
        lists = {name: getattr(self, name) for name in _LISTS}
        if self.validation_indices is not None:
            lists["validation_indices"] = self.validation_indices
        if self.renamings is not None:
            none = np.zeros(0, np.int64)
            lists["renamings"] = [none if own is None else own for own in self.renamings]
        for name, parts in lists.items():
            arrays[name], arrays[f"{name}_offsets"] = joined(parts, name)
        if self.shifts is not None:
            arrays["shifts"] = np.array(self.shifts, str)
        np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: str | pathlib.Path) -> "Partition":
        """Reads what `save` wrote.

        Raises:
          ValueError: It is not such a file, or a damaged one.
          OSError: It cannot be read.
        """
        path = values.path("path", path)
        try:
            arrays = limited_files.arrays(os.path.realpath(path))
            held: dict[str, Any] = {
                name: parted(arrays[name], arrays[f"{name}_offsets"])
                for name in (*_LISTS, "validation_indices", "renamings")
                if name in _LISTS or name in arrays
            }
            if "shifts" in arrays:
                held["shifts"] = tuple(arrays["shifts"].tolist())
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} must be a whole file that `Partition.save` wrote; it cannot be read as "
                f"one ({error}). Save the partition again, to another file."
            ) from error
        if "renamings" in held:
            held["renamings"] = tuple(own if len(own) else None for own in held["renamings"])
        return cls(**held)


def starts(sizes: Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns [len(sizes) + 1] int64: where parts of these sizes, end to end, begin and end."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def joined(
    parts: Sequence[Any], what: str, check: Callable[[Any, str], np.ndarray] = checks.integers
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the parts of all clients end to end, [n] int64, and their offsets, [I + 1] int64.

    Args:
      parts: For each client [n_i] integers, an array or array-like.
      what: What they are, for the message.
      check: Refuses a part that is not [n_i] integers.

    Raises:
      TypeError: A part is not of integers.
      ValueError: A part is not of rank 1, or there are no clients.
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
    """Returns the part of each client, a view: what `joined` put end to end."""
    return tuple(values[a:b] for a, b in itertools.pairwise(offsets))


def classes_per_client(personalization: str, num_classes: int) -> int:
    """Returns K, classes per client, for a degree of personalization: high 2, medium C/2, no C.

    Source: PFLEGO, section 4.3.
    """
    personalization = values.one_of("personalization", personalization, PERSONALIZATIONS)
    num_classes = values.whole("num_classes", num_classes, 1)
    return {"high": 2, "medium": max(1, num_classes // 2), "no": num_classes}[personalization]


def round_robin(
    train_labels: np.ndarray,
    test_labels: np.ndarray,
    num_clients: int,
    classes_per_client: int,
    num_classes: int,
    seed: int,
) -> Partition:
    """Gives each client K classes at random and deals the examples of each class to its holders.

    The examples are shuffled, then dealt one by one.
    Training and test examples are dealt separately, to the same holders.

    Args:
      train_labels: [N] global classes.
      test_labels: [N_test] global classes.
      num_clients: I.
      classes_per_client: K.
      num_classes: C.
      seed: The seed of the run.

    Raises:
      TypeError: The labels are no integers.
      ValueError: A label is not in [0, C), a number is not whole or the seed no seed, K is not in
        [1, C], some class would have no holder, or some client no example.
    """
    num_clients = values.whole("num_clients", num_clients, 1)
    num_classes = values.whole("num_classes", num_classes, 1)
    num_held = values.whole("classes_per_client", classes_per_client)
    seed = values.seed(seed)
    if not 1 <= num_held <= num_classes:
        raise ValueError(
            f"`classes_per_client` must be in [1, {num_classes}], the number of classes; got "
            f"{num_held}. {'Lower' if num_held > 1 else 'Raise'} `classes_per_client`."
        )
    if num_clients * num_held < num_classes:
        raise ValueError(
            f"`num_clients` must be at least {-(-num_classes // num_held)}, so that with "
            f"{num_held} classes per client each of the {num_classes} classes is held by someone; "
            f"got {num_clients}. Raise `num_clients` or `classes_per_client`."
        )
    labels_of = {
        "train": checked_labels("`train_labels`", train_labels, num_classes),
        "test": checked_labels("`test_labels`", test_labels, num_classes),
    }
    for name, labels in labels_of.items():
        if num_clients > len(labels):
            raise ValueError(
                f"`num_clients` must be at most {len(labels)}, the number of {name} examples, of "
                f"which every client needs one; got {num_clients}. Lower `num_clients`."
            )
    rng = seeds.generator(seed, "partition/classes")
    holds = _draw_classes(num_clients, num_held, num_classes, rng)
    parts = []
    for name, labels in labels_of.items():
        owner = _deal(labels, holds, seeds.generator(seed, f"partition/{name}"))
        parts.append(by_owner(owner, num_clients))
        _refuse_empty(name, parts[-1], len(labels), "Lower `num_clients`.")
    train, test = parts
    return Partition(tuple(np.flatnonzero(row) for row in holds), train, test)


def by_group(
    groups: np.ndarray, labels: np.ndarray, seed: int, test_fraction: float = 0.25
) -> Partition:
    """Makes each group one client and splits the examples of each class into training and test.

    Args:
      groups: [N] ids, integers or text; the clients are the groups in ascending order.
      labels: [N] global classes.
      seed: The seed of the run.
      test_fraction: The share of test examples in each class, in (0, 1), rounded down.

    Raises:
      TypeError: The labels are no integers.
      ValueError: There are not as many groups as labels, a label is negative, the fraction is not
        in (0, 1), or a client would have no training or no test example.
    """
    labels, seed = checked_labels("`labels`", labels), values.seed(seed)
    ids, owner = checked_groups(groups, labels)
    check_test_fraction(test_fraction)
    is_test = np.zeros(len(labels), bool)
    shuffled = seeds.generator(seed, "partition/split").permutation(len(labels))
    for label in np.unique(labels):
        of_class = shuffled[labels[shuffled] == label]
        is_test[of_class[: int(len(of_class) * test_fraction)]] = True
    train = by_owner(np.where(is_test, -1, owner), len(ids))
    test = by_owner(np.where(is_test, owner, -1), len(ids))
    _refuse_empty("train", train, len(labels), "Lower `test_fraction` or leave such groups out.")
    _refuse_empty("test", test, len(labels), "Raise `test_fraction` or leave such groups out.")
    classes = tuple(np.unique(labels[owner == k]) for k in range(len(ids)))
    return Partition(classes, train, test)


def checked_groups(groups: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of the groups, ascending, and [N] the position among them of each example's.

    Raises:
      ValueError: There are not as many groups as labels, or they are neither integers nor text.
    """
    groups = np.asarray(groups)
    if groups.shape != labels.shape or groups.dtype.kind == "f":
        raise ValueError(
            f"`groups` must be {len(labels)} ids, integers or text, one for each label; got "
            f"{groups.dtype} of shape {groups.shape}. Say of each example which group it is of."
        )
    return np.unique(groups, return_inverse=True)


def check_test_fraction(test_fraction: float) -> None:
    """Raises ValueError unless the share of test examples is in (0, 1)."""
    test_fraction = values.number("test_fraction", test_fraction)
    if not 0 < test_fraction < 1:
        raise ValueError(
            f"`test_fraction` must be in (0, 1); got {test_fraction}. Give the share of the "
            "examples to be kept for the test."
        )


def checked_labels(
    what: str, labels: np.ndarray, num_classes: int = checks.LABEL_LIMIT
) -> np.ndarray:
    """Returns labels [N], after a check that they are classes.

    Raises:
      TypeError: They are no integers.
      ValueError: One is not in [0, num_classes).
    """
    labels = checks.class_labels(labels, what)
    row = checks.first_outside(labels, num_classes)
    if row is not None:
        raise ValueError(
            f"{what} must be in [0, {num_classes}), the classes; got {labels[row]} for example "
            f"{row}. "
            + checks.label_remedy(
                labels[row], "Correct the label, or give the number of classes that there are."
            )
        )
    return labels


def _draw_classes(num_clients, num_held, num_classes, rng):
    """Returns [I, C] bool with K True per row, drawn uniformly, then mended: no column is empty."""
    holds = np.zeros((num_clients, num_classes), bool)
    drawn = np.argsort(rng.random((num_clients, num_classes)), axis=1)[:, :num_held]
    np.put_along_axis(holds, drawn, True, axis=1)
    for orphan in np.flatnonzero(~holds.any(axis=0)):
        # Some client gives up a class that others hold too, for this one.
        client, given_up = rng.permutation(np.argwhere(holds & (holds.sum(axis=0) > 1)))[0]
        holds[client, given_up], holds[client, orphan] = False, True
    return holds


def _deal(labels, holds, rng):
    """Returns [N], the client that each example is dealt to."""
    owner = np.empty(len(labels), np.int64)
    shuffled = rng.permutation(len(labels))
    for label in range(holds.shape[1]):
        of_class = shuffled[labels[shuffled] == label]
        holders = np.flatnonzero(holds[:, label])
        owner[of_class] = holders[np.arange(len(of_class)) % len(holders)]
    return owner


def by_owner(owner: np.ndarray, num_clients: int) -> tuple[np.ndarray, ...]:
    """Returns for each client the ascending indices of what it owns; -1 is nobody."""
    order = np.argsort(owner, kind="stable")
    return parted(order, np.searchsorted(owner[order], np.arange(num_clients + 1)))


def _refuse_empty(name, parts, num_examples, remedy):
    empty = [client for client, part in enumerate(parts) if not len(part)]
    if empty:
        raise ValueError(
            f"every client must have {name} examples; {len(empty)} of {len(parts)} would have none "
            f"of the {num_examples} (the first is client {empty[0]}). {remedy}"
        )
