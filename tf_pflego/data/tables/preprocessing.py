"""Preprocessing of columns before a model sees them: fitted once, only on training rows.

A number x becomes (x - mean) / deviation, both taken over the training rows of all clients, in
float64. A
category becomes as many numbers as there are categories in these rows, one of them 1 and the others
0 (one_hot), or its code (codes), from 1 on in the order of the categories. A category that no
training row has is 0 in all of these numbers, and has the code 0. A text becomes the counts of the
most frequent words of the training rows.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tf_pflego.data.tables import reading, words
from tf_pflego.system import file_arrays, log, values
from tf_pflego.system import texts as texts_lib
from tf_pflego.system.errors import Faults

_NUMBERS_IN_BLOCK = 2**24
# A column of more values is an id or a free text, whose zeros would fill the disk.
_MOST_ONE_HOT = 4096
# A column of text has few values for its rows, unless it has few values.
_FEW = 10
# Also as people write it: $1,163.50 or 0,5 or 50% or 1e-3.
_NUMBER = re.compile(
    r"(?=.*\d)\s*[-+]?[$€£]?\s?(\d{1,3}([ ,.'\u00a0\u202f]\d{3})+|\d*)([.,]?\d+)?"
    r"([eE][-+]?\d+)?\s?[%$€£]?\s*"
)
_CODE = re.compile(r"\d+")
# From so many deviations on, float32 cannot tell a column's numbers apart well enough.
_FAR = 1000


@dataclasses.dataclass(frozen=True)
class Column:
    """A column: its categories or words, or else the mean and the deviation of its numbers."""

    name: str
    categories: tuple[Any, ...] | None = dataclasses.field(default=None, repr=False)
    mean: float = 0.0
    deviation: float = 1.0
    is_text: bool = False  # Its categories are words, which are counted in each text.

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the column in an exported model."""
        if self.categories is None:
            is_far = abs(self.mean) > _FAR * self.deviation
            return np.dtype(np.float64 if is_far else np.float32)
        return np.dtype(object if isinstance(self.categories[0], str) else np.int64)

    def raw_of(self, cells: Any) -> np.ndarray:
        """Returns [n], the cells of a table as an exported model takes them."""
        cells = np.reshape(cells, -1) if np.ndim(cells) > 1 else cells
        array = reading.column(reading.read({self.name: cells}), self.name, "feature_columns")
        if self.categories is None:
            return reading.numbers(array, self.name).astype(self.dtype)
        if self.is_text:
            return np.array(pc.fill_null(array, ""), object)
        array = reading.categories(array, self.name)
        array = array.cast(pa.string() if self.dtype == object else pa.int64())
        last = self.categories[-1]  # What comes after it is none of the categories.
        return np.array(
            pc.fill_null(array, last + "?" if self.dtype == object else last + 1), self.dtype
        )


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """The preprocessing of a table's columns: plain values, which a run writes as JSON.

    Attributes:
      columns: The columns, in the order of the features.
      encoding: The encoding of categories: one_hot or codes.
      missing: The treatment of a missing value: refuse, mean (a number becomes the mean, a category
        an unknown category) or drop (the row is excluded).
      class_names: The classes of the rows, in the order of their numbers, or None.
      client_column: The column with the client of each row, or empty if no column has it.
      is_fitted: Whether it follows from the rows of the clients that have it, without noise.
    """

    columns: tuple[Column, ...]
    encoding: str = "one_hot"
    missing: str = "refuse"
    class_names: tuple[str, ...] | None = None
    client_column: str = dataclasses.field(default="", compare=False)
    is_fitted: bool = dataclasses.field(default=False, compare=False)

    @property
    def text_columns(self) -> frozenset[str]:
        """The names of the columns with text categories."""
        return frozenset(column.name for column in self.columns if column.dtype == object)

    @classmethod
    def of_json(cls, written: Mapping[str, Any]) -> Preprocessing:
        """Returns the preprocessing with these fields; raises ValueError, TypeError or KeyError."""
        columns = []
        for column in written["columns"]:
            categories = column["categories"]
            categories = None if categories is None else tuple(categories)
            mean, deviation = float(column["mean"]), float(column["deviation"])
            are_alike = categories is None or {*map(type, categories)} in ({str}, {int})
            is_text = values.truth("is_text", column.get("is_text", False))
            are_alike &= not is_text or {*map(type, categories or ())} == {str}
            if not (np.isfinite(mean) and 0 < deviation < np.inf and are_alike):
                raise ValueError(f"the column {column['name']!r:.40} cannot be prepared like this")
            columns.append(Column(str(column["name"]), categories, mean, deviation, is_text))
        names = written.get("class_names")
        names = None if names is None else tuple(map(str, names))
        client = str(written.get("client_column", ""))
        return cls(tuple(columns), written["encoding"], written["missing"], names, client)

    @property
    def num_codes(self) -> tuple[int, ...]:
        """The number of codes of each column of categories, with 0, for an Embedding."""
        return tuple(1 + len(column.categories or ()) for column in self.columns)

    def examples(self, table: pa.Table) -> np.ndarray:
        """Returns the features of a table's columns, [N, F] float32 or int32, in a file."""
        writer = file_arrays.Writer()
        count = 1 + _NUMBERS_IN_BLOCK // sum(map(self._width, self.columns))
        for start in range(0, len(table), count):
            block = table.slice(start, count)
            parts = [self._features(column, block[column.name]) for column in self.columns]
            writer.append(np.concatenate(parts, axis=1))
        return writer.array()

    def _width(self, column):
        """Returns the number of features of a column."""
        return len(column.categories or ".") if self.encoding == "one_hot" else 1

    def _features(self, column, array):
        """Returns [n, F of the column]."""
        if column.categories is None:
            scaled = (reading.numbers(array, column.name) - column.mean) / column.deviation
            return np.nan_to_num(scaled.astype(np.float32), nan=0.0)[:, None]
        if column.is_text:
            return words.counts(array, column.name, column.categories)
        array = reading.categories(array, column.name)
        is_text = column.dtype == object
        if is_text and array.type != pa.string() and any(map(_CODE.fullmatch, column.categories)):
            array = array.cast(pa.string())  # The other table was a file of text.
        if is_text != (array.type == pa.string()):
            raise ValueError(
                f"the column {column.name!r} must be of values such as "
                f"{column.categories[0]!r:.40}, as in the earlier table; got "
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
            some = examples[:, first : first + self._width(column)]
            first += some.shape[1]
            if column.categories is None:
                number = some[:, 0].astype(np.float64) * column.deviation
                columns.append((number + column.mean).astype(column.dtype))
            elif column.is_text:
                found = [" ".join(np.repeat(column.categories, row)) for row in some.astype(int)]
                columns.append(np.array(found, object))
            else:
                codes = some[:, 0]
                if self.encoding == "one_hot":
                    codes = (some @ np.arange(1, some.shape[1] + 1)).astype(int)
                last = column.categories[-1]  # What comes after it is none of the categories.
                of_codes = [last + "?" if isinstance(last, str) else last + 1, *column.categories]
                columns.append(np.array(of_codes, column.dtype)[codes])
        return columns


def fit(
    table: pa.Table,
    is_train: np.ndarray,
    coded: Collection[str],
    texts: Collection[str],
    text_words: int,
    encoding: str,
    missing: str,
    faults: Faults,
) -> Preprocessing:
    """Returns the preprocessing of a table's training rows.

    The `coded` columns are categories, and `texts` have at most `text_words` words that count.
    """
    columns, is_train = [], pa.array(is_train)
    for name in table.column_names:
        with faults.collected():
            if name in texts:
                found = words.vocabulary(table[name].filter(is_train), name, text_words)
                columns.append(Column(name, found, is_text=True))
                continue
            is_coded = encoding == "codes" or name in coded or table[name].type == pa.string()
            if is_coded and name not in coded:
                _refuse_no_categories(table[name], name)
            array = table[name].filter(is_train)
            if array.null_count == len(array):
                raise ValueError(
                    f"the column {name!r} must have a value in some training row; it has none. "
                    "Leave it out of `feature_columns`."
                )
            if is_coded:
                columns.append(Column(name, _categories(array, name, encoding)))
            else:
                reading.numbers(table[name], name)  # Numbers of test rows are refused here too.
                columns.append(Column(name, None, *_moments(array, name)))
    return Preprocessing(tuple(columns), encoding, missing)


def _moments(array, name):
    """Returns the mean and the deviation of numbers. The deviation of equal numbers is 1."""
    numbers = reading.numbers(array, name)
    least, most = pc.min_max(array).as_py().values()
    # Less is lost in the last digits.
    if most - least < _FAR * np.spacing(np.nanmax(np.abs(numbers))):
        if most != least and not pa.types.is_floating(array.type):
            raise ValueError(
                f"the column {name!r} must be of numbers that differ in float64; they are from "
                f"{least} to {most}. Subtract {least} from all, or leave the column out of "
                "`feature_columns`."
            )
        return float(np.nanmean(numbers)), 1.0
    return float(np.nanmean(numbers)), float(np.nanstd(numbers))


def _categories(array, name, encoding):
    categories = reading.distinct(reading.categories(array, name))
    if encoding == "one_hot" and len(categories) > _MOST_ONE_HOT:
        raise ValueError(
            f"the column {name!r} must have at most {_MOST_ONE_HOT} categories, since each is a "
            f"feature; got {len(categories)}. Leave it out of `feature_columns`, or give "
            "`from_table` `encoding='codes'` and take a body that begins with an Embedding."
        )
    if pair := isinstance(categories[0], str) and texts_lib.alike(categories, cases=True):
        log.warning(f"the column {name!r:.60} has categories that look alike, such as {pair}")
    return tuple(categories)


def is_free_text(array: pa.ChunkedArray, encoding: str) -> bool:
    """Returns whether a column has too many texts for categories, and not mostly numbers."""
    found = reading.distinct(array) if array.type == pa.string() else []
    is_wide = encoding == "one_hot" and len(found) > _MOST_ONE_HOT
    return (is_wide or _differ(found, array)) and not _are_mostly_numbers(found)


def _differ(found, array):
    return len(found) > _FEW and 2 * len(found) > len(array) - array.null_count


def _words(found):
    return [text for text in found if not _NUMBER.fullmatch(text)]


def _are_mostly_numbers(found):
    return 2 * len(_words(found)) < len(found) and not all(map(_CODE.fullmatch, found))


def _refuse_no_categories(array, name):
    """Raises ValueError if a column of text is mostly numbers, or differs in nearly every row."""
    found = reading.distinct(array) if array.type == pa.string() else []
    remedy = f"or name {name!r} in `category_columns` if each of them is one."
    if _are_mostly_numbers(found):
        raise ValueError(
            f"the column {name!r} must be of numbers or of categories; got numbers, and "
            f"{(_words(found) or found)[0]!r:.40} among them. Correct these cells: leave those "
            "without a number empty, and write 1163 without a sign between its thousands. Or set "
            f"`decimal=','` for numbers such as 0,5, {remedy}"
        )
    if _differ(found, array):
        raise ValueError(
            f"the column {name!r} must be of categories, each of several rows; got {len(found)} "
            f"texts in {len(array)} rows, such as {found[0]!r:.40}. Leave the column out of "
            f"`feature_columns`, {remedy}"
        )
