"""The settings of a run on a table with a column for the client of each row, and its clients."""

import dataclasses
import functools
import os
from typing import Any

from tf_pflego.core import tasks
from tf_pflego.core.settings import Role, names_with, setting
from tf_pflego.data import tables
from tf_pflego.data.clients import ClientData
from tf_pflego.data.datasets import catalogue
from tf_pflego.data.tables.preprocessing import Preprocessing
from tf_pflego.system import values

_place = functools.partial(setting, role=Role.PLACE)
_of_data = functools.partial(setting, role=Role.DATA)
_of_table = functools.partial(_of_data, read_with={"client_column": None})
_of_file = functools.partial(_of_data, read_with={"table": None})
_of_rows = functools.partial(_of_table, role=Role.DATA | Role.ROWS)
_alike = functools.partial(_of_table, role=Role.DATA | Role.ALIKE)
_LISTS = "label_column", "feature_columns", "category_columns", "text_columns"


@dataclasses.dataclass(frozen=True)
class TableSettings:
    """A table of rows, as in --table=pupils.csv --client_column=school --label_column=passed."""

    table: str = _place(
        "", "file of rows, .csv, .tsv or .parquet, in place of a dataset", is_path=True
    )
    client_column: str = _of_data(
        "", "column that says whose row it is, of --table or of the examples of a TFDS dataset"
    )
    label_column: str = _of_rows("", "column to predict, or several, separated by commas")
    feature_columns: str = _of_table(
        "", "columns to predict from, separated by commas; empty for all others"
    )
    category_columns: str = _of_table("", "columns of numbers that are categories, as text is")
    text_columns: str = _of_table(
        "",
        "columns of text that are counts of words, separated by commas; other text is categories",
    )
    text_words: int = _of_table(
        tables.TEXT_WORDS,
        "most words of a text column, the most frequent of the training rows",
        at_least=1,
        read_with={"text_columns": None},
    )
    split: str = _of_rows(
        "random",
        "which rows are for the test: a share of each client's by chance or the last ones by time, "
        "as random:0.2 or last:0.2, or those in which a column says test or 1, as column:NAME",
    )
    time_column: str = _of_rows("", "column by which --split=last orders the rows of a client")
    separator: str = _of_file(tables.AUTO, "the character between cells, or the one in the header")
    decimal: str = _of_file(
        tables.AUTO, "the character before the fractions of numbers", choices=tables.DECIMALS
    )
    unpacked_mb: int = _place(
        0,
        "most megabytes that a compressed or Parquet file may have in memory; 0 for a hundred "
        "times its own and 64",
        at_least=0,
        read_with={"table": None},
    )
    task: str = _alike("classification", "what is predicted", choices=tasks.TASKS)
    missing: str = _of_table(
        "refuse",
        "rows that lack a value: refused, filled with means (mean) or left out (drop)",
        choices=tables.MISSING,
    )
    min_rows: int = _of_table(2, "least number of a client's rows", at_least=2)
    on_small_client: str = _of_table(
        "refuse",
        "clients with fewer rows: refused, left out (drop) or merged into one, others (merge)",
        choices=tables.SMALL_CLIENTS,
    )


def check_source(config: Any) -> None:
    """Raises ValueError unless a configuration names either a dataset or a table.

    The dataset has the name of the table's file.
    """
    if not (config.table or config.client_column):
        values.one_of("dataset", config.dataset, catalogue.NAMES)
        return
    if config.table:
        name = os.path.basename(config.table)
        if config.dataset not in (name, catalogue.NAMES[0]):
            raise ValueError(
                f"`dataset` must not be given with `table`; got {config.dataset}. Give one."
            )
        object.__setattr__(config, "dataset", name)
        # The run is read from other working directories too.
        object.__setattr__(config, "table", os.path.abspath(os.path.expanduser(config.table)))
    for name in ("client_column", "label_column"):
        if not getattr(config, name):
            raise ValueError(f"`{name}` must name a column of the table; got none. Give it.")
    for name in names_with(Role.DEALING, type(config)):
        field = type(config).__dataclass_fields__[name]
        if not field.metadata["read_with"] and getattr(config, name) != field.default:
            raise ValueError(
                f"`{name}` must not be given with `client_column`, since its values are the "
                f"clients; got {getattr(config, name)}. Leave it out."
            )


def clients_of(run_config: Any, preprocessing: Preprocessing | None = None) -> ClientData:
    """Returns the clients of a run's table, with new or earlier preprocessing."""
    from tf_pflego.data.tables import rows_to_clients, tfds_examples  # They take pyarrow.

    given = {one.name: getattr(run_config, one.name) for one in dataclasses.fields(TableSettings)}
    given |= {name: _names(given[name]) for name in _LISTS}
    given |= {name: given[name] or None for name in ("feature_columns", "time_column")}
    if preprocessing is not None:
        del given["text_words"]  # It has the words.
    where = run_config.data_dir or None, run_config.download
    given["table"] = given["table"] or tfds_examples.of_dataset(run_config.dataset, *where)
    given |= {"label_space": run_config.label_space, "seed": run_config.seed}
    clients = rows_to_clients.from_table(**given, preprocessing=preprocessing)
    class_mask = run_config.class_mask and run_config.label_space == "global"
    return dataclasses.replace(clients, class_mask=class_mask, dataset=run_config.dataset)


def _names(text):
    return [name.strip() for name in text.split(",") if name.strip()]
