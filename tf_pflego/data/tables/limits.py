"""Files of tables that have few bytes on the disk and would fill the memory are refused."""

import io
import pathlib

import pyarrow as pa
from pyarrow import parquet

from tf_pflego.system import limited_files

_BYTES_OF_CELL = 8  # in memory, whatever a Parquet file needs for it


class Unpacked(io.RawIOBase):
    """A stream of the bytes of a compressed file; a read beyond the limit is a ValueError."""

    def __init__(self, path: pathlib.Path):
        self._stream = pa.input_stream(path)
        self._most = self._left = limited_files.most_of(path.stat().st_size)

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Returns the next bytes; all by default."""
        content = self._stream.read(size if size >= 0 else None)
        self._left -= len(content)
        if self._left < 0:
            raise ValueError(f"it has more than {self._most} bytes unpacked. Unpack the file")
        return content


def refuse_sparse(path: pathlib.Path) -> None:
    """Raises ValueError if the disk has far fewer bytes of a file than it counts."""
    status = path.stat()
    if status.st_size > limited_files.most_of(512 * status.st_blocks):
        raise ValueError("it is sparse. Write it as a file without gaps")


def refuse_many_cells(path: pathlib.Path) -> None:
    """Raises ValueError if a Parquet file has far more cells than bytes."""
    stored, size = parquet.read_metadata(path), path.stat().st_size
    if _BYTES_OF_CELL * stored.num_rows * stored.num_columns > limited_files.most_of(size):
        raise ValueError(
            f"its {size} bytes have {stored.num_rows} rows of {stored.num_columns} columns, more "
            "than are read. Write it uncompressed and without dictionaries"
        )
