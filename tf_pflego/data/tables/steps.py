"""The steps from rows of a table to examples of clients. Each returns a value.

Asked     which columns are read, and how, checked
rows      those columns, of the rows that have the values that they need
split     the owner of each row, and which rows are for the test
coded     the examples, their labels, and the preprocessing that made them
"""

import contextlib
import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tf_pflego.core.tasks import CLASSIFICATION
from tf_pflego.data import labels as labels_lib
from tf_pflego.data.tables import ENCODINGS, MISSING, TEXT_WORDS, reading, splitting, targets
from tf_pflego.data.tables import preprocessing as preprocessing_lib
from tf_pflego.data.tables.preprocessing import Preprocessing
from tf_pflego.system import log, texts, values
from tf_pflego.system.errors import Faults

_THE_ONE = "one"  # The client of all rows of a table in which no column names clients.


class Rows(NamedTuple):
    """Rows that have the values that they need."""

    columns: pa.Table  # all that are read, of N rows
    features: list[str]
    coded: set[str]  # the features that are categories


class Split(NamedTuple):
    """Rows by their clients, and by whether they are for the test."""

    rows: Rows
    owner: np.ndarray  # [N] the number of each row's client
    names: list[str]  # [I] the clients' names
    is_test: np.ndarray  # [N] bool


class Coded(NamedTuple):
    """The examples of all rows, for a model."""

    examples: np.ndarray  # [N, ...]
    labels: np.ndarray  # [N] numbers of classes, or [N, K]
    num_outputs: int
    output_names: tuple[str, ...]
    preprocessing: Preprocessing


class Asked:
    """The requested columns of a table and their treatment, in the arguments of `from_table`.

    Arguments that do not fit together raise ValueError.
    """

    def __init__(
        self,
        client: Sequence[str],
        label: str | Sequence[str],
        test: float | str,
        time: str | None,
        task: str,
        preprocessing: Preprocessing | None,
        missing: str = MISSING[0],
        features: Sequence[str] | None = None,
        categories: Sequence[str] = (),
        encoding: str = ENCODINGS[0],
        texts: Sequence[str] = (),
        text_words: int = TEXT_WORDS,
    ):
        labels_lib.check_task(task)
        if preprocessing is not None:
            remedy = "Take that of `ClientData`."
            values.instance("preprocessing", preprocessing, Preprocessing, remedy)
            _refuse_other(preprocessing, features, categories, encoding, missing, texts)
            features = [column.name for column in preprocessing.columns]
            encoding = preprocessing.encoding
            missing = missing if missing == "drop" else preprocessing.missing  # It is of rows.
        values.one_of("encoding", encoding, ENCODINGS)
        values.one_of("missing", missing, MISSING)
        time = None if values.is_word(time, "") else time
        kind, about = splitting.kind_of_test(test)
        labels, coded = _names("label_column", label), _names("category_columns", categories)
        counted = _names("text_columns", texts)
        text_words = values.whole("text_words", text_words, 1)
        if counted and encoding != ENCODINGS[0]:
            raise ValueError(
                f"`encoding` must be {ENCODINGS[0]} for texts, since a count of words is no code; "
                f"got {encoding}. Give one of `encoding` and `text_columns`."
            )
        if text_words != TEXT_WORDS and (preprocessing is not None or not counted):
            raise ValueError(
                "`text_words` must not be given without `text_columns`, and with `preprocessing`, "
                f"which has the words; got {text_words}. Leave it out."
            )
        if both := sorted({*counted} & {*coded}):
            raise ValueError(
                f"`text_columns` must be other columns than `category_columns`; got {both[0]!r} in "
                "both. Leave it out of one."
            )
        if time is not None and kind != "last":
            raise ValueError(
                f"`time_column` must be given only if `split` is last; got {values.shown(time)}. "
                "Choose `split='last:0.2'`, or remove `time_column`."
            )
        self.client = list(map(_name, client))  # none if all rows are of one client
        self.labels, self.task = labels, task
        # None for all columns that can be features.
        self.features = None if features is None else _names("feature_columns", features)
        self.categories, self.encoding, self.missing = coded, encoding, missing
        self.texts, self.text_words = counted, text_words  # the most words of each
        self.time = [] if kind != "last" else _names("time_column", time)  # It orders the rows.
        self.test = [about] if kind == "column" else []  # the column that says which rows are it
        self.share = about  # of a client's rows that are for the test, if no column says it
        self.preprocessing = preprocessing  # an earlier one, which numbers the classes too

    def is_text(self, name: str) -> bool:
        """Returns whether a column of a text file stays as it is written, as names do."""
        texts = {*self.categories, *self.texts, *map(str, self.client)}
        if self.preprocessing is not None:
            texts = {*self.preprocessing.text_columns, *map(str, self.client)}
        if self.task == CLASSIFICATION:
            texts |= set(map(str, self.labels))
        are_coded = self.encoding == "codes" and self.preprocessing is None
        return name in texts or (are_coded and name not in self._others)

    def may_be_codes(self, name: str) -> bool:
        """Returns whether whole numbers with zeros in front are text."""
        return self.preprocessing is None and name not in self._others

    @property
    def _others(self):
        """The columns that are neither features nor clients."""
        return set(map(str, (*self.labels, *self.time, *self.test)))

    def rows(self, source: pa.Table, faults: Faults) -> Rows:
        """Returns the rows that have the values that they need."""
        if self.preprocessing is not None:
            needed = [column.name for column in self.preprocessing.columns]
            refuse_lacking(source, needed)
        columns, features, coded = self._columns(source, faults)
        remedy = "`missing='mean'` or " if self.preprocessing is None else ""
        return Rows(with_values(columns, features, self.missing, remedy, faults), features, coded)

    def split(
        self, rows: Rows, min_rows: int, on_small_client: str, seed: int, faults: Faults
    ) -> Split:
        """Returns the rows of the clients that stay, and which are for the test."""
        columns = rows.columns
        owner, is_test = np.zeros(len(columns), int), np.zeros(len(columns), bool)
        names, of_client = [_THE_ONE], [*self.client, _THE_ONE][0]
        if {*self.client, *self.time, *self.test} <= {*columns.column_names}:
            with faults.collected():
                if self.client:
                    owner, names = splitting.owners(columns[of_client], of_client)
                said = splitting.said(columns[self.share], self.share) if self.test else None
                about = min_rows, on_small_client, of_client
                owner, names = splitting.without_small(owner, names, said, *about)
                kept = owner >= 0
                columns, owner = columns.filter(pa.array(kept)), owner[kept]
                order = next(((name, columns[name]) for name in self.time), None)
                if said is not None:
                    is_test = said[kept]
                else:
                    is_test = splitting.drawn(owner, self.share, order, seed)
        return Split(rows._replace(columns=columns), owner, names, is_test)

    def coded(self, split: Split, faults: Faults) -> Coded:
        """Returns the examples of the rows; raises ValueError with all faults, if any."""
        columns, features, coded = split.rows
        known = None if self.preprocessing is None else self.preprocessing.class_names
        if self.labels and {*self.labels} <= {*columns.column_names}:
            with faults.collected():
                labels, count, names = targets.of(columns, self.labels, self.task, known)
        inputs, preprocessing = columns.select(features), self.preprocessing
        if preprocessing is None:
            about = coded, self.texts, self.text_words, self.encoding, self.missing
            preprocessing = preprocessing_lib.fit(inputs, ~split.is_test, *about, faults)
            faults.refuse()
            if self.task == CLASSIFICATION:
                preprocessing = dataclasses.replace(preprocessing, class_names=names)
        faults.refuse()
        class_names = names if self.task == CLASSIFICATION else ()
        log.info(_what_becomes(self.labels, class_names, preprocessing))
        client = [*self.client, preprocessing.client_column][0]
        is_fitted = self.preprocessing is None
        preprocessing = dataclasses.replace(
            preprocessing, client_column=client, is_fitted=is_fitted
        )
        return Coded(preprocessing.examples(inputs), labels, count, names, preprocessing)

    def _columns(self, source, faults):
        """Returns the columns that are read, the features and which of them are categories."""
        columns = {"client_column": self.client, "label_column": self.labels}
        columns |= {"time_column": self.time, "split": self.test}
        features = self.features
        if features is None:
            taken = {str(name) for names in columns.values() for name in names}
            others = [name for name in source.column_names if name not in taken]
            features = _able(source, others, [*self.categories, *self.texts], self.encoding)
        rows, there = {}, {*source.column_names}
        for argument, names in (columns | {"feature_columns": features}).items():
            with faults.collected():
                reading.refuse_absent(source, names, argument)
            for name in filter(there.__contains__, map(str, names)):
                with faults.collected():
                    rows[name] = reading.column(source, name, argument)
        roles = [*self.client, *self.labels, *self.test, *features]
        twice = [name for name, count in Counter(map(str, roles)).items() if count > 1]
        with faults.collected():
            if twice or not self.labels or not features:
                got = f"{twice[0]!r} twice" if twice else "no label" if features else "no features"
                raise ValueError(
                    "`client_column`, `label_column`, `feature_columns` and `split` must be "
                    f"different columns, with at least one feature and one label; got {got}. "
                    "Correct them."
                )
        for argument, names in {
            "category_columns": self.categories,
            "text_columns": self.texts,
        }.items():
            with faults.collected():
                if stray := sorted({*map(str, names)}.difference(features)):
                    raise ValueError(
                        f"`{argument}` must be some of the features, "
                        f"{', '.join(map(repr, features[:20]))}; got {values.shown(stray[0])}. "
                        f"Correct `{argument}`."
                    )
        features = [name for name in features if name in rows]
        coded = {name for name in features if pa.types.is_dictionary(source[name].type)}
        return pa.table(rows), features, coded.union(self.categories)


def _what_becomes(labels, class_names, preprocessing):
    """Returns the log line with the predicted columns, the features and the numbered classes."""
    kinds: dict[str, list[str]] = {"numbers": [], "categories": [], "words of": []}
    for column in preprocessing.columns:
        kind = "numbers" if column.categories is None else "categories"
        kinds["words of" if column.is_text else kind].append(column.name)
    classes = _first([f"{number} {name}" for number, name in enumerate(class_names)])
    of_classes = f" ({classes})" if classes else ""
    columns = " and ".join(f"the {kind} {_first(names)}" for kind, names in kinds.items() if names)
    return f"{_first(labels)}{of_classes} will be predicted from {columns}"


def _first(names):
    """Returns the names, each cut to a length, or twenty and a sign that there are more."""
    shown = [f"{texts.printable(name):.60}" for name in names[:20]]
    return ", ".join([*shown, *["..."] * (len(names) > 20)])


def _refuse_other(preprocessing, features, categories, encoding, missing, texts):
    """Raises ValueError if an argument about features is not as in an earlier preprocessing."""
    columns = preprocessing.columns
    coded = {one.name for one in columns if one.categories is not None and not one.is_text}
    counted = {column.name for column in columns if column.is_text}
    names = [column.name for column in columns]
    given = {
        "feature_columns": (
            features,
            None if features is None else _names("feature_columns", features),
            (None, names),
        ),
        "category_columns": (
            categories,
            {*_names("category_columns", categories)} <= coded,
            (True,),
        ),
        "text_columns": (texts, {*_names("text_columns", texts)}, (set(), counted)),
        "encoding": (encoding, encoding, (ENCODINGS[0], preprocessing.encoding)),
        "missing": (missing, missing, (MISSING[0], "drop", preprocessing.missing)),
    }
    for name, (argument, value, may_be) in given.items():
        if value not in may_be:
            raise ValueError(
                f"`{name}` must be as in the earlier table, since the columns are prepared as "
                f"there; got {values.shown(argument)}. Leave out `{name}`."
            )


def refuse_lacking(source: pa.Table, needed: Sequence[str]) -> None:
    """Raises ValueError if a table lacks a column of an earlier one."""
    if lacking := [name for name in needed if name not in source.column_names]:
        raise ValueError(
            f"`table` must have the columns of the earlier table, {_first(needed)}; it lacks "
            f"{lacking[0]!r:.60}. Give it this column."
        )


def _names(argument, columns):
    """Returns names of columns as a list. Numbers, as in pandas, become text."""
    if isinstance(columns, str | int | np.integer) or not isinstance(columns, Iterable):
        columns = [columns]
    return list(map(_name, values.listed(argument, columns)))


def _name(column):
    return column if column is None or isinstance(column, str) else values.shown(column)


def _able(source, names, categories, encoding):
    """Returns the possible feature columns, and logs the excluded columns."""
    able, left = [], []
    for name in names:
        kind = source[name].type
        with contextlib.suppress(ValueError):
            array = reading.column(source, name, "feature_columns")
            is_text = name not in categories and preprocessing_lib.is_free_text(array, encoding)
            if not (is_text or reading.is_time(kind)):
                able.append(name)
                continue
            kind = f"{len(array.unique())} texts" if is_text else kind
        left.append(f"{name:.60} ({kind})")
    if left:
        log.info(
            f"{_first(left)} {'is' if len(left) == 1 else 'are'} left out: features are numbers, "
            "categories of several rows, and dates and times that are named"
        )
    return able


def with_values(
    rows: pa.Table, features: Sequence[str], missing: str, remedy: str, faults: Faults
) -> pa.Table:
    """Returns the rows with all required values. The remaining rows are faults or counted."""
    if missing == "refuse":
        with faults.collected():
            reading.refuse_missing(rows, remedy)
    # A mean fills features alone.
    filled = {*features} if missing != "drop" else ()
    needed = [name for name in rows.column_names if name not in filled]
    lack = [pc.is_null(rows[name]) for name in needed if rows[name].null_count]
    if not lack:
        return rows
    whole = rows.filter(pc.invert(functools.reduce(pc.or_, lack)))
    if not len(whole):
        faults.refuse()
        raise ValueError(
            "`table` must have rows without a missing value; got none. Remove columns with "
            "missing values from `feature_columns`, or choose `missing='mean'`."
        )
    if missing != "refuse":
        count = len(rows) - len(whole)
        log.info(f"{count} of {len(rows)} rows lack a value and are excluded")
    return whole
