"""Clients from a table, of which a column says whose row it is."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tf_pflego.core.tasks import CLASSIFICATION
from tf_pflego.data import labels as labels_lib
from tf_pflego.data.clients import ClientData
from tf_pflego.data.datasets.catalogue import Dataset, Examples
from tf_pflego.data.dealing import federate
from tf_pflego.data.partitions.partition import Partition, by_owner, classes_of_owners
from tf_pflego.data.tables import ENCODINGS, MISSING, SMALL_CLIENTS, reading, splitting, targets
from tf_pflego.data.tables import preprocessing as preprocessing_lib
from tf_pflego.data.tables.preprocessing import Preprocessing
from tf_pflego.system import terminal, values


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
) -> ClientData:
    """Returns clients with the rows of a table: each value of a column is a client.

    Numbers are standardised and categories become ones and zeros; `preprocessing` of the clients
    says how, and models that leave a run take the columns as the table has them. Of the test rows,
    only labels are looked at, and these only for the classes that there are.

    Args:
      table: The path of a CSV or Parquet file, a frame of pandas, a table of pyarrow, or a
        dictionary of columns.
      client: The column that says whose row it is, by whole numbers or text, which are the clients'
        names.
      label: The column to predict, or several of them. For classification its values, whole numbers
        or text, are the classes; for several labels each column has 0 and 1.
      features: The columns to predict from; None for all others. They are of numbers, truth values
        or text.
      test: Which rows are for the test: a share in (0, 1) of each client's, drawn by chance;
        "last" or "last:0.3", the latest by the column `time`; or "column:NAME", those in which the
        column NAME has test, 1 or true, and not train, 0 or false.
      time: The column by which `test="last"` orders the rows of a client; it is no feature.
      task: What is predicted, as in `SplitModel`.
      missing: What is done with rows that lack a value: they are refused; a number is the mean, and
        a category one that no training row has (mean); or the rows are left out (drop).
      categories: Columns of numbers that are categories; columns of text always are.
      encoding: What becomes of categories: one_hot, or codes for a body that begins with an
        Embedding. All features are categories then, and examples int32 [n, number of features].
      min_rows: How many rows a client must have, at least 2.
      small_clients: What is done with clients that have fewer, or that have no training row or no
        test row: refuse, drop, or merge into one client, others.
      label_space: As in `from_arrays`.
      seed: The seed of the draw of test rows.
      preprocessing: That of clients whom these are to join or to follow; what else says what
        features are is then not read.

    Raises:
      TypeError: `table` is something else.
      ValueError: The table cannot be read, lacks a column or a value, or has too few rows of a
        client; or an argument has a value that it does not take.
    """
    min_rows, task = values.whole("min_rows", min_rows, 2), labels_lib.check_task(task)
    values.one_of("small_clients", small_clients, SMALL_CLIENTS)
    if preprocessing is not None:
        values.instance("preprocessing", preprocessing, Preprocessing, "Take that of `ClientData`.")
        features = [column.name for column in preprocessing.columns]
        encoding, missing = preprocessing.encoding, preprocessing.missing
    values.one_of("encoding", encoding, ENCODINGS)
    values.one_of("missing", missing, MISSING)
    kind, about = splitting.kind_of_test(test)
    labels = [label] if isinstance(label, str) else list(label)
    columns = {
        "client": [client],
        "label": labels,
        "time": [time] if time or kind == "last" else [],
    }
    columns["test"] = [about] if kind == "column" else []
    rows, features, coded = _columns(reading.read(table), columns, features, categories)
    if missing == "drop" and len(whole := rows.drop_null()) < len(rows):
        count = len(rows) - len(whole)
        if not len(whole):
            raise ValueError(
                "`table` must have rows that lack no value; got none. Leave out what lacks them of "
                "`features`, or choose `missing='mean'`."
            )
        terminal.note(f"tf_pflego: {count} of {len(rows)} rows lack a value and are left out")
        rows = whole
    owner, names = splitting.owners(rows[client], client)
    is_test = splitting.said(rows[about], about) if kind == "column" else None
    owner, names = splitting.without_small(owner, names, is_test, min_rows, small_clients, client)
    if not (kept := owner >= 0).all():
        rows, owner = rows.filter(pa.array(kept)), owner[kept]
        is_test = None if is_test is None else is_test[kept]
    if is_test is None:
        order = (time, rows[time]) if time and kind == "last" else None
        is_test = splitting.drawn(owner, about, order, seed)
    inputs = rows.select(features)
    if missing == "refuse":
        for name in features:
            reading.refuse_missing(inputs[name], name, "`missing='mean'` or ")
    if preprocessing is None:
        preprocessing = preprocessing_lib.fit(inputs, ~is_test, coded, encoding, missing)
    targets_of_rows, num_classes, class_names = targets.of(rows, labels, task)
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


def _columns(source, columns, features, categories):
    """Returns the columns that are read, the features and which of them are categories."""
    taken = [name for names in columns.values() for name in names]
    if features is None:
        features = [name for name in source.column_names if name not in taken]
    features = [features] if isinstance(features, str) else list(features)
    roles = [*columns["client"], *columns["label"], *columns.get("test", ()), *features]
    twice = [name for name in roles if roles.count(name) > 1]
    if twice or not columns["label"] or not features:
        got = f"{twice[0]!r} twice" if twice else "no features" if not features else "no label"
        raise ValueError(
            "`client`, `label`, `features` and `test` must be different columns, with at least one "
            f"feature and one label; got {got}. Correct them."
        )
    rows = {
        name: reading.column(source, name, argument)
        for argument, names in (columns | {"features": features}).items()
        for name in names
    }
    if stray := [name for name in categories if name not in features]:
        raise ValueError(
            f"`categories` must be some of the features, {', '.join(features)}; got "
            f"{values.shown(stray[0])}. Correct `categories`."
        )
    coded = {name for name in features if pa.types.is_dictionary(source[name].type)}
    return pa.table(rows), features, coded.union(categories)
