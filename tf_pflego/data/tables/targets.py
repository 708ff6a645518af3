"""The labels of a table's rows, from the columns that a user predicts."""

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tf_pflego.core.tasks import CLASSIFICATION
from tf_pflego.data import checks
from tf_pflego.data import labels as labels_lib
from tf_pflego.data.tables import reading
from tf_pflego.system import log, texts

# More classes than this, of which most rows have one of their own, are ids or quantities.
_FEW_CLASSES = 50
_FRACTION = re.compile(r"[-+]?\d*[.,]\d*[1-9]\d*([eE][-+]?\d+)?")


def of(
    table: pa.Table, labels: Sequence[str], task: str, known: tuple[str, ...] | None = None
) -> tuple[np.ndarray, int, tuple[str, ...]]:
    """Returns the labels of all rows, the number of outputs, and the outputs' names.

    The classes are the `known` ones, or else all that occur.
    """
    if task != CLASSIFICATION:
        other = "Choose `task='classification'` to predict classes. "
        columns = [
            labels_lib.checked(
                task, reading.numbers(table[name], name, other), f"the column {name!r}"
            )
            for name in labels
        ]
        return np.concatenate(columns, axis=1), len(labels), tuple(labels)
    if len(labels) > 1:
        raise ValueError(
            f"`label_column` must be one column for classification; got {', '.join(labels)}. "
            "Choose `task='multi_label'` for columns of 0 and 1, or `task='regression'` for "
            "numbers."
        )
    remedy = "Choose `task='regression'` to predict numbers. "
    column = reading.names(table[labels[0]], labels[0], remedy)
    if known is not None:
        positions = reading.positions(column, list(known))
        row = int(np.argmin(positions))
        if positions[row] < 0:
            raise ValueError(
                f"the column {labels[0]!r} must be of the classes of the earlier table, "
                f"{texts.printable(', '.join(known[:20]))}; row {row} has "
                f"{column[row].as_py()!r:.60}. Correct the row or leave it out, or start again "
                "with a table that has the class."
            )
        return positions, len(known), known
    classes = reading.distinct(column)
    quantities = [name for name in classes if _FRACTION.fullmatch(name)]
    if 2 * len(quantities) > len(classes):  # Text of a file, which keeps the spelling of classes.
        raise ValueError(
            f"the column {labels[0]!r} must be of whole numbers or of text; got numbers such as "
            f"{quantities[0]}. {remedy}Or predict another column."
        )
    if len(classes) < 2 or len(classes) > max(_FEW_CLASSES, len(table) / 2):
        raise ValueError(
            f"the column {labels[0]!r} must have two classes or more, and several rows of each; "
            f"got {len(classes)} in {len(table)} rows. {remedy}Or predict another column."
        )
    checks.class_names(classes, len(classes), f"the column {labels[0]!r} must be of classes; these")
    if pair := texts.alike(classes, cases=True):
        log.warning(
            "the classes {!r:.60} and {!r:.60} are two by upper and lower case".format(*pair)
        )
    return reading.positions(column, classes), len(classes), tuple(classes)
