"""Clients from a table in which a column names the client of each row."""

import contextlib
import dataclasses
import functools
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tf_pflego.core.tasks import CLASSIFICATION
from tf_pflego.data import labels as labels_lib
from tf_pflego.data.clients import ClientData
from tf_pflego.data.datasets.catalogue import Dataset, Examples
from tf_pflego.data.dealing import federate
from tf_pflego.data.partitions.partition import Partition, by_owner, classes_of_owners
from tf_pflego.data.tables import (
    AUTO,
    ENCODINGS,
    MISSING,
    SMALL_CLIENTS,
    reading,
    splitting,
    targets,
)
from tf_pflego.data.tables import preprocessing as preprocessing_lib
from tf_pflego.data.tables.preprocessing import Preprocessing
from tf_pflego.system import log, values
from tf_pflego.system.errors import Faults


def from_table(
    table: Any,
    client: str,
    label: str | Sequence[str],
    features: Sequence[str] | None = None,
    *,
    test: float | str = 0.2,
    time: str | None = None,
    task: str = CLASSIFICATION,
    missing: str = "refuse",
    categories: Sequence[str] = (),
    encoding: str = "one_hot",
    min_rows: int = 2,
    small_clients: str = "refuse",
    label_space: str = "local",
    seed: int = 0,
    preprocessing: Preprocessing | None = None,
    separator: str = AUTO,
    decimal: str = AUTO,
    unpacked_mb: int = 0,
) -> ClientData:
    """Returns clients with the rows of a table: each value of a column is a client.

    Numbers are standardised and categories become ones and zeros. The clients' `preprocessing` has
    the values, and exported models take the columns of the table. Only the labels of test rows are
    read, for the set of classes.

    Args:
      table: The path of a CSV or Parquet file, a frame of pandas, a table of pyarrow, or a
        dictionary of columns.
      client: The column with the client of each row, whole numbers or text, which are the clients'
        names. A text file keeps their spelling: 01 and 1 are two clients.
      label: The column to predict, or several of them. For classification its values, whole numbers
        or text, are the classes; for several labels each column has 0 and 1.
      features: The columns to predict from, of numbers, truth values, text, or dates and times,
        which become days since 1970; None for all others but dates, times and free text.
      test: Which rows are for the test: a share in (0, 1) of each client's, drawn by chance;
        "last" or "last:0.3", the latest by the column `time`; or "column:NAME", those in which the
        column NAME has test, 1 or true, and not train, 0 or false.
      time: The column by which `test="last"` orders the rows of a client, of numbers, times or text
        as in ISO 8601; it is no feature. Another `test` takes none.
      task: The task, as in `SplitModel`.
      missing: The treatment of missing values: refuse; mean (a number becomes the mean, a category
        one that no training row has, a row without a label is left out); or drop (the row is left
        out). With `preprocessing`, which has a treatment of its own, it may only be drop.
      categories: Columns of numbers that are categories; columns of text always are.
      encoding: The encoding of categories: one_hot, or codes for a body that begins with an
        Embedding. All features are categories then, and examples int32 [n, number of features].
      min_rows: The least number of rows of a client, at least 2.
      small_clients: The treatment of clients with fewer rows, or without a training or a test row:
        refuse, drop, or merge into one client, others.
      label_space: As in `from_arrays`.
      seed: The seed of the draw of test rows.
      preprocessing: The preprocessing of clients that these join or follow. It also numbers the
        classes, and says all about features; other arguments about them must agree with it.
      separator: The character between the cells of a CSV file; auto for the one in its header.
      decimal: The character before the fractions of numbers in a CSV file, "." or ","; auto for a
        comma where cells such as 0,5 have one.
      unpacked_mb: The most megabytes that a compressed or Parquet file may have in memory; 0 for a
        hundred times its own and 64.

    Raises:
      TypeError: `table` has another class.
      ValueError: The table cannot be read, lacks a column or a value, or has too few rows of a
        client; or an argument has a value that it does not take. It has a line for each fault.
    """
    min_rows, task = values.whole("min_rows", min_rows, 2), labels_lib.check_task(task)
    values.one_of("small_clients", small_clients, SMALL_CLIENTS)
    if preprocessing is not None:
        values.instance("preprocessing", preprocessing, Preprocessing, "Take that of `ClientData`.")
        _refuse_other(preprocessing, features, categories, encoding, missing)
        features = [column.name for column in preprocessing.columns]
        encoding = preprocessing.encoding
        missing = missing if missing == "drop" else preprocessing.missing  # It is of rows.
    values.one_of("encoding", encoding, ENCODINGS)
    values.one_of("missing", missing, MISSING)
    time = None if values.is_word(time, "") else time
    kind, about = splitting.kind_of_test(test)
    client, labels = _name(client), _names("label", label)
    categories = _names("categories", categories)
    columns = {
        "client": [client],
        "label": labels,
        "time": [] if time is None and kind != "last" else _names("time", time),
    }
    columns["test"] = [about] if kind == "column" else []
    if time is not None and kind != "last":
        raise ValueError(
            "`time` must be left out unless `test` is last, which alone reads it; got "
            f"{values.shown(time)}. Choose `test='last:0.2'`, or leave out `time`."
        )
    features = None if features is None else _names("features", features)

    # Names of clients, classes and categories stay as they are written.
    as_text = {str(name) for name in (client, *labels * (task == CLASSIFICATION))}
    as_text |= set(map(str, categories)) if preprocessing is None else preprocessing.text_columns
    others = {str(name) for name in (*labels, *columns["time"], *columns["test"])}
    are_coded = encoding == "codes" and preprocessing is None

    def is_text(name):
        return name in as_text or (are_coded and name not in others)

    def may_be_codes(name):
        return preprocessing is None and name not in others

    most = values.whole("unpacked_mb", unpacked_mb, 0)
    source = reading.read(table, is_text, separator, decimal, may_be_codes, most)
    if preprocessing is not None:
        _refuse_lacking(source.column_names, [column.name for column in preprocessing.columns])
    faults = Faults()
    rows, features, coded = _columns(source, columns, features, categories, encoding, faults)
    remedy = "`missing='mean'` or " if preprocessing is None else ""
    rows = _with_values(rows, features, missing, remedy, faults)
    names: list[str] = []
    owner, is_test = np.zeros(len(rows), int), np.zeros(len(rows), bool)
    if all(name in rows.column_names for name in (client, *columns["time"], *columns["test"])):
        with faults.collected():
            owner, names = splitting.owners(rows[client], client)
            said = splitting.said(rows[about], about) if kind == "column" else None
            of_kept = splitting.without_small(owner, names, said, min_rows, small_clients, client)
            kept = of_kept[0] >= 0
            rows, owner, names = rows.filter(pa.array(kept)), of_kept[0][kept], of_kept[1]
            order = next(((name, rows[name]) for name in columns["time"]), None)
            is_test = splitting.drawn(owner, about, order, seed) if said is None else said[kept]
    known = None if preprocessing is None else preprocessing.class_names
    if labels and all(name in rows.column_names for name in labels):
        with faults.collected():
            targets_of_rows, num_classes, class_names = targets.of(rows, labels, task, known)
    inputs = rows.select(features)
    if preprocessing is None:
        preprocessing = preprocessing_lib.fit(inputs, ~is_test, coded, encoding, missing, faults)
        faults.refuse()
        if task == CLASSIFICATION:
            preprocessing = dataclasses.replace(preprocessing, class_names=class_names)
    faults.refuse()
    log.info(_what_becomes(labels, class_names if task == CLASSIFICATION else (), preprocessing))
    classes: tuple[np.ndarray, ...] = (np.arange(num_classes),) * len(names)
    if task == CLASSIFICATION:
        classes = classes_of_owners(owner, targets_of_rows, len(names))
    dataset = Dataset(
        os.path.basename(table) if isinstance(table, str | os.PathLike) else "table",
        Examples(preprocessing.examples(inputs), targets_of_rows),
        None,
        num_classes,
        class_names,
        task,
        preprocessing,
    )
    partition = Partition(
        classes,
        by_owner(np.where(is_test, -1, owner), len(names)),
        by_owner(np.where(is_test, owner, -1), len(names)),
    )
    return federate(dataset, partition, label_space, client_names=tuple(names))


def _what_becomes(labels, class_names, preprocessing):
    """Returns which columns are predicted from which, and the classes by their numbers."""
    kinds: dict[str, list[str]] = {"numbers": [], "categories": []}
    for column in preprocessing.columns:
        kinds["numbers" if column.categories is None else "categories"].append(column.name)
    classes = _first([f"{number} {name}" for number, name in enumerate(class_names)])
    of_classes = f" ({classes})" if classes else ""
    columns = " and ".join(f"the {kind} {_first(names)}" for kind, names in kinds.items() if names)
    return f"{_first(labels)}{of_classes} will be predicted from {columns}"


def _first(names):
    """Returns the names, each cut to a length, or twenty and a sign that there are more."""
    return ", ".join([*(f"{name:.60}" for name in names[:20]), *["..."] * (len(names) > 20)])


def _refuse_other(preprocessing, features, categories, encoding, missing):
    """Raises ValueError if an argument about features is not as in an earlier preprocessing."""
    columns = preprocessing.columns
    coded = [column.name for column in columns if column.categories is not None]
    names = [column.name for column in columns]
    given = {
        "features": (
            features,
            None if features is None else _names("features", features),
            (None, names),
        ),
        "categories": (categories, {*_names("categories", categories)} <= {*coded}, (True,)),
        "encoding": (encoding, encoding, (ENCODINGS[0], preprocessing.encoding)),
        "missing": (missing, missing, (MISSING[0], "drop", preprocessing.missing)),
    }
    for name, (argument, value, may_be) in given.items():
        if value not in may_be:
            raise ValueError(
                f"`{name}` must be as in the earlier table, since the columns become what they "
                f"became there; got {values.shown(argument)}. Leave out `{name}`."
            )


def _refuse_lacking(names, needed):
    """Raises ValueError if a table lacks a column of an earlier one."""
    if lacking := [name for name in needed if name not in names]:
        raise ValueError(
            f"`table` must have the columns of the earlier table, {_first(needed)}; it lacks "
            f"{lacking[0]!r:.60}. Give it this column."
        )


def _names(argument, columns):
    """Returns names of columns as a list; those that are numbers, as of pandas, become text."""
    if isinstance(columns, str | int | np.integer) or not isinstance(columns, Iterable):
        columns = [columns]
    return list(map(_name, values.listed(argument, columns)))


def _name(column):
    return column if column is None or isinstance(column, str) else values.shown(column)


def _columns(source, columns, features, categories, encoding, faults):
    """Returns the columns that are read, the features and which of them are categories."""
    if features is None:
        taken = {str(name) for names in columns.values() for name in names}
        others = [name for name in source.column_names if name not in taken]
        features = _able(source, others, categories, encoding)
    rows, there = {}, {*source.column_names}
    for argument, names in (columns | {"features": features}).items():
        with faults.collected():
            reading.refuse_absent(source, names, argument)
        for name in filter(there.__contains__, map(str, names)):
            with faults.collected():
                rows[name] = reading.column(source, name, argument)
    roles = [*columns["client"], *columns["label"], *columns["test"], *features]
    twice = [name for name, count in Counter(map(str, roles)).items() if count > 1]
    with faults.collected():
        if twice or not columns["label"] or not features:
            got = f"{twice[0]!r} twice" if twice else "no features" if not features else "no label"
            raise ValueError(
                "`client`, `label`, `features` and `test` must be different columns, with at least "
                f"one feature and one label; got {got}. Correct them."
            )
    with faults.collected():
        if stray := sorted({*map(str, categories)}.difference(features)):
            raise ValueError(
                f"`categories` must be some of the features, {', '.join(map(repr, features[:20]))};"
                f" got {values.shown(stray[0])}. Correct `categories`."
            )
    features = [name for name in features if name in rows]
    coded = {name for name in features if pa.types.is_dictionary(source[name].type)}
    return pa.table(rows), features, coded.union(categories)


def _able(source, names, categories, encoding):
    """Returns the columns that can be features; a log line says which cannot."""
    able, left = [], []
    for name in names:
        kind = source[name].type
        with contextlib.suppress(ValueError):
            array = reading.column(source, name, "features")
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


def _with_values(rows, features, missing, remedy, faults):
    """Returns the rows that have the values that they need; the others are faults or counted."""
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
            "`table` must have rows that lack no value; got none. Leave out what lacks them of "
            "`features`, or choose `missing='mean'`."
        )
    if missing != "refuse":
        count = len(rows) - len(whole)
        log.info(f"{count} of {len(rows)} rows lack a value and are left out")
    return whole
