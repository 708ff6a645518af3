"""Checks of arrays: a refusal says what was expected, what came and what to do."""

from typing import Any

import numpy as np

# One more than the largest label that can be stored.
LABEL_LIMIT = 2**31


def integers(values: Any, what: str) -> np.ndarray:
    """Returns values as an array of integers.

    Args:
      values: [n], an array or array-like.
      what: What they are, for the message.

    Raises:
      TypeError: The dtype is no integer dtype, even if the values are whole numbers.
      ValueError: The rank is not 1.
    """
    values = np.asarray(values)
    if values.dtype.kind not in "iu":
        raise TypeError(
            f"{what} must be integers; got {values.dtype}. Convert them with `.astype(np.int32)`, "
            "after a check that nothing is lost."
        )
    if values.ndim != 1:
        raise ValueError(f"{what} must be of rank 1; got shape {values.shape}. Flatten them.")
    return values


def first_outside(labels: np.ndarray, limits: int | np.ndarray = LABEL_LIMIT) -> int | None:
    """Returns the first row whose label is not in [0, limit), or None.

    Args:
      labels: [n] integers.
      limits: The limit of all labels, or [n], one for each.
    """
    outside = (labels < 0) | (labels >= limits)
    return int(np.argmax(outside)) if outside.any() else None
