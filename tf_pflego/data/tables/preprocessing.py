"""What columns become before a model sees them: fitted once, on training rows alone.

A number x becomes (x - mean) / deviation, both taken over the training rows of all clients. A
category becomes as many numbers as there are categories in these rows, one of them 1 and the others
0 (one_hot), or its code (codes), from 1 on in the order of the categories. A category that no
training row has is 0 in all of these numbers, and has the code 0.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tf_pflego.data.tables import reading
from tf_pflego.system import file_arrays

_ROWS_IN_BLOCK = 2**16
# A column of more values is an id or a free text, whose zeros would fill the disk.
_MOST_ONE_HOT = 4096
_NUMBER = re.compile(r"\s*[+-]?\d*\.?\d+\s*")


@dataclasses.dataclass(frozen=True)
class Column:
    """A column: its categories, ascending, or else the mean and the deviation of its numbers."""

    name: str
    categories: tuple[Any, ...] | None = dataclasses.field(default=None, repr=False)
    mean: float = 0.0
    deviation: float = 1.0


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """What the columns of a table become; plain values, which a run writes as JSON.

    Attributes:
      columns: The columns, in the order of the features.
      encoding: What becomes of categories: one_hot or codes.
      missing: What is done where a value is missing: refuse, mean (a number is the mean, a category
        one that no training row has) or drop (the row is left out).
    """

    columns: tuple[Column, ...]
    encoding: str = "one_hot"
    missing: str = "refuse"

    @classmethod
    def of_json(cls, written: Mapping[str, Any]) -> Preprocessing:
        """Returns that whose fields were written; ValueError, TypeError or KeyError if none was."""
        columns = []
        for column in written["columns"]:
            categories = column["categories"]
            categories = None if categories is None else tuple(categories)
            mean, deviation = float(column["mean"]), float(column["deviation"])
            columns.append(Column(str(column["name"]), categories, mean, deviation))
        return cls(tuple(columns), written["encoding"], written["missing"])

    @property
    def num_codes(self) -> tuple[int, ...]:
        """How many codes each column of categories has, with 0; what an Embedding takes."""
        return tuple(1 + len(column.categories or ()) for column in self.columns)

    def examples(self, table: pa.Table) -> np.ndarray:
        """Returns what a table's columns become, [N, F] float32 or int32, in a file."""
        writer = file_arrays.Writer()
        for start in range(0, len(table), _ROWS_IN_BLOCK):
            block = table.slice(start, _ROWS_IN_BLOCK)
            parts = [self._features(column, block[column.name]) for column in self.columns]
            writer.append(np.concatenate(parts, axis=1))
        return writer.array()

    def _features(self, column, array):
        """Returns [n, F of the column]."""
        if column.categories is None:
            mean, deviation = np.float32(column.mean), np.float32(column.deviation)
            scaled = (reading.numbers(array, column.name) - mean) / deviation
            return np.nan_to_num(scaled, nan=0.0)[:, None]
        array = reading.categories(array, column.name)
        if isinstance(column.categories[0], str) != (array.type == pa.string()):
            raise ValueError(
                f"the column {column.name!r} must be of values such as "
                f"{column.categories[0]!r:.40}, as in the table of `preprocessing`; got "
                f"{array.type}. Correct the column."
            )
        codes = reading.positions(array, list(column.categories))[:, None]
        if self.encoding == "codes":
            return codes + np.int32(1)
        return (codes == np.arange(len(column.categories))).astype(np.float32)

    def raw(self, examples: np.ndarray) -> list[np.ndarray]:
        """Returns values [n] of each column that become these examples."""
        columns, first = [], 0
        for column in self.columns:
            if column.categories is None:
                number = examples[:, first] * np.float32(column.deviation)
                columns.append(number + np.float32(column.mean))
                first += 1
                continue
            codes = examples[:, first]
            if self.encoding == "one_hot":
                ones = examples[:, first : first + len(column.categories)]
                codes = (ones @ np.arange(1, ones.shape[1] + 1)).astype(int)
            first += 1 if self.encoding == "codes" else len(column.categories)
            last = column.categories[-1]  # What comes after it is none of the categories.
            of_codes = [last + "?" if isinstance(last, str) else last + 1, *column.categories]
            columns.append(np.array(of_codes, object if isinstance(last, str) else np.int64)[codes])
        return columns


def fit(
    table: pa.Table, is_train: np.ndarray, coded: Collection[str], encoding: str, missing: str
) -> Preprocessing:
    """Returns the preprocessing of a table's training rows; `coded` columns are categories."""
    columns = []
    for name in table.column_names:
        array = table[name].filter(pa.array(is_train))
        if array.null_count == len(array):
            raise ValueError(
                f"the column {name!r} must have a value in some training row; it has none. Leave "
                "it out of `features`."
            )
        if encoding == "codes" or name in coded or array.type == pa.string():
            if array.type == pa.string():
                _refuse_words_among_numbers(table[name], name)
            columns.append(Column(name, _categories(array, name, encoding)))
            continue
        numbers = reading.numbers(array, name).astype(np.float64)
        mean, deviation = np.nanmean(numbers), np.nanstd(numbers)
        columns.append(Column(name, None, float(mean), float(deviation) or 1.0))
    return Preprocessing(tuple(columns), encoding, missing)


def _categories(array, name, encoding):
    categories = reading.distinct(reading.categories(array, name))
    if encoding == "one_hot" and len(categories) > _MOST_ONE_HOT:
        raise ValueError(
            f"the column {name!r} must have at most {_MOST_ONE_HOT} categories, each of which is a "
            f"feature; got {len(categories)}. Leave it out of `features`, or choose "
            "`encoding='codes'` and a body that begins with an Embedding."
        )
    return tuple(categories)


def _refuse_words_among_numbers(array, name):
    """Raises ValueError if a column is text for the sake of a few rows."""
    texts = reading.distinct(array)
    words = [text for text in texts if not _NUMBER.fullmatch(text)]
    if 2 * len(words) < len(texts) and words:
        raise ValueError(
            f"the column {name!r} must be of numbers or of categories; got numbers, and "
            f"{words[0]!r:.40} among them. Correct these rows, or leave the column empty there."
        )
