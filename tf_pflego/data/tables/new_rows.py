"""Rows of a later table as examples, without labels, with the preprocessing of an earlier one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tf_pflego.data.tables import AUTO, MISSING, reading
from tf_pflego.data.tables.preprocessing import Preprocessing
from tf_pflego.data.tables.steps import refuse_lacking, with_values
from tf_pflego.system import values
from tf_pflego.system.errors import Faults

_ROW = ""  # No column of a table has this name.


class NewRows(NamedTuple):
    """The rows that lack no value that a model needs, in the order of the table."""

    numbers: np.ndarray  # [n] int64, their places in the table, from 0 on
    clients: np.ndarray  # [n] the names of their clients
    examples: np.ndarray  # [n, ...] for a model


def read(
    table: Any,
    preprocessing: Preprocessing | None,
    missing: str = AUTO,
    separator: str = AUTO,
    decimal: str = AUTO,
) -> NewRows:
    """Returns the rows of a table with its column of clients and its features.

    Args:
      table, separator, decimal: As in `from_table`.
      preprocessing: The preprocessing of the clients that know the columns.
      missing: The treatment of missing values, as in `from_table`; auto is the one of the
        preprocessing.

    Raises:
      TypeError: `table` has another class.
      ValueError: There is no preprocessing, or the table cannot be read, lacks a column or a value,
        or has text in place of a number. It has a line for each fault.
    """
    if preprocessing is None or not preprocessing.client_column:
        raise ValueError(
            "`table` must not be given for a run without a table, since no columns of its "
            "examples are known. Predict examples with `client_model`."
        )
    missing = values.one_of("missing", missing, (AUTO, *MISSING))
    missing = preprocessing.missing if missing == AUTO else missing
    client, faults = preprocessing.client_column, Faults()
    features = [column.name for column in preprocessing.columns]
    of_text = {client, *preprocessing.text_columns}
    source = reading.read(table, of_text.__contains__, separator, decimal)
    refuse_lacking(source, [client, *features])
    columns: dict[str, Any] = {_ROW: np.arange(len(source))}
    for name in (client, *features):
        with faults.collected():
            columns[name] = reading.column(
                source, name, "client_column" if name == client else "feature_columns"
            )
    faults.refuse()
    rows = with_values(pa.table(columns), features, missing, "`missing='mean'` or ", faults)
    with faults.collected():
        names = np.array(reading.names(rows[client], client).to_pylist(), object)
    with faults.collected():
        examples = preprocessing.examples(rows)
    faults.refuse()
    return NewRows(rows[_ROW].to_numpy(), names, examples)
