"""The labels of a table's rows, from the columns that a user predicts."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tf_pflego.core.tasks import CLASSIFICATION
from tf_pflego.data import labels as labels_lib
from tf_pflego.data.tables import reading

# More classes than this, of which most rows have one of their own, are ids or quantities.
_FEW_CLASSES = 50


def of(
    table: pa.Table, labels: Sequence[str], task: str, known: tuple[str, ...] | None = None
) -> tuple[np.ndarray, int, tuple[str, ...]]:
    """Returns the labels of all rows, the number of outputs, and the outputs' names.

    The classes are the `known` ones, or else all that occur.
    """
    for name in labels:
        reading.refuse_missing(table[name], name)
    if task != CLASSIFICATION:
        columns = [
            labels_lib.checked(task, reading.numbers(table[name], name), f"the column {name!r}")
            for name in labels
        ]
        return np.concatenate(columns, axis=1), len(labels), tuple(labels)
    if len(labels) > 1:
        raise ValueError(
            f"`label` must be one column for classification; got {', '.join(labels)}. Choose "
            "`task='multi_label'` for columns of 0 and 1, or `task='regression'` for numbers."
        )
    remedy = "Choose `task='regression'` to predict numbers. "
    column = reading.names(table[labels[0]], labels[0], remedy)
    if known is not None:
        positions = reading.positions(column, list(known))
        row = int(np.argmin(positions))
        if positions[row] < 0:
            raise ValueError(
                f"the column {labels[0]!r} must be of the classes that `preprocessing` has, "
                f"{', '.join(known[:20])}; row {row} has {column[row].as_py()!r:.60}. Correct the "
                "row or leave it out, or start again with a table that has the class."
            )
        return positions, len(known), known
    classes = reading.distinct(column)
    if len(classes) < 2 or len(classes) > max(_FEW_CLASSES, len(table) / 2):
        raise ValueError(
            f"the column {labels[0]!r} must have two classes or more, and several rows of each; "
            f"got {len(classes)} in {len(table)} rows. {remedy}Or predict another column."
        )
    return reading.positions(column, classes), len(classes), tuple(classes)
