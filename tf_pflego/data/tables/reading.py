"""Tables from files or objects of other libraries, as columns of plain values."""

import codecs
import contextlib
import csv as python_csv
import io
import os
import pathlib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet

from tf_pflego.data import checks
from tf_pflego.data.datasets import prepared
from tf_pflego.data.tables import AUTO, DECIMALS, limits
from tf_pflego.system import texts, values

_SEPARATORS = {".csv": ",;\t|", ".tsv": "\t"}  # The first is that of a header with none of them.
_COMPRESSED = (".gz", ".bz2", ".zst")
_PARQUET = (".parquet", ".pq")
_HEAD_BYTES = 2**22  # of a file, which has its header there
_BLOCK_BYTES = 2**25  # A row of a file has to fit into a block.
_UNREADABLE = (
    *(pa.ArrowException, python_csv.Error, OSError),
    *(ValueError, TypeError, KeyError, OverflowError),
)
_INEXACT_FROM = {32: 2**24, 64: 2**53}  # which floats, by their bits, skip whole numbers
_PER_SECOND = {"s": 1e0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_WHOLE = re.compile(r"-?[0-9]{1,40}")
_PLAIN_NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"


def read(
    table: Any,
    is_text: Callable[[str], bool] = lambda name: False,
    separator: str = AUTO,
    decimal: str = AUTO,
    may_be_codes: Callable[[str], bool] = lambda name: False,
    unpacked_mb: int = 0,
) -> pa.Table:
    """Returns a file's rows, a frame's of pandas, a table's of pyarrow or a dictionary's.

    In a text file, columns with names for which `is_text` is true are not changed. Whole numbers
    with leading zeros are text if they `may_be_codes`. A pandas index is no column.
    """
    values.one_of("decimal", decimal, DECIMALS)
    size = len(separator.encode("utf-8", "surrogatepass")) if isinstance(separator, str) else 0
    if size != 1 and not values.is_word(separator, AUTO):
        raise ValueError(
            "`separator` must be one character, as between two cells of the file; got "
            f"{values.shown(separator)}. Correct it, or leave it out."
        )
    if isinstance(table, str | os.PathLike):
        table = pathlib.Path(values.path("table", table, False)).expanduser()
    is_text_file = isinstance(table, pathlib.Path) and table.suffix.lower() not in _PARQUET
    if not is_text_file and (separator, decimal) != (AUTO, AUTO):
        raise ValueError(
            "`separator` and `decimal` must not be given for a table that is no CSV file; got "
            f"{values.shown(separator)} and {values.shown(decimal)}. Remove both."
        )
    name = f"`table` {table}" if isinstance(table, pathlib.Path) else "`table`"
    try:
        if isinstance(table, pathlib.Path):
            table = _of_file(table, is_text, separator, decimal, may_be_codes, unpacked_mb)
        elif isinstance(table, Mapping) or _is_of_pandas(table):
            table = _of_columns(table.items())
        elif hasattr(table, "__arrow_c_stream__"):
            table = pa.table(table)
        if not is_text_file and isinstance(table, pa.Table):
            table.validate(full=True)  # Its bytes need not be what its types say.
    except prepared.DatasetError:
        raise
    except _UNREADABLE as error:
        raise ValueError(
            f"{name} must be a whole table, of rows with the same columns; it cannot be read "
            f"({texts.reason(error)}). Correct it."
        ) from error
    if not isinstance(table, pa.Table):
        raise TypeError(
            "`table` must be the path of a CSV or Parquet file, a frame of pandas, a table of "
            f"pyarrow or a dictionary of columns; got {type(table).__name__}. Give one of these."
        )
    indices = (table.schema.pandas_metadata or {}).get("index_columns", ())
    table = table.drop_columns([one for one in indices if one in table.column_names])
    columns = table.column_names
    twice = [column for column, count in Counter(columns).items() if count > 1]
    if twice or not all(columns) or not len(table):
        got = f"the name {twice[0]!r} twice" if twice else "a column without a name"
        got += ", as an index of pandas is without `index=False`" * (not twice)
        got = "no rows" if all(columns) and not twice else got
        raise ValueError(
            f"{name} must have rows, and columns with different names; got {got}. Correct it."
        )
    return table


def _is_of_pandas(table):
    return type(table).__module__.partition(".")[0] == "pandas" and hasattr(table, "columns")


def _of_columns(columns):
    names, arrays = [], list[pa.ChunkedArray]()
    for name, cells in columns:
        if hasattr(cells, "columns") or isinstance(cells, Mapping):
            raise ValueError(
                f"a dictionary must be of columns; {name!r:.60} is a table itself. Put the tables "
                "of all clients end to end, with a column for the client of each row"
            )
        try:
            try:
                arrays += pa.table({"": cells}).columns
            except OverflowError:
                arrays += pa.table({"": pa.array(cells, pa.uint64())}).columns
        except OverflowError:
            raise ValueError(f"the column {name!r:.60} has larger integers. Make text") from None
        except _UNREADABLE as error:
            checks.refuse_sparse(cells, f"the column {name!r:.60}")
            raise ValueError(f"the column {name!r:.60}: {error}") from error
        names.append(str(name))
    return pa.Table.from_arrays(arrays, names)


def _of_file(path, is_text, separator, decimal, may_be_codes, unpacked_mb):
    if not path.is_file():
        there = "is no file" if path.exists() else "does not exist"
        raise prepared.DatasetError(
            f"`table` must be a file of rows; {path} {there}. Correct the path."
        )
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in _COMPRESSED]
    kind = suffixes[-1] if suffixes else ""
    most = limits.most_of(path, unpacked_mb)
    if kind in _PARQUET:
        limits.refuse_many_cells(path, most)
        return parquet.read_table(path, partitioning=None)  # Directories add no columns.
    if kind not in _SEPARATORS:
        raise prepared.DatasetError(
            "`table` must be a .csv, .tsv or .parquet file, and the first two may be compressed "
            f"(.gz); got {path.name!r}. Rename it if it is one of these."
        )
    if path.suffix.lower() in _COMPRESSED:
        limits.refuse_many_bytes(path, most)
    header = _header(path)
    outside_quotes = re.sub('"[^"]*"', "", header).partition("\n")[0]
    if separator == AUTO:
        separator = max(_SEPARATORS[kind], key=outside_quotes.count)
    names = next(python_csv.reader(io.StringIO(header), delimiter=separator), [])
    limits.refuse_many_columns(names)

    def parsed(decimal, only=(), is_text=is_text, quoted=False):
        # Missing values are missing in columns of text too, unless they stand in quotes.
        converted = csv.ConvertOptions(
            column_types={name: pa.string() for name in names if is_text(name)},
            strings_can_be_null=True,
            quoted_strings_can_be_null=quoted,
            decimal_point=decimal,
            include_columns=only,
        )
        form = csv.ParseOptions(delimiter=separator, newlines_in_values=True)
        try:
            return csv.read_csv(path, csv.ReadOptions(block_size=_BLOCK_BYTES), form, converted)
        except pa.ArrowInvalid as error:
            said = str(error).replace("invalid UTF8 data", "Write the file in UTF-8")
            named = re.sub(r"CSV column #(\d+)", lambda m: repr(names[int(m[1])]), said)
            raise ValueError(named) from error

    def read_with(decimal):
        table = parsed(decimal)
        if table.column_names != names:  # Types were given by name.
            raise ValueError("its first row has quotes or breaks that can be read in two ways")
        if len({*names}) < len(names):  # It is refused later.
            return table
        free = {name: table[name] for name in names if not is_text(name)}
        # No value in quotes makes text of numbers, and numbers lose the zeros in front of codes.
        gaps = [name for name, cells in free.items() if _has_empty_text(cells)]
        whole = [name for name, cells in free.items() if may_be_codes(name) and _are_whole(cells)]
        others = [(parsed(decimal, gaps, quoted=True), _is_no_text)] if gaps else []
        others += [(parsed(decimal, whole, lambda name: True), _has_codes)] if whole else []
        for other, is_better in others:
            for name, cells in zip(other.column_names, other.columns, strict=True):
                if is_better(cells):
                    table = table.set_column(names.index(name), name, cells)
        return table

    table = read_with("." if decimal == AUTO else decimal)
    if decimal == AUTO and any(
        _has_decimal_commas(cells)
        for name, cells in zip(table.column_names, table.columns, strict=True)
        if cells.type == pa.string() and not is_text(name)
    ):
        return read_with(",")
    return table


def _has_empty_text(cells):
    empty = pa.array(csv.ConvertOptions().null_values)
    return cells.type == pa.string() and pc.any(pc.is_in(cells, empty)).as_py()


def _is_no_text(cells):
    return cells.type != pa.string()


def _are_whole(cells):
    """Returns whether cells are whole numbers, including floats beyond int64's range."""
    if pa.types.is_floating(cells.type):
        return pc.all(pc.equal(cells, pc.floor(cells))).as_py()
    return pa.types.is_integer(cells.type)


def _has_codes(cells):
    """Returns whether a text is digits that begin with a zero, as numbers do not."""
    return pc.any(pc.match_substring_regex(cells, r"^0\d+$")).as_py()


def _has_decimal_commas(cells):
    """Returns whether all are numbers, some with a comma that cannot separate thousands."""
    number = r"^\s*[-+]?\d*(,\d+)?([eE][-+]?\d+)?\s*$"
    thousands = r"^\s*[-+]?(\d+|[1-9]\d{0,2},\d{3})\s*$"
    cells = cells.filter(pc.not_equal(cells, "")).unique()
    are_numbers, may_be_whole = (
        pc.all(pc.match_substring_regex(cells, form)).as_py() for form in (number, thousands)
    )
    return are_numbers and not may_be_whole


def _header(path):
    """Returns the beginning of a text file, with its first row."""
    with pa.input_stream(path) as stream:
        head = stream.read(_HEAD_BYTES).removeprefix(codecs.BOM_UTF8).lstrip(b"\r\n")
    row = re.split(b"[\r\n]", head, maxsplit=1)[0]
    try:
        if b"\0" in row or head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise ValueError("it looks like UTF-16")
        row.decode()
    except ValueError as error:
        raise ValueError(f"{error}: its header is not in UTF-8. Write the file in UTF-8") from None
    return re.sub("\r\n?", "\n", head.decode(errors="replace"))


def refuse_absent(table: pa.Table, names: Sequence[Any], argument: str) -> None:
    """Raises ValueError if the user names columns in an argument that a table lacks."""
    columns = dict.fromkeys(table.column_names)
    if absent := [name for name in names if not isinstance(name, str) or name not in columns]:
        other = "Say `separator` if the file has another. " if len(columns) == 1 else ""
        raise ValueError(
            f"`{argument}` must name columns of the table, which are "
            f"{', '.join(map(repr, [*columns][:20]))}; got "
            f"{', '.join(map(values.shown, absent[:20]))}. "
            f"{texts.suggestion(str(absent[0]), columns)}{other}Correct `{argument}`."
        )


def column(table: pa.Table, name: str, argument: str) -> pa.ChunkedArray:
    """Returns a column that the user names in an argument: numbers, text or truth values.

    NaN and text without a character become missing values. Dates and times stay if rows are ordered
    by them, and as features become days since 1970.
    """
    array = table[name]
    if pa.types.is_dictionary(array.type):
        chunks = [pc.take(_plain(chunk.dictionary), chunk.indices) for chunk in array.chunks]
        array = pa.chunked_array(chunks, None if chunks else pa.string())
    kind = (array := _plain(array)).type
    if kind == pa.float16():  # Arrow has few operations for it.
        array = pa.chunked_array([pa.array(array.to_numpy().astype(np.float32))])
    if pa.types.is_floating(array.type):
        return pc.if_else(pc.is_nan(array), None, array)
    if kind == pa.string():
        return pc.if_else(pc.equal(pc.utf8_trim_whitespace(array), ""), None, array)
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind) or kind == pa.bool_():
        return array
    if is_time(kind) and argument in ("time_column", "feature_columns"):
        return array if argument == "time_column" else _days(array)
    got = "no value in any row" if pa.types.is_null(kind) else str(kind)
    remedy = " Write the file in UTF-8." if pa.types.is_binary(kind) else ""
    raise ValueError(
        f"the column {name!r} must be of numbers, text or truth values; got {got}.{remedy} Make "
        "numbers or text of it, or leave it out of `feature_columns`."
    )


def is_time(kind: pa.DataType) -> bool:
    """Returns whether values are dates, moments, times of a day or durations."""
    return pa.types.is_temporal(kind) and not pa.types.is_interval(kind)


def _days(array):
    """Returns dates and times as days, float64."""
    if pa.types.is_date(array.type):
        array = array.cast(pa.timestamp("ms"))
    whole = array.cast(pa.int32()) if pa.types.is_time32(array.type) else array
    whole = whole.cast(pa.int64()).cast(pa.float64(), safe=False)
    return pc.divide(whole, 86400 * _PER_SECOND[array.type.unit])


def _plain(array):
    is_text = array.type in (pa.large_string(), pa.string_view())
    return array.cast(pa.string()) if is_text else array


def refuse_missing(table: pa.Table, remedy: str = "") -> None:
    """Raises ValueError if a column lacks a value."""
    lacking = [name for name in table.column_names if table[name].null_count]
    if lacking:
        array = table[lacking[0]]
        more = ", ".join(f"{table[name].null_count} of {name!r:.60}" for name in lacking[1:20])
        raise ValueError(
            f"the column {lacking[0]!r} must have a value in every row; {array.null_count} of "
            f"{len(array)} have none, the first is row {pc.index(array.is_null(), True).as_py()}"
            f"{more and f', and so have {more}'}. An empty cell is no value, nor in a file NA and "
            f"the like without quotes. Correct these rows, or choose {remedy}`missing='drop'`."
        )


def numbers(array: pa.ChunkedArray, name: str, remedy: str = "") -> np.ndarray:
    """Returns a column of numbers as [N] float64, NaN where there is none."""
    if array.type == pa.string():
        some = array.drop_null()
        row = pc.index(pc.match_substring_regex(some, _PLAIN_NUMBER), False).as_py()
        got = f"got text, such as {values.shown(some[max(row, 0)].as_py())}. {remedy}"
        raise ValueError(f"the column {name!r} must be of numbers; {got}Correct the column.")
    column = array.cast(pa.float64(), safe=False).to_numpy()
    is_huge = np.abs(column) > np.finfo(np.float32).max
    row = int(np.argmax(is_huge))
    if is_huge[row]:
        raise ValueError(
            f"the column {name!r} must be of finite numbers within float32; row {row} has "
            f"{array[row]}. Correct it."
        )
    return column


def categories(array: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Returns a column of categories as text or as int64."""
    array = _whole(array, name, "")
    if array.type == pa.string():
        return array
    try:
        return array.cast(pa.int64())
    except pa.ArrowInvalid:
        raise ValueError(
            f"the column {name!r} must be of text or of numbers within int64; got larger ones. "
            "Make text of them."
        ) from None


def names(array: pa.ChunkedArray, name: str, remedy: str = "") -> pa.ChunkedArray:
    """Returns a column of clients or classes as text, as the table has it."""
    return _whole(array, name, remedy).cast(pa.string())


def _whole(array, name, remedy):
    """Returns a column of text, truth values or integers, and rejects other numbers."""
    if pa.types.is_decimal(array.type):
        whole = pa.decimal256(76, 0)
        with contextlib.suppress(pa.ArrowInvalid):
            return array.cast(whole)
        raise ValueError(
            f"the column {name!r} must be of whole numbers or of text; got {array.type} with "
            f"fractions. {remedy}Choose another column."
        )
    if not pa.types.is_floating(array.type):
        return array
    row = pc.index(pc.not_equal(array, pc.round(array)), True).as_py()
    if row >= 0:
        raise ValueError(
            f"the column {name!r} must be of whole numbers or of text; row {row} has "
            f"{array[row]}. {remedy}Choose another column."
        )
    limit = _INEXACT_FROM[array.type.bit_width]
    row = pc.index(pc.greater_equal(pc.abs(array), limit), True).as_py()
    if row >= 0:
        raise ValueError(
            f"the column {name!r} must be of integers or of text; row {row} has {array[row]}, and "
            f"{array.type} cannot distinguish integers from {limit} on. Read it as text."
        )
    return array.cast(pa.int64())


def distinct(array: pa.ChunkedArray) -> list[Any]:
    """Returns the different values of a column, ascending, without missing ones.

    If all texts are whole numbers, they are ordered as numbers.
    """
    found = array.unique().drop_null().to_pylist()
    if array.type == pa.string() and all(map(_WHOLE.fullmatch, found)):
        return sorted(found, key=lambda text: (int(text), text))
    return sorted(found)


def positions(array: pa.ChunkedArray, among: list[Any]) -> np.ndarray:
    """Returns [N] int32, the position of each value in a list, or -1 if it is absent."""
    of_all = pa.array(among, array.type)
    return pc.fill_null(pc.index_in(array, value_set=of_all), -1).to_numpy()
