"""Tables as they come, files or objects of other libraries, as columns of plain values."""

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow_datasets as tfds
from pyarrow import csv, parquet

from tf_pflego.data.datasets import prepared
from tf_pflego.system import texts, values

_BATCH = 4096  # examples of TFDS
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_COMPRESSED = (".gz", ".bz2", ".zst")
_PARQUET = (".parquet", ".pq")


def read(table: Any) -> pa.Table:
    """Returns a file's rows, a frame's of pandas, a table's of pyarrow or a dictionary's."""
    name = "`table`"
    try:
        if isinstance(table, str | os.PathLike):
            name = f"`table` {os.fspath(table)}"
            table = _of_file(pathlib.Path(values.path("table", table, False)).expanduser())
        elif type(table).__module__.partition(".")[0] == "pandas":
            table = pa.Table.from_pandas(table, preserve_index=False)
        elif isinstance(table, Mapping) or hasattr(table, "__arrow_c_stream__"):
            table = pa.table(dict(table) if isinstance(table, Mapping) else table)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"{name} must be a whole table, of rows with the same columns; it cannot be read "
            f"({' '.join(str(error).split())[:200]}). Correct it."
        ) from error
    if not isinstance(table, pa.Table):
        raise TypeError(
            "`table` must be the path of a CSV or Parquet file, a frame of pandas, a table of "
            f"pyarrow or a dictionary of columns; got {type(table).__name__}. Give one of these."
        )
    columns = table.column_names
    twice = [column for column in columns if columns.count(column) > 1]
    if twice or not all(columns) or not len(table):
        got = f"the name {twice[0]!r} twice" if twice else "a column without a name"
        got = "no rows" if all(columns) and not twice else got
        raise ValueError(
            f"{name} must have rows, and columns with different names; got {got}. Correct it."
        )
    return table


def _of_file(path):
    if not path.is_file():
        there = "is no file" if path.exists() else "does not exist"
        raise prepared.DatasetError(
            f"`table` must be a file of rows; {path} {there}. Correct the path."
        )
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in _COMPRESSED]
    kind = suffixes[-1] if suffixes else ""
    if kind in _PARQUET:
        return parquet.read_table(path)
    if kind not in _SEPARATORS:
        raise ValueError(
            "`table` must be a file whose name ends with .csv, .tsv or .parquet, where .gz may "
            f"follow the first two; got {path.name!r}. Rename it if it is one of these."
        )
    # What is missing is missing in columns of text too, unless it stands in quotes.
    converted = csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
    parsed = csv.ParseOptions(delimiter=_SEPARATORS[kind])
    return csv.read_csv(path, parse_options=parsed, convert_options=converted)


def column(table: pa.Table, name: Any, argument: str) -> pa.ChunkedArray:
    """Returns a column that the user names in an argument: integers, floats, text or truth values.

    A float that is no number becomes a missing one. Times stay where rows are ordered by them.
    """
    if not isinstance(name, str) or name not in table.column_names:
        raise ValueError(
            f"`{argument}` must name columns of the table, which are "
            f"{', '.join(table.column_names[:20])}; got {values.shown(name)}. "
            f"{texts.suggestion(str(name), table.column_names)}Correct `{argument}`."
        )
    array = table[name]
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    kind = array.type
    if kind in (pa.large_string(), pa.string_view()):
        return array.cast(pa.string())
    if pa.types.is_decimal(kind):
        return array.cast(pa.float64())
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_nan(array), None, array)
    if pa.types.is_integer(kind) or kind in (pa.string(), pa.bool_()):
        return array
    if pa.types.is_temporal(kind) and argument == "time":
        return array
    got = "no value in any row" if pa.types.is_null(kind) else str(kind)
    remedy = " Write the file in UTF-8." if pa.types.is_binary(kind) else ""
    raise ValueError(
        f"the column {name!r} must be of numbers, text or truth values; got {got}.{remedy} Make "
        "numbers or text of it, or leave it out of `features`."
    )


def refuse_missing(array: pa.ChunkedArray, name: str, remedy: str = "") -> None:
    """Raises ValueError if a column lacks a value."""
    if array.null_count:
        raise ValueError(
            f"the column {name!r} must have a value in every row; {array.null_count} of "
            f"{len(array)} have none, the first is row {pc.index(array.is_null(), True).as_py()}. "
            f"Correct these rows, or choose {remedy}`missing='drop'`."
        )


def numbers(array: pa.ChunkedArray, name: str) -> np.ndarray:
    """Returns a column of numbers as [N] float32, NaN where there is none."""
    if array.type == pa.string():
        raise ValueError(
            f"the column {name!r} must be of numbers; got text, such as "
            f"{values.shown(array.drop_null()[0].as_py())}. Correct the column."
        )
    with np.errstate(over="ignore"):
        column = array.cast(pa.float64(), safe=False).to_numpy().astype(np.float32)
    row = int(np.argmax(np.isinf(column)))
    if np.isinf(column[row]):
        raise ValueError(
            f"the column {name!r} must be of finite numbers that float32 can hold; row {row} has "
            f"{array[row]}. Correct it."
        )
    return column


def categories(array: pa.ChunkedArray, name: str, remedy: str = "") -> pa.ChunkedArray:
    """Returns a column of categories as text or as int64."""
    if pa.types.is_floating(array.type):
        row = pc.index(pc.not_equal(array, pc.round(array)), True).as_py()
        if row >= 0:
            raise ValueError(
                f"the column {name!r} must be of whole numbers or of text; row {row} has "
                f"{array[row]}. {remedy}Choose another column."
            )
    return array if array.type == pa.string() else array.cast(pa.int64(), safe=False)


def distinct(array: pa.ChunkedArray) -> list[Any]:
    """Returns the different values of a column, ascending, without what is missing."""
    return sorted(array.unique().drop_null().to_pylist())


def positions(array: pa.ChunkedArray, among: list[Any]) -> np.ndarray:
    """Returns [N] int32, the position of each value among some; -1 if it is none of them."""
    of_all = pa.array(among, array.type)
    return pc.fill_null(pc.index_in(array, value_set=of_all), -1).to_numpy()


def of_dataset(name: str, data_dir: str | None, download: bool) -> pa.Table:
    """Returns the examples of a TFDS dataset, of all splits; the rest are as in `data.load`.

    The columns are those features of an example that are one number or one text.
    """
    builder = prepared.builder(name, data_dir, download, is_ours=False)
    with prepared.reading(name, str(builder.data_dir), "its examples"):
        features = {n: f for n, f in builder.info.features.items() if f.shape == ()}
        only = tfds.decode.PartialDecoding(dict.fromkeys(features, True))
        parts = []
        for split in builder.info.splits:
            batches = builder.as_dataset(split=split, batch_size=_BATCH, decoders=only)
            parts += [pa.table(batch) for batch in tfds.as_numpy(batches)]
        table = pa.concat_tables(parts)
        for column, feature in features.items():
            array = table[column]
            if pa.types.is_binary(array.type):
                array = array.cast(pa.string())
            elif names := getattr(feature, "names", None):  # Of classes they are the categories.
                array = pa.DictionaryArray.from_arrays(array.combine_chunks(), names)
            table = table.set_column(table.column_names.index(column), column, array)
        return table
