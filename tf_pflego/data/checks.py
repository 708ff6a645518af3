"""Checks of the clients' arrays: a refusal names the client, what was expected and what came.

The arrays of all clients stand end to end, and `offsets` [I + 1] says where those of each client
begin. The checks look at all clients at once, and search for one only when some are at fault.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

# One more than the largest label that can be stored.
LABEL_LIMIT = 2**31
# What is said of labels of which an example has several.
ONE_CLASS = (
    "One class per example is what can be learnt, and neither several of them (multi-hot) nor a "
    "label for each token. Choose one class for each example."
)
_INT32 = np.iinfo(np.int32)


def array(values: Any, what: str) -> np.ndarray:
    """Returns values as an array.

    Args:
      values: An array or array-like.
      what: What they are, for the message.

    Raises:
      ValueError: They are ragged, or a mask hides some of them, which NumPy would uncover.
    """
    try:
        if isinstance(values, list | tuple):
            hides = any(isinstance(value, np.ma.MaskedArray) for value in values)
            values = np.ma.array(values) if hides else np.asarray(values)
        hidden = np.atleast_1d(np.ma.getmask(values))
        found = np.asarray(values)
    except ValueError as error:
        raise ValueError(
            f"{what} must all have the same shape; got ragged ones ({error}). "
            + (ONE_CLASS if "labels" in what else "Pad or cut them.")
        ) from error
    if hidden.any():
        raise ValueError(
            f"{what} must have no masked values; got {np.count_nonzero(hidden)}, the first of them "
            f"in example {np.argwhere(hidden)[0][0]}. Fill them in with `.filled(VALUE)`, or leave "
            "these examples out."
        )
    return found


def arrays(parts: Sequence[Any], what: str) -> list[np.ndarray]:
    """Returns the part of each client as an array.

    Args:
      parts: For each client an array or array-like.
      what: What they are, for the message.

    Raises:
      ValueError: As `array`.
    """
    return [
        part if type(part) is np.ndarray else array(part, f"client {client}'s {what}")
        for client, part in enumerate(parts)
    ]


def integers(values: Any, what: str) -> np.ndarray:
    """Returns values as an array of integers.

    Args:
      values: [n], an array or array-like.
      what: What they are, for the message.

    Raises:
      TypeError: The dtype is no integer dtype, even if the values are whole numbers.
      ValueError: The rank is not 1.
    """
    values = array(values, what)
    if values.shape == (0,):
        return values.astype(np.int64)  # NumPy takes an empty list for floats.
    if values.dtype.kind not in "iu":
        raise TypeError(
            f"{what} must be integers; got {values.dtype}. Convert them with `.astype(np.int32)`, "
            "after a check that nothing is lost."
        )
    if values.ndim != 1:
        raise ValueError(f"{what} must be of rank 1; got shape {values.shape}. Flatten them.")
    return values


def class_labels(labels: Any, what: str) -> np.ndarray:
    """Returns labels as an array of integers, like `integers`, with what to do about other forms.

    Args:
      labels: [n], an array or array-like.
      what: What they are, for the message.

    Raises:
      TypeError: The dtype is no integer dtype, even if the values are whole numbers.
      ValueError: The rank is not 1.
    """
    labels = array(labels, what)
    if labels.ndim > 1 and labels[:1].size > 1:
        remedy = ONE_CLASS
        if labels.ndim == 2 and _is_one_hot(labels):
            remedy = "If they are one-hot, convert them with `labels.argmax(axis=1)`."
        raise ValueError(
            f"{what} must be of rank 1, one integer for each example; got shape {labels.shape}. "
            f"{remedy}"
        )
    if labels.dtype.kind in "USO" and labels.size:
        raise TypeError(
            f"{what} must be integers from 0 on; got {labels.dtype}, such as "
            f"{str(labels.flat[0])!r:.40}. Number the classes with `np.unique(labels, "
            "return_inverse=True)`, over the labels of all clients together."
        )
    if labels.dtype.kind == "f" and labels.size:
        raise TypeError(
            f"{what} must be integers; got {labels.dtype}. One class per example is what can be "
            "learnt: if these are classes, number them with `np.unique(labels, "
            "return_inverse=True)`, over the labels of all clients together; if they are "
            "quantities, cut them into ranges with `np.digitize(labels, bins)`."
        )
    return integers(labels, what)


def _is_one_hot(labels):
    """Returns whether each row of [n, K] is 0 but for a single 1."""
    if labels.dtype.kind not in "biuf":
        return False
    return bool(np.all((labels == 0) | (labels == 1)) and np.all(np.sum(labels, axis=1) == 1))


def class_names(names: Sequence[Any], num_classes: int) -> tuple[str, ...]:
    """Returns the names of `num_classes` global classes, or of more, as a tuple.

    Raises:
      TypeError: A name is no text.
      ValueError: They are fewer, or one is not of one line or occurs twice.
    """
    names = tuple(names)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(
                f"`class_names` must be text; got {name!r}. Give every class its name, in the "
                "order of the labels."
            )
    first_wrong, seen = None, set()
    for name in names:
        if len(name.splitlines()) != 1 or name in seen:
            first_wrong = name
            break
        seen.add(name)
    if len(names) < num_classes or first_wrong is not None:
        got = f"{len(names)} names" if first_wrong is None else repr(first_wrong)
        raise ValueError(
            f"`class_names` must be different names, of one line each, of all {num_classes} global "
            f"classes; got {got}. Give every class its name, in the order of the labels."
        )
    return names


def client_ids(
    ids: Any, num_clients: int, name: str = "client_ids", different: bool = False
) -> np.ndarray:
    """Returns ids of clients as [c] int64.

    Args:
      ids: An array or array-like.
      num_clients: I.
      name: What the user calls them.
      different: Whether each must occur once.

    Raises:
      TypeError: They are no integers.
      ValueError: The rank is not 1, one is not in [0, I), or one occurs twice and must not.
    """
    ids = integers(ids, f"`{name}`")
    row = first_outside(ids, num_clients)
    if row is not None:
        raise ValueError(
            f"`{name}` must be in [0, {num_clients}), the clients; got {ids[row]}. Correct the id."
        )
    if different and len(np.unique(ids)) != len(ids):
        raise ValueError(f"`{name}` must be different; got an id twice. Name each client once.")
    return ids.astype(np.int64)


def first_outside(labels: np.ndarray, limits: int | np.ndarray = LABEL_LIMIT) -> int | None:
    """Returns the first row whose label is not in [0, limit), or None.

    Args:
      labels: [n] integers.
      limits: The limit of all labels, or [n], one for each.
    """
    outside = (labels < 0) | (labels >= limits)
    return int(np.argmax(outside)) if outside.any() else None


def label_remedy(label: int, otherwise: str) -> str:
    """Returns what to do about a label outside its range: one text for negative labels."""
    return "Labels count from 0: correct the label." if label < 0 else otherwise


def place(row: int, offsets: np.ndarray) -> tuple[int, int]:
    """Returns the client that a row belongs to, and the row's position among the client's own."""
    client = int(np.searchsorted(offsets, row, side="right")) - 1
    return client, int(row - offsets[client])


def refuse_empty(split: str, sizes: np.ndarray) -> None:
    """Raises ValueError if a client has no examples.

    Args:
      split: train or test.
      sizes: [I], the number of examples of each client.
    """
    if np.any(sizes < 1):
        raise ValueError(
            f"every client must have {split} examples; client {np.argmin(sizes)} has no {split} "
            "examples. Leave it out, or give it some."
        )


def refuse_bad_classes(classes: np.ndarray, offsets: np.ndarray, limits: int | np.ndarray) -> None:
    """Raises ValueError unless each client has classes, in [0, limit) and ascending.

    Args:
      classes: [n] integers, the classes of all clients.
      offsets: [I + 1].
      limits: The limit of all clients, or [I], one for each.
    """
    sizes = np.diff(offsets)
    if np.any(sizes < 1):
        raise ValueError(
            f"every client must hold a class; client {np.argmin(sizes)} holds none. Leave the "
            "client out, or name the classes of its examples."
        )
    row = first_outside(classes, limits if np.ndim(limits) == 0 else np.repeat(limits, sizes))
    if row is not None:
        client, _ = place(row, offsets)
        limit = limits if np.ndim(limits) == 0 else limits[client]
        raise ValueError(
            f"client {client}'s classes must be in [0, num_classes={limit}); got {classes[row]}. "
            "Correct the class or raise `num_classes`."
        )
    falls = np.diff(classes, prepend=classes[0]) <= 0
    falls[offsets[:-1]] = False  # The first class of a client follows no other of its own.
    if falls.any():
        row = int(np.argmax(falls))
        raise ValueError(
            f"client {place(row, offsets)[0]}'s classes must be ascending and different; got "
            f"{classes[row]} after {classes[row - 1]}. Sort them with `np.unique`."
        )


def refuse_labels_outside(
    split: str, labels: np.ndarray, offsets: np.ndarray, limits: int | np.ndarray
) -> None:
    """Raises ValueError if a label is not in [0, limit) for its client.

    Args:
      split: train or test.
      labels: [n] integers.
      offsets: [I + 1].
      limits: The limit of all clients, or [I], one for each.
    """
    of_row = limits if np.ndim(limits) == 0 else np.repeat(limits, np.diff(offsets))
    row = first_outside(labels, of_row)
    if row is not None:
        client, position = place(row, offsets)
        limit = limits if np.ndim(limits) == 0 else limits[client]
        raise ValueError(
            f"client {client}'s {split} labels must be in [0, num_classes={limit}); got "
            f"{labels[row]} for its example {position}. "
            + label_remedy(labels[row], "Correct the label or raise `num_classes`.")
        )


def positions_among_classes(
    split: str,
    labels: np.ndarray,
    offsets: np.ndarray,
    classes: np.ndarray,
    class_offsets: np.ndarray,
) -> np.ndarray:
    """Returns [n] int64, the position of each label among the classes of its client.

    Args:
      split: train or test.
      labels: [n] integers in [0, 2^31).
      offsets: [I + 1].
      classes: The classes of all clients, in [0, 2^31), those of each client ascending.
      class_offsets: [I + 1], where the classes of each client begin.

    Raises:
      ValueError: A client has an example of a class that is not among its classes.
    """
    labels = labels.astype(np.int64)
    # One number for each pair of a client and a class, ascending as the clients are and, within a
    # client, its classes: one search finds the positions for all clients.
    span = max(classes.max(), labels.max()) + 1
    clients = np.arange(len(offsets) - 1)
    held = np.repeat(clients, np.diff(class_offsets)) * span + classes
    owners = np.repeat(clients, np.diff(offsets))
    wanted = owners * span + labels
    found = np.searchsorted(held, wanted)
    missing = held[np.minimum(found, len(held) - 1)] != wanted
    if missing.any():
        row = int(np.argmax(missing))
        client, position = place(row, offsets)
        own = classes[class_offsets[client] : class_offsets[client + 1]]
        raise ValueError(
            f"client {client}'s {split} examples must be of the classes that it holds, "
            f"{np.array2string(own, threshold=20)}; got class {labels[row]} for its example "
            f"{position}. Add the class to the client's classes or leave the example out."
        )
    return found - class_offsets[owners]


def storable_examples(split: str, examples: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Returns examples in the dtype in which they are stored: uint8, float32 or int32.

    Args:
      split: train or test.
      examples: [n, ...]; uint8 and what is stored already are returned as they are, other floats
        become float32, bool and other integers int32.
      offsets: [I + 1].

    Raises:
      TypeError: They are no numbers.
      ValueError: A float is not finite in float32, or an integer does not fit int32.
    """
    refuse_no_numbers(examples, f"{split} examples")
    kind = examples.dtype.kind
    if kind == "f":
        with np.errstate(over="ignore"):  # What becomes infinite is refused with its place.
            stored = examples.astype(np.float32, copy=False)
        finite = np.isfinite(stored)
        if not finite.all():
            expected = "must be finite in float32"
            remedy = "Fill it in, scale the column, or leave the example out."
            _refuse_value(split, examples, offsets, ~finite, expected, remedy)
        return stored
    if examples.dtype == np.uint8:
        return examples
    if not np.can_cast(examples.dtype, np.int32):
        outside = (examples < _INT32.min) | (examples > _INT32.max)
        if outside.any():
            expected = f"must fit int32, [{_INT32.min}, {_INT32.max}]"
            remedy = "Number the tokens from 0, or convert the examples to floats."
            _refuse_value(split, examples, offsets, outside, expected, remedy)
    return examples.astype(np.int32, copy=False)


def refuse_no_numbers(examples: np.ndarray, what: str) -> None:
    """Raises TypeError unless examples are of real numbers; `what` they are is for the message."""
    if examples.dtype.kind not in "biuf":
        raise TypeError(
            f"{what} must be numbers (uint8 for images, floats, or integers); got "
            f"{examples.dtype}. Convert numbers that were read as text with `.astype(np.float32)`; "
            "number the values of a column of categories with `np.unique(column, "
            "return_inverse=True)`, over all clients together; make texts tokens, for example with "
            "`tf.keras.layers.TextVectorization`."
        )


def _refuse_value(split, examples, offsets, wrong, expected, remedy):
    """Raises the ValueError for the first of the values that are `wrong`, [n, ...] bool."""
    index = np.unravel_index(np.argmax(wrong), wrong.shape)
    client, position = place(index[0], offsets)
    raise ValueError(
        f"client {client}'s {split} examples {expected}; got {examples[index]} in its example "
        f"{position}. {remedy}"
    )
