"""Clients from a table with a column that names the client of each row."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_pflego.core.tasks import CLASSIFICATION
from tf_pflego.data.clients import ClientData
from tf_pflego.data.datasets.catalogue import Dataset, Examples
from tf_pflego.data.dealing import assign_clients
from tf_pflego.data.partitions.partition import Partition, by_owner, classes_of_owners
from tf_pflego.data.tables import AUTO, SMALL_CLIENTS, TEXT_WORDS, reading
from tf_pflego.data.tables.preprocessing import Preprocessing
from tf_pflego.data.tables.steps import Asked
from tf_pflego.system import values
from tf_pflego.system.errors import Faults


def from_table(
    table: Any,
    client_column: str,
    label_column: str | Sequence[str],
    feature_columns: Sequence[str] | None = None,
    *,
    split: float | str = 0.2,
    time_column: str | None = None,
    task: str = CLASSIFICATION,
    missing: str = "refuse",
    category_columns: Sequence[str] = (),
    text_columns: Sequence[str] = (),
    text_words: int = TEXT_WORDS,
    encoding: str = "one_hot",
    min_rows: int = 2,
    on_small_client: str = "refuse",
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
      client_column: The column with the client of each row, whole numbers or text, which are the
        clients' names. A text file keeps their spelling: 01 and 1 are two clients.
      label_column: The column to predict, or several columns. For classification its values, whole
        numbers or text, are the classes. For several labels each column has 0 and 1.
      feature_columns: The columns with numbers, truth values, text, or dates and times, which
        become days since 1970. None for all remaining columns except dates, times and free text.
      split: The test rows: a random share in (0, 1) of each client's rows; "last" or "last:0.3",
        the latest by `time_column`; or "column:NAME", the rows with test, 1 or true in the column
        NAME, where the training rows have train, 0 or false.
      time_column: The column for the order of a client's rows with `split="last"`: numbers, times
        or text in the format of ISO 8601. It is no feature. No other `split` uses it.
      task: The task, as in `SplitModel`.
      missing: The treatment of missing values: refuse; mean (a number becomes the mean, a category
        an unknown category, a row without a label is excluded); or drop (the row is excluded). With
        `preprocessing`, which contains a treatment, it may only be drop.
      category_columns: Numeric columns with categories. Columns of text are categories unless
        `text_columns` has them.
      text_columns: Columns of text with words as features: how often each word is in the text. A
        missing text has no words. The other columns of text are categories.
      text_words: The most words of each such column, the most frequent of the training rows. This
        vocabulary becomes known to everybody who gets a model, and a private run rejects it.
      encoding: The encoding of categories: one_hot, or codes for a body that begins with an
        Embedding. All features are categories then, and examples int32 [n, number of features].
      min_rows: The least number of rows of a client, at least 2.
      on_small_client: The treatment of clients with fewer rows, or without a training or a test
        row: refuse, drop, or merge into one client, others.
      label_space: As in `from_arrays`.
      seed: The seed for sampling test rows.
      preprocessing: The preprocessing of clients that these join or follow. It also numbers the
        classes, and determines the features. Further arguments about them must agree with it, and
        `text_words` is left out.
      separator: The character between the cells of a CSV file; auto for the header's separator.
      decimal: The character before the fractions of numbers in a CSV file, "." or ","; auto for a
        comma if cells look like 0,5.
      unpacked_mb: The most megabytes that a compressed or Parquet file may have in memory; 0 for a
        hundred times its own and 64.

    Raises:
      TypeError: `table` has another class.
      ValueError: The table cannot be read, lacks a column or a value, or has too few rows of a
        client, or an argument has an unsupported value. The message has a line for each fault.

    Example, explained in docs/tables.md:
      >>> table = {"shop": list("aabb"), "price": [1.0, 2.0, 3.0, 4.0], "sold": [0, 1, 0, 1]}
      >>> pfl.from_table(table, client_column="shop", label_column="sold", split=0.5).client_names
      ('a', 'b')
    """
    values.whole("min_rows", min_rows, 2)
    values.one_of("on_small_client", on_small_client, SMALL_CLIENTS)
    about = missing, feature_columns, category_columns, encoding, text_columns, text_words
    asked = Asked([client_column], label_column, split, time_column, task, preprocessing, *about)
    most, faults = values.whole("unpacked_mb", unpacked_mb, 0), Faults()
    how = asked.is_text, separator, decimal, asked.may_be_codes, most
    rows = asked.rows(reading.read(table, *how), faults)
    divided = asked.split(rows, min_rows, on_small_client, seed, faults)
    coded = asked.coded(divided, faults)
    num_outputs, count = coded.num_outputs, len(divided.names)
    classes: tuple[np.ndarray, ...] = (np.arange(num_outputs),) * count
    if task == CLASSIFICATION:
        classes = classes_of_owners(divided.owner, coded.labels, count)
    dataset = Dataset(
        os.path.basename(table) if isinstance(table, str | os.PathLike) else "table",
        Examples(coded.examples, coded.labels),
        None,
        num_outputs,
        coded.output_names,
        task,
        coded.preprocessing,
    )
    partition = Partition(
        classes,
        by_owner(np.where(divided.is_test, -1, divided.owner), count),
        by_owner(np.where(divided.is_test, divided.owner, -1), count),
    )
    return assign_clients(dataset, partition, label_space, client_names=tuple(divided.names))


def of_one_client(
    table: Any,
    label_column: Sequence[str],
    split: str,
    time_column: str | None,
    task: str,
    preprocessing: Preprocessing,
    missing: str,
    seed: int,
) -> dict[str, np.ndarray]:
    """Returns train_examples and so on for a table with rows of a single client.

    The arguments are as in `from_table`. Labels are names of classes, or else numbers.
    """
    asked = Asked([], label_column, split, time_column, task, preprocessing, missing)
    faults = Faults()
    rows = asked.rows(reading.read(table, asked.is_text), faults)
    divided = asked.split(rows, 2, SMALL_CLIENTS[0], seed, faults)
    coded = asked.coded(divided, faults)
    labels = coded.labels
    if task == CLASSIFICATION:
        labels = np.array(coded.output_names)[labels]
    return {
        f"{name}_{kind}": array[chosen]
        for name, chosen in (("train", ~divided.is_test), ("test", divided.is_test))
        for kind, array in (("examples", coded.examples), ("labels", labels))
    }
