"""Checks of users' arrays: an error names the expected value, the given value and the remedy."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_pflego.core import execution
from tf_pflego.system import texts, values

# One more than the largest label that can be stored.
LABEL_LIMIT = 2**31
# The end of errors about examples with several labels.
ONE_CLASS = (
    "Give one class for each example, or say what they are: `task='multi_label'` for several "
    "labels, 0 or 1 each; `label_space='global'` for one label per position of a sequence."
)
# How values become an array that has no dense one, by an attribute of theirs.
_DENSE = {
    "toarray": "`.toarray()`",
    "todense": "`.todense()`",
    "dense_shape": "`tf.sparse.to_dense`",
    "ragged_rank": "`.to_tensor()`, which pads rows to one length",
    "sparse": "`.sparse.to_dense()`",  # of pandas
}
_NUMBERED = "`np.unique(labels, return_inverse=True)`, over the labels of all clients together"


def array(values: Any, what: str) -> np.ndarray:
    """Returns `what` as an array, unless it is sparse or ragged, or a mask hides some values."""
    try:
        if isinstance(values, list | tuple):
            hides = any(isinstance(value, np.ma.MaskedArray) for value in values)
            values = np.ma.array(values) if hides else np.asarray(values)
        hidden = np.atleast_1d(np.ma.getmask(values))
        plain = np.asarray(values)  # It uncovers what a mask hides.
        if plain.dtype.hasobject:
            refuse_sparse(values, what)
            if any(isinstance(one, np.ndarray) for one in plain.flat):
                raise ValueError("arrays of several shapes")
    except NotImplementedError:  # TensorFlow's answer about a tensor of a graph.
        execution.refuse_others(f"{what} must be read")
        raise
    except ValueError as error:
        refuse_sparse(values, what)
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
    return plain


def refuse_sparse(values: Any, what: str) -> None:
    """Raises TypeError if `what` or a part of it has a form that omits numbers."""
    for name, remedy in _DENSE.items():
        if hasattr(values, name):
            raise TypeError(
                f"{what} must be dense; got a {type(values).__name__}, which is sparse or ragged. "
                f"Convert it with {remedy}."
            )
    if isinstance(values, np.ndarray):
        values = [*values.flat] if values.dtype.hasobject else []
    if isinstance(values, list | tuple):
        for one in values:
            refuse_sparse(one, what)


def arrays(parts: Sequence[Any], what: str) -> list[np.ndarray]:
    """Returns the part of each client as an array, checked as `array` does."""
    return [
        part
        if type(part) is np.ndarray and not part.dtype.hasobject
        else array(part, f"client {client}'s {what}")
        for client, part in enumerate(parts)
    ]


def integers(values: Any, what: str) -> np.ndarray:
    """Returns values as an array [n] of an integer dtype, which whole floats do not have."""
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
    """Returns labels as `integers` does. Errors for labels of other forms have a remedy."""
    labels = array(labels, what)
    if labels.ndim > 1 and labels[:1].size > 1:
        remedy = ONE_CLASS
        if labels.ndim == 2 and labels.dtype.kind in "biuf":
            if is_one_hot(labels):
                remedy = "If they are one-hot, convert them with `labels.argmax(axis=1)`."
        raise ValueError(
            f"{what} must be of rank 1, one integer for each example; got shape {labels.shape}. "
            f"{remedy}"
        )
    if labels.dtype.kind in "USO" and labels.size:
        raise TypeError(
            f"{what} must be integers from 0 on; got {labels.dtype}, such as "
            f"{str(labels.flat[0])!r:.40}. Number the classes with {_NUMBERED}."
        )
    if labels.dtype.kind == "f" and labels.size:
        raise TypeError(
            f"{what} must be integers; got {labels.dtype}. If these are classes, number them with "
            f"{_NUMBERED}; if they are quantities, give `task='regression'`."
        )
    return integers(labels, what)


def is_one_hot(labels: np.ndarray) -> bool:
    """Returns whether each row of labels, [N, K], has a 1 and else zeros."""
    return bool(np.all((labels == 0) | (labels == 1)) and np.all(labels.sum(axis=1) == 1))


def labels_below(num_classes: int, labels: Any, what: str = "`labels`") -> np.ndarray:
    """Returns the labels [N] of a dataset, all in [0, num_classes)."""
    labels = class_labels(labels, what)
    row = first_outside(labels, num_classes)
    if row is not None:
        raise ValueError(
            f"{what} must be in [0, {num_classes}), the classes; got {labels[row]} for example "
            f"{row}. "
            + label_remedy(
                labels[row], "Correct the label, or give the number of classes that there are."
            )
        )
    return labels


def class_names(
    names: Sequence[Any], num_classes: int, what: str = "`class_names`"
) -> tuple[str, ...]:
    """Returns the names of `num_classes` global classes, or of more. `what` is what has them."""
    names = values.listed("class_names", names)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(
                f"`class_names` must be text; got {name!r}. Give every class its name, in the "
                "order of the labels."
            )
    odd = next((name for name in names if name.splitlines() != [name]), None)
    pair = texts.alike(names, cases=False)
    if odd is not None or pair or len(names) < num_classes:
        got = f"{len(names)} names" if pair is None else "{!a:.80} and {!a:.80}".format(*pair)
        raise ValueError(
            f"{what} must be different names, in more than spaces and the form of Unicode, of one "
            f"line each, of all {num_classes} global classes; got "
            f"{got if odd is None else repr(odd)}. Give every class its own name."
        )
    return names


def client_ids(
    ids: Any, num_clients: int, name: str = "client_ids", different: bool = False
) -> np.ndarray:
    """Returns ids of clients as [c] int64, all in [0, I), and each once if they must be different.

    `name` is the user's name for them.
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


def first_outside(labels: np.ndarray, limits: int | np.ndarray) -> int | None:
    """Returns the first row of [n] with a label outside [0, limit), or None."""
    outside = (labels < 0) | (labels >= limits)
    return int(np.argmax(outside)) if outside.any() else None


def label_remedy(label: int, otherwise: str) -> str:
    """Returns the remedy for a label out of its range, one text for all negative labels."""
    return "Labels count from 0: correct the label." if label < 0 else otherwise


def place(row: int, offsets: np.ndarray) -> tuple[int, int]:
    """Returns the client that a row belongs to, and the row's position among the client's own."""
    client = int(np.searchsorted(offsets, row, side="right")) - 1
    return client, int(row - offsets[client])


def refuse_no_numbers(examples: np.ndarray, what: str) -> None:
    """Raises TypeError unless examples are real numbers; `what` is their name in the message."""
    if examples.dtype.kind not in "biuf":
        raise TypeError(
            f"{what} must be numbers (uint8 for images, floats, or integers); got "
            f"{examples.dtype}. Convert numbers that were read as text with `.astype(np.float32)`; "
            "number the values of a column of categories with `np.unique(column, "
            "return_inverse=True)`, over all clients together; make texts tokens, for example with "
            "`tf.keras.layers.TextVectorization`."
        )
