"""The forms of labels, one per task: their check, storage and number of outputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from tf_pflego.core.tasks import CLASSIFICATION, COUNTS, MULTI_LABEL, TASKS
from tf_pflego.data import checks
from tf_pflego.system import values

NO_LABEL = -1  # of a position of a sequence
_MOST_LOST = 1e-3  # of the deviation of numbers, where they become float32


def check_task(task: Any) -> str:
    """Returns the name of a task; raises ValueError for an unknown name."""
    return values.one_of("task", task, TASKS)


def checked(task: str, labels: Any, what: str, sequences: bool = False) -> np.ndarray:
    """Returns labels in their stored form, for several outputs [N, K].

    Labels [N] of a task that has outputs become [N, 1]. With `sequences`, labels of classification
    may be [N, T] too, -1 where a position has none. `what` names them in errors.
    """
    if task == CLASSIFICATION:
        array = checks.array(labels, what)
        is_table = array.ndim == 2 and array.shape[1] > 1 and array.dtype.kind in "iu"
        if not sequences or not is_table or checks.is_one_hot(array):
            return checks.class_labels(array, what)
        return _sequences(array, what)
    array = checks.array(labels, what)
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"{what} must be numbers for {task}; got {array.dtype}. Convert them with "
            "`.astype(np.float32)`."
        )
    if array.ndim not in (1, 2) or 0 in array.shape[1:]:
        raise ValueError(
            f"{what} must be [N] or [N, K], K numbers for each example, for {task}; got shape "
            f"{array.shape}. Put the outputs along the second axis."
        )
    array = array[:, None] if array.ndim == 1 else array
    with np.errstate(over="ignore", invalid="ignore"):  # What becomes infinite is refused.
        stored = array.astype(np.int32 if task == MULTI_LABEL else np.float32, copy=False)
        if task == MULTI_LABEL:
            wrong, expected = (array != 0) & (array != 1), "be 0 or 1, one for each label"
        elif task == COUNTS:
            wrong = ~(np.isfinite(stored) & (array >= 0) & (array == np.floor(array)))
            expected = "be whole numbers from 0 on"
        else:
            wrong, expected = ~np.isfinite(stored), "be finite in float32"
    if wrong.any():
        row, output = np.argwhere(wrong)[0]
        raise ValueError(
            f"{what} must {expected}, for {task}; got {array[row, output]} for example {row}. "
            "Correct it, or leave the example out."
        )
    for output, exact in zip(stored.T, array.T.astype(np.float64), strict=True):
        if np.abs(output - exact).max(initial=0) > _MOST_LOST * exact.std() > 0:
            raise ValueError(
                f"{what} must be numbers that differ in float32; got {exact.min()} to "
                f"{exact.max()}. Subtract {exact.mean().round()} from all."
            )
    return stored


def _sequences(labels, what):
    wrong = labels < NO_LABEL
    if wrong.any():
        row, position = np.argwhere(wrong)[0]
        raise ValueError(
            f"{what} of sequences must be from 0 on, or {NO_LABEL} where a position has no label; "
            f"got {labels[row, position]} for example {row}. Correct it."
        )
    empty = (labels == NO_LABEL).all(axis=1)
    if empty.any():
        raise ValueError(
            f"{what} of each sequence must label a position at least; example "
            f"{np.argmax(empty)} has none. Leave the sequence out."
        )
    return labels.astype(np.int32, copy=False)


def num_outputs(task: str, labels: np.ndarray) -> int:
    """Returns K, the number of outputs of stored labels, or of the occurring classes."""
    if task != CLASSIFICATION:
        return labels.shape[1]
    return min(max(int(labels.max(initial=0)) + 1, 1), checks.LABEL_LIMIT)
