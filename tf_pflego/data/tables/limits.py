"""Files of tables that have few bytes on the disk and would fill the memory are refused."""

import io
import pathlib
from collections.abc import Sequence

import pyarrow as pa
from pyarrow import parquet

from tf_pflego.system import limited_files

_BYTES_OF_CELL = 8  # in memory, whatever a Parquet file needs for it
_MOST_COLUMNS = 100_000  # of a text file; Arrow takes 16 kB for each
_REMEDY = "Write it uncompressed, or raise `unpacked_mb`"


class Unpacked(io.RawIOBase):
    """A stream of the bytes of a compressed file. A read beyond the limit is a ValueError."""

    def __init__(self, path: pathlib.Path, most: int):
        self._stream = pa.input_stream(path)
        self._most = self._left = most

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Returns the next bytes; all by default."""
        content = self._stream.read(size if size >= 0 else None)
        self._left -= len(content)
        if self._left < 0:
            raise ValueError(f"it has more than {self._most} bytes unpacked. {_REMEDY}")
        return content


def most_of(path: pathlib.Path, unpacked_mb: int) -> int:
    """Returns the limit in bytes of a table in memory; ValueError if its file is sparse."""
    status = path.stat()
    if status.st_size > limited_files.most_of(512 * status.st_blocks):
        raise ValueError("it is sparse. Write it as a file without gaps")
    return unpacked_mb * 10**6 or limited_files.most_of(status.st_size)


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
