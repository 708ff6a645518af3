"""Clients from a user's own arrays."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tf_pflego.core.tasks import CLASSIFICATION
from tf_pflego.data import checks, client_checks
from tf_pflego.data import client_names as names_lib
from tf_pflego.data import labels as labels_lib
from tf_pflego.data.clients import LABEL_SPACES, ClientData
from tf_pflego.data.datasets.catalogue import Dataset, Examples
from tf_pflego.data.dealing import assign_clients
from tf_pflego.data.partitions.partition import Partition, classes_of_owners, joined, parted, starts
from tf_pflego.system import file_arrays, values


def from_arrays(
    train: Sequence[tuple[Any, Any]] | Mapping[str, tuple[Any, Any]],
    test: Sequence[tuple[Any, Any]] | Mapping[str, tuple[Any, Any]],
    *,
    label_space: str = "local",
    num_classes: int | None = None,
    name: str = "custom",
    class_names: Sequence[str] | None = None,
    class_mask: bool = False,
    client_names: Sequence[str] | None = None,
    task: str = CLASSIFICATION,
) -> ClientData:
    """Returns clients with a user's examples and labels.

    The partition counts the examples of all clients end to end.

    Args:
      train: For each client a pair (examples, labels), arrays or array-likes [N_i, ...] and [N_i].
        Examples may be images (uint8, which a model sees as floats in [0, 1]), floats (seen as
        float32) or other integers such as tokens (seen as int32). Labels are integers from 0 on, or
        in the form of `task`. The keys of a dictionary of such pairs name the clients, in its
        order.
      test: The same for the test examples, with the clients in the same order, or a dictionary with
        the same names in any order.
      label_space: local (a label becomes its position among the client's own classes, which are
        all of its training and test labels, ascending) or global (labels stay).
      num_classes: C, the number of global classes, or None for the largest label plus 1. It is only
        needed in the global label space, if the last class never occurs.
      name: Name of the dataset.
      class_names: The names of the global classes, in the order of the labels, or None for their
        numbers.
      class_mask: Whether a client predicts only among its own classes, in the global label space.
      client_names: The names of clients in lists: different texts of one line and at most 200
        characters, in the order of the clients, or None for their numbers.
      task: The task: classification; multi_label, for labels [N_i, K] of 0 and 1; regression, for
        numbers [N_i] or [N_i, K]; or counts, for whole numbers from 0 on. Labels of classification
        may be [N_i, T] in the global label space, for the positions of a sequence, with -1 at
        positions without a label.

    Raises:
      TypeError: A client has no pair of examples and labels, its labels are no integers, its
        examples no numbers, or its name no text.
      ValueError: `train` and `test` have different clients, a client has no examples,
        `label_space`, `num_classes` or `class_mask` has an unsupported value, or a client's arrays
        do not fit together or to the first client's. Also as in `ClientData`.

    Example, explained in docs/data.md:
      >>> hospitals = {"north": (x[0], y[0]), "south": (x[1], y[1])}
      >>> pfl.from_arrays(train=hospitals, test=hospitals).client_names
      ('north', 'south')
    """
    if isinstance(train, Mapping) or isinstance(test, Mapping):
        if client_names is not None:
            raise ValueError(
                "`client_names` must not be given with dictionaries as `train` and `test`, since "
                f"their keys are the names; got {client_names!r:.60}. Leave it out."
            )
        client_names, train, test = _as_lists(train, test)
    name, task = values.text("name", name), labels_lib.check_task(task)
    if num_classes is not None:
        num_classes = values.whole("num_classes", num_classes, 1)
    for split, pairs in (("train", train), ("test", test)):
        if not hasattr(pairs, "__len__") or not hasattr(pairs, "__getitem__"):
            raise TypeError(
                f"`{split}` must be a sequence of pairs (examples, labels), one for each client; "
                f"got {type(pairs).__name__}. Give a list."
            )
    if len(train) != len(test):
        raise ValueError(
            f"`train` and `test` must have one pair for each client; got {len(train)} and "
            f"{len(test)} pairs. Remove clients that lack one of them."
        )
    client_names = names_lib.checked(client_names, len(train))
    values.one_of("label_space", label_space, LABEL_SPACES)
    with _naming(client_names):
        form = task, label_space == "global"
        sources = _joined_pairs("train", train, *form), _joined_pairs("test", test, *form)
        outputs = max(labels_lib.num_outputs(task, labels) for _, labels, _ in sources)
        if task == CLASSIFICATION and sources[0][1].ndim == 1:
            clients = np.arange(len(train))
            owners = [np.repeat(clients, np.diff(offsets)) for *_, offsets in sources]
            labels = np.concatenate([labels for _, labels, _ in sources])
            # Labels out of range are refused later, whatever they are here.
            labels = labels.clip(0, outputs - 1)
            classes = classes_of_owners(np.concatenate(owners), labels, len(train))
        else:
            classes = (np.arange(outputs),) * len(train)
        splits = [Examples(examples, labels) for examples, labels, _ in sources]
        rows = [parted(np.arange(offsets[-1]), offsets) for *_, offsets in sources]
        class_names = None if class_names is None else values.listed("class_names", class_names)
        return assign_clients(
            Dataset(name, splits[0], splits[1], num_classes or outputs, class_names, task),
            Partition(classes, rows[0], rows[1]),
            label_space,
            class_mask=class_mask,
            client_names=client_names,
        )


def _as_lists(train, test):
    """Returns the names of the clients, and their pairs in that order, from dictionaries."""
    for split, pairs in (("train", train), ("test", test)):
        if not isinstance(pairs, Mapping):
            raise TypeError(
                "`train` and `test` must both be dictionaries, if one is; got "
                f"{type(pairs).__name__} for `{split}`. Name the clients of both."
            )
    differing = [key for key in (*train, *test) if key not in train or key not in test]
    if differing:
        lacks = "test" if differing[0] in train else "train"
        raise ValueError(
            f"`train` and `test` must have the same clients; `{lacks}` lacks {differing[0]!r:.60}. "
            "Give the client examples of both, or leave it out of both."
        )
    return tuple(train), list(train.values()), [test[name] for name in train]


@contextlib.contextmanager
def _naming(names: Sequence[str] | None) -> Iterator[None]:
    """Replaces the number of a client in errors by its name."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if names is None or type(error) not in (TypeError, ValueError):
            raise
        message = re.sub(r"\bclient (\d+)\b", lambda m: f"client {names[int(m[1])]}", str(error))
        raise type(error)(message) from error.__cause__


def _joined_pairs(split, pairs, task, sequences):
    """Returns (examples, labels, offsets) of all clients end to end."""
    if not len(pairs):
        raise ValueError("there must be at least one client; got none. Add clients.")
    for client, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            got = f"{len(pair)} parts" if isinstance(pair, tuple | list) else type(pair).__name__
            raise TypeError(
                f"client {client}'s {split} data must be a pair (examples, labels); got {got}. "
                "Give one pair per client."
            )
    examples = checks.arrays([examples for examples, _ in pairs], f"{split} examples")
    labels, offsets = _joined_labels(split, [labels for _, labels in pairs], task, sequences)
    sizes, first = np.diff(offsets), examples[0]
    client_checks.refuse_empty(split, sizes)
    for client, (array, size) in enumerate(zip(examples, sizes, strict=True)):
        what = f"client {client}'s {split} examples"
        checks.refuse_no_numbers(array, what)
        if array.ndim < 1 or len(array) != size:
            raise ValueError(
                f"{what} must be [{size}, ...], one for each of its labels; got shape "
                f"{array.shape}. Give every example its label."
            )
        # NumPy would convert what differs, and a stored image is no table of small integers.
        if array.dtype != first.dtype or array.shape[1:] != first.shape[1:]:
            raise ValueError(
                f"{what} must be like client 0's, {first.dtype} of shape {first.shape[1:]}; got "
                f"{array.dtype} of shape {array.shape[1:]}. Prepare the examples of all clients in "
                "the same way."
            )
    return file_arrays.concatenated(examples), labels, offsets


def _joined_labels(split, parts, task, sequences):
    """Returns the labels of all clients end to end, and their offsets."""
    arrays = checks.arrays(parts, f"{split} labels")
    if task == CLASSIFICATION and not (sequences and arrays[0].ndim == 2):
        return joined(arrays, f"{split} labels", checks.class_labels)
    arrays = [
        labels_lib.checked(task, array, f"client {client}'s {split} labels", sequences)
        for client, array in enumerate(arrays)
    ]
    for client, array in enumerate(arrays):
        if array.shape[1:] != arrays[0].shape[1:]:
            raise ValueError(
                f"client {client}'s {split} labels must be like client 0's, of shape "
                f"{arrays[0].shape[1:]} for each example; got {array.shape[1:]}. Pad sequences "
                "with -1, or give every example a label for each output."
            )
    return np.concatenate(arrays), starts([len(array) for array in arrays])
