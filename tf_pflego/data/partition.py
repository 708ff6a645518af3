"""Who holds which examples: pure functions of labels and a seed.

Source: PFLEGO, appendix A.2 (round robin) and section 4.2 (one alphabet a client).
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Sequence

import numpy as np

from tf_pflego.core import seeds

PERSONALIZATIONS = ("high", "medium", "no")


@dataclasses.dataclass(frozen=True)
class Partition:
    """The examples of every client, as indices into the arrays of the dataset.

    Attributes:
      classes: For each client its global classes, ascending: a client's local label is the position in its list.
      train_indices: For each client the indices of its training examples, ascending.
      test_indices: For each client the indices of its test examples, ascending.
    """

    classes: tuple[np.ndarray, ...]
    train_indices: tuple[np.ndarray, ...]
    test_indices: tuple[np.ndarray, ...]

    @property
    def num_clients(self) -> int:
        """I."""
        return len(self.classes)

    def save(self, path: str | pathlib.Path) -> None:
        """Writes an .npz file: each of the three lists as `<name>`, end to end, and `<name>_offsets` [I + 1]."""
        arrays = {}
        for field in dataclasses.fields(self):
            parts = getattr(self, field.name)
            arrays[field.name] = np.concatenate(parts)
            arrays[f"{field.name}_offsets"] = starts([len(part) for part in parts])
        np.savez_compressed(path, **arrays)

    @classmethod
    def load(cls, path: str | pathlib.Path) -> "Partition":
        """Reads what `save` wrote."""
        with np.load(path) as arrays:
            return cls(
                *(
                    tuple(np.split(arrays[field.name], arrays[f"{field.name}_offsets"][1:-1]))
                    for field in dataclasses.fields(cls)
                )
            )


def starts(sizes: Sequence[int]) -> np.ndarray:
    """Returns [len(sizes) + 1] int64, where parts of these sizes begin when they stand end to end, and where they end."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def classes_per_client(personalization: str, num_classes: int) -> int:
    """Returns K for a degree of personalization: high 2, medium C/2, no C. Source: PFLEGO, section 4.3."""
    if personalization not in PERSONALIZATIONS:
        raise ValueError(f"`personalization` must be one of {', '.join(PERSONALIZATIONS)}; got {personalization!r}.")
    return {"high": 2, "medium": max(1, num_classes // 2), "no": num_classes}[personalization]


def round_robin(
    train_labels: np.ndarray, test_labels: np.ndarray, num_clients: int, num_held: int, num_classes: int, seed: int
) -> Partition:
    """Gives each client K classes at random, then deals each class's shuffled examples one by one to its holders.

    Training and test examples are dealt separately, to the same holders.

    Args:
      train_labels: [N] global classes.
      test_labels: [N_test] global classes.
      num_clients: I.
      num_held: K, classes a client.
      num_classes: C.
      seed: The seed of the run.

    Raises:
      ValueError: K is not in [1, C], some class would have no holder, or some client no example.
    """
    if num_clients < 1:
        raise ValueError(f"`num_clients` must be at least 1; got {num_clients}. Raise --num_clients.")
    if not 1 <= num_held <= num_classes:
        raise ValueError(
            f"`classes_per_client` must be in [1, {num_classes}], the number of classes; got {num_held}. "
            f"{'Lower' if num_held > 1 else 'Raise'} --classes_per_client."
        )
    if num_clients * num_held < num_classes:
        raise ValueError(
            f"`num_clients` must be at least {-(-num_classes // num_held)}, so that with {num_held} classes a client each of "
            f"the {num_classes} classes is held by someone; got {num_clients}. Raise --num_clients or --classes_per_client."
        )
    holds = _draw_classes(num_clients, num_held, num_classes, seeds.generator(seed, "partition/classes"))
    parts = []
    for name, labels in (("train", train_labels), ("test", test_labels)):
        owner = _deal(np.asarray(labels), holds, seeds.generator(seed, f"partition/{name}"))
        parts.append(_by_owner(owner, num_clients))
        _refuse_empty(name, parts[-1], len(labels))
    return Partition(tuple(np.flatnonzero(row) for row in holds), *parts)


def by_group(groups: np.ndarray, labels: np.ndarray, seed: int, test_fraction: float = 0.25) -> Partition:
    """Makes each group one client and splits the examples of each of its classes into training and test.

    Args:
      groups: [N] ids; the clients are the groups in ascending order.
      labels: [N] global classes.
      seed: The seed of the run.
      test_fraction: The share of test examples in each class, rounded down.

    Raises:
      ValueError: A client would have no test example.
    """
    is_test = np.zeros(len(labels), bool)
    shuffled = seeds.generator(seed, "partition/split").permutation(len(labels))
    for label in np.unique(labels):
        of_class = shuffled[labels[shuffled] == label]
        is_test[of_class[: int(len(of_class) * test_fraction)]] = True
    ids, owner = np.unique(groups, return_inverse=True)
    train = _by_owner(np.where(is_test, -1, owner), len(ids))
    test = _by_owner(np.where(is_test, owner, -1), len(ids))
    _refuse_empty("train", train, len(labels))
    _refuse_empty("test", test, len(labels))
    return Partition(tuple(np.unique(labels[owner == k]) for k in range(len(ids))), train, test)


def _draw_classes(num_clients, num_held, num_classes, rng):
    """Returns [I, C] bool with K True a row, drawn uniformly, and mended so that no column is empty."""
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


def _by_owner(owner, num_clients):
    """Returns for each client the ascending indices of what it owns; -1 is nobody."""
    order = np.argsort(owner, kind="stable")
    first = np.searchsorted(owner[order], np.arange(num_clients + 1))
    return tuple(order[a:b] for a, b in itertools.pairwise(first))


def _refuse_empty(name, parts, num_examples):
    empty = [client for client, part in enumerate(parts) if not len(part)]
    if empty:
        raise ValueError(
            f"every client must have {name} examples; {len(empty)} of {len(parts)} would have none of the {num_examples} (the "
            f"first is client {empty[0]}). Lower --num_clients."
        )
