"""Checks of the clients' data: an error names the client, the expected and the given value.

The arrays of all clients are concatenated, and each client's begin at its `offsets` [I + 1]. The
checks examine all clients at once, and search for a single client only after a failure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tf_pflego.core.tasks import CLASSIFICATION
from tf_pflego.data import checks
from tf_pflego.data import labels as labels_lib
from tf_pflego.data.client_split import ClientSplit
from tf_pflego.data.partitions.partition import joined, parted
from tf_pflego.system import values

_INT32 = np.iinfo(np.int32)


def classes_of_clients(
    classes: Sequence[np.ndarray] | None,
    label_space: str,
    num_classes: np.ndarray,
    splits: Mapping[str, ClientSplit],
) -> tuple[np.ndarray, ...]:
    """Returns the classes of each client, [K_i]: those given, or else the first."""
    if classes is None:  # One array for all clients with the same K_i.
        ranges = {count: np.arange(count) for count in np.unique(num_classes).tolist()}
        for classes_of_all in ranges.values():
            classes_of_all.setflags(write=False)
        return tuple(map(ranges.__getitem__, num_classes.tolist()))
    classes = values.listed("classes", classes)
    if len(classes) != len(num_classes):
        raise ValueError(
            f"`classes` must be {len(num_classes)} arrays, one per client; got {len(classes)}. "
            "Name the classes of every client."
        )
    flat, offsets = joined(classes, "classes")
    counts = np.diff(offsets)
    if label_space == "global":
        refuse_bad_classes(flat, offsets, num_classes)
        for name, split in splits.items():
            positions_among_classes(name, split.labels, split.offsets, flat, offsets)
    else:
        refuse_bad_classes(flat, offsets, checks.LABEL_LIMIT)
        if np.any(counts != num_classes):
            client = np.argmax(counts != num_classes)
            raise ValueError(
                f"client {client}'s classes must be num_classes={num_classes[client]}, one for "
                f"each local label; got {counts[client]}. Name them all."
            )
    return parted(flat, offsets)


def numbers_of_classes(counts: Any) -> np.ndarray:
    """Returns the number of classes of each client, [I] int32."""
    counts = checks.integers(counts, "`num_classes`")
    if not len(counts):
        raise ValueError("there must be at least one client; got none. Add clients.")
    wrong = (counts < 1) | (counts >= checks.LABEL_LIMIT)
    if wrong.any():
        client = np.argmax(wrong)
        raise ValueError(
            f"`num_classes` must be in [1, {checks.LABEL_LIMIT}) for every client; got "
            f"{counts[client]} for client {client}. Give the number of its classes."
        )
    return counts.astype(np.int32, copy=False)


def identities(numbers: Any, num_clients: int) -> np.ndarray:
    """Returns the numbers that seed the clients' random values, [I] int64."""
    if numbers is None:
        return np.arange(num_clients)
    numbers = checks.integers(numbers, "`identities`").astype(np.int64, copy=False)
    different = len(np.unique(numbers))
    if len(numbers) != num_clients or different != num_clients or numbers.min() < 0:
        raise ValueError(
            f"`identities` must be {num_clients} different numbers from 0 on, one per client; got "
            f"{different} different ones of {len(numbers)}, the least {numbers.min(initial=0)}. "
            "Leave them out, or number the clients."
        )
    return numbers


def client_groups(groups: Any, num_clients: int) -> dict[str, np.ndarray]:
    """Returns the members of each group, [I] bool by name."""
    groups = {} if groups is None else groups
    values.instance("client_groups", groups, Mapping, "Give truth values by the groups' names.")
    for name, members in groups.items():
        if np.shape(members) != (num_clients,) or np.asarray(members).dtype != bool:
            raise ValueError(
                f"`client_groups` must be {num_clients} truth values for {name!r}, one per "
                f"client; got {np.asarray(members).dtype} of shape {np.shape(members)}. State for "
                "each client whether it belongs to the group."
            )
    return {name: np.asarray(members) for name, members in groups.items()}


def pairs(
    name: str, examples: Any, labels: Any, task: str, label_space: str
) -> tuple[np.ndarray, np.ndarray]:
    """Returns examples and labels as arrays with one label per example. No example is empty."""
    examples = checks.array(examples, f"`{name}.examples`")
    labels = labels_lib.checked(task, labels, f"`{name}.labels`", label_space == "global")
    if examples.ndim < 1 or 0 in examples.shape[1:]:
        raise ValueError(
            f"`{name}.examples` must be [N, ...] with numbers in each example; got shape "
            f"{examples.shape}. Put the examples along the first axis."
        )
    if len(examples) != len(labels):
        raise ValueError(
            f"`{name}.labels` must be one for each of the {len(examples)} examples; got "
            f"{len(labels)}. Give every example its label."
        )
    return examples, labels


def stored_split(
    name: str,
    split: ClientSplit,
    num_classes: np.ndarray,
    task: str,
    label_space: str,
    may_overflow: bool = False,
) -> ClientSplit:
    """Returns the examples of all clients in the stored dtypes.

    Examples that may overflow are computed: infinite numbers and NaN among them are no error.
    """
    examples, labels = pairs(name, split.examples, split.labels, task, label_space)
    offsets = checks.integers(split.offsets, f"`{name}.offsets`").astype(np.int64, copy=False)
    num_clients = len(num_classes)
    if len(offsets) != num_clients + 1 or offsets[0] != 0 or offsets[-1] != len(labels):
        got = f"{len(offsets)} from {offsets[0]} to {offsets[-1]}" if len(offsets) else "none"
        raise ValueError(
            f"`{name}.offsets` must be {num_clients + 1} numbers from 0 to {len(labels)}, "
            f"for {num_clients} clients and {len(labels)} examples; got {got}. "
            "Take the cumulative sum of the clients' numbers of examples."
        )
    sizes = np.diff(offsets)
    if np.any(sizes < 0):
        client = np.argmax(sizes < 0)
        raise ValueError(
            f"`{name}.offsets` must not decrease; got {offsets[client + 1]} after "
            f"{offsets[client]} for client {client}. Put the clients' examples in client order."
        )
    refuse_empty(name, sizes)
    if not (may_overflow and examples.dtype == np.float32):
        examples = _storable(name, examples, offsets)
    if task != CLASSIFICATION:
        if labels.shape[1] != num_classes.max():
            raise ValueError(
                f"`{name}.labels` must have num_classes={num_classes.max()} outputs; got "
                f"{labels.shape[1]}. Give every example a label for each output."
            )
        return ClientSplit(examples, labels, offsets)
    refuse_labels_outside(name, labels, offsets, num_classes)
    return ClientSplit(examples, labels.astype(np.int32, copy=False), offsets)


def refuse_different(splits: Mapping[str, ClientSplit]) -> None:
    """Raises ValueError unless the examples of all splits are of the dtype and shape of `train`."""
    train = splits["train"].examples
    for name, split in splits.items():
        other = split.examples
        if train.dtype != other.dtype or train.shape[1:] != other.shape[1:]:
            raise ValueError(
                f"train and {name} examples must have one dtype and one shape; got "
                f"{train.dtype} {train.shape[1:]} for train and {other.dtype} "
                f"{other.shape[1:]} for {name}. Prepare both in the same way."
            )


def _outside_at(labels, offsets, limits):
    """Returns (row, client, position in the client, limit) of the first label outside, or None.

    The limits are one for all clients, or [I].
    """
    each = np.repeat(limits, np.diff(offsets)) if np.ndim(limits) else limits
    row = checks.first_outside(labels, each)
    if row is None:
        return None
    return row, *checks.place(row, offsets), each[row] if np.ndim(limits) else limits


def refuse_empty(split: str, sizes: np.ndarray) -> None:
    """Raises ValueError if one of the clients' numbers of examples, [I], is 0."""
    if np.any(sizes < 1):
        raise ValueError(
            f"every client must have {split} examples; client {np.argmin(sizes)} has no {split} "
            "examples. Leave it out, or give it some."
        )


def refuse_bad_classes(classes: np.ndarray, offsets: np.ndarray, limits: int | np.ndarray) -> None:
    """Raises ValueError unless each client has classes, in [0, limit) and ascending."""
    sizes = np.diff(offsets)
    if np.any(sizes < 1):
        raise ValueError(
            f"every client must have a class; client {np.argmin(sizes)} has none. Leave the "
            "client out, or name the classes of its examples."
        )
    if outside := _outside_at(classes, offsets, limits):
        row, client, _, limit = outside
        raise ValueError(
            f"client {client}'s classes must be in [0, num_classes={limit}); got {classes[row]}. "
            "Correct the class or raise `num_classes`."
        )
    falls = np.diff(classes, prepend=classes[0]) <= 0
    falls[offsets[:-1]] = False  # The first class of a client follows no other of its own.
    if falls.any():
        row = int(np.argmax(falls))
        raise ValueError(
            f"client {checks.place(row, offsets)[0]}'s classes must be ascending and different; "
            f"got {classes[row]} after {classes[row - 1]}. Sort them with `np.unique`."
        )


def refuse_labels_outside(
    split: str, labels: np.ndarray, offsets: np.ndarray, limits: int | np.ndarray
) -> None:
    """Raises ValueError if a label is not in [0, limit) for its client.

    With labels [N, T] of sequences, the largest of each sequence must be below it.
    """
    if labels.ndim == 2:
        labels = labels.max(axis=1)
    if outside := _outside_at(labels, offsets, limits):
        row, client, position, limit = outside
        raise ValueError(
            f"client {client}'s {split} labels must be in [0, num_classes={limit}); got "
            f"{labels[row]} for its example {position}. "
            + checks.label_remedy(labels[row], "Correct the label or raise `num_classes`.")
        )


def positions_among_classes(
    split: str,
    labels: np.ndarray,
    offsets: np.ndarray,
    classes: np.ndarray,
    class_offsets: np.ndarray,
) -> np.ndarray:
    """Returns [n] int64, the position of each label among the classes of its client.

    Labels and classes are in [0, 2^31), and the classes of each client ascend. An example of a
    class outside its client's classes is an error.
    """
    labels = labels.astype(np.int64)
    # One number for each pair of a client and a class, ascending as the clients are and, within a
    # client, its classes: one search finds the positions for all clients.
    span = max(classes.max(), labels.max()) + 1
    clients = np.arange(len(offsets) - 1)
    known = np.repeat(clients, np.diff(class_offsets)) * span + classes
    owners = np.repeat(clients, np.diff(offsets))
    wanted = owners * span + labels
    positions = np.searchsorted(known, wanted)
    missing = known[np.minimum(positions, len(known) - 1)] != wanted
    if missing.any():
        row = int(np.argmax(missing))
        client, position = checks.place(row, offsets)
        classes = classes[class_offsets[client] : class_offsets[client + 1]]
        raise ValueError(
            f"client {client}'s {split} examples must be of its classes, "
            f"{np.array2string(classes, threshold=20)}; got class {labels[row]} for its example "
            f"{position}. Add the class to the client's classes or leave the example out."
        )
    return positions - class_offsets[owners]


def _storable(split, examples, offsets):
    """Returns examples as they are stored: uint8, other floats as float32, the rest as int32."""
    checks.refuse_no_numbers(examples, f"{split} examples")
    if examples.dtype == np.uint8:
        return examples
    if examples.dtype.kind == "f":
        with np.errstate(over="ignore"):  # What becomes infinite is refused with its place.
            stored = examples.astype(np.float32, copy=False)
        expected = "must be finite in float32"
        remedy = "Fill it in, scale the column, or leave the example out."
        wrong = np.isfinite(stored)
        np.logical_not(wrong, out=wrong)
    else:
        stored = examples.astype(np.int32, copy=False)
        if np.can_cast(examples.dtype, np.int32):
            return stored
        expected = f"must fit int32, [{_INT32.min}, {_INT32.max}]"
        remedy = "Number the tokens from 0, or convert the examples to floats."
        wrong = (examples < _INT32.min) | (examples > _INT32.max)
    if wrong.any():
        index = np.unravel_index(np.argmax(wrong), wrong.shape)
        client, position = checks.place(int(index[0]), offsets)
        raise ValueError(
            f"client {client}'s {split} examples {expected}; got {examples[index]} in its example "
            f"{position}. {remedy}"
        )
    return stored
