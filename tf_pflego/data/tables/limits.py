"""Files of tables that have few bytes on the disk and would fill the memory are refused."""

import pathlib
from collections.abc import Sequence

import pyarrow as pa
from pyarrow import parquet

from tf_pflego.system import limited_files

_BYTES_OF_CELL = 8  # in memory, whatever a Parquet file needs for it
_BYTES_AT_ONCE = 2**22
_MOST_COLUMNS = 100_000  # of a text file; Arrow takes 16 kB for each
_REMEDY = "Write it uncompressed, or raise `unpacked_mb`"


def most_of(path: pathlib.Path, unpacked_mb: int) -> int:
    """Returns the limit in bytes of a table in memory; ValueError if its file is sparse."""
    status = path.stat()
    if status.st_size > limited_files.most_of(512 * status.st_blocks):
        raise ValueError("it is sparse. Write it as a file without gaps")
    return unpacked_mb * 10**6 or limited_files.most_of(status.st_size)


def refuse_many_bytes(path: pathlib.Path, most: int) -> None:
    """Raises ValueError if a compressed file has more bytes unpacked, before they fill memory."""
    left = most
    with pa.input_stream(path) as stream:
        while content := stream.read(_BYTES_AT_ONCE):
            left -= len(content)
            if left < 0:
                raise ValueError(f"it has more than {most} bytes unpacked. {_REMEDY}")


def refuse_many_columns(names: Sequence[str]) -> None:
    """Raises ValueError if a text file has more columns than fit into memory."""
    if len(names) > _MOST_COLUMNS:
        raise ValueError(f"it has {len(names)} columns; at most {_MOST_COLUMNS} are read")


def refuse_many_cells(path: pathlib.Path, most: int) -> None:
    """Raises ValueError if the cells of a Parquet file have more bytes in memory."""
    stored = parquet.read_metadata(path)
    if _BYTES_OF_CELL * stored.num_rows * stored.num_columns > most:
        raise ValueError(
            f"it has {stored.num_rows} rows of {stored.num_columns} columns, more than {most} "
            f"bytes. {_REMEDY}"
        )
