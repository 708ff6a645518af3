"""Files that are whole or absent after any interruption of their writer.

A file is written beside its place, flushed to the disk (fsync) and then renamed. The rest of an
interrupted write has a name of the form `.NAME.partial`. Links in either place are never followed:
the link is replaced.
"""

import concurrent.futures
import contextlib
import csv
import fcntl
import io
import json
import os
import pathlib
import re
import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np

from tf_pflego.system import leftovers


def inert(cell: Any) -> Any:
    """Returns a cell that no spreadsheet takes for a formula: such a text has a ' in front."""
    if not isinstance(cell, str) or cell[:1] not in tuple("=+-@\t\r'"):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


class Stream:
    """Counts the bytes that pass on their way to a file (`size`), and keeps their `crc32`."""

    # There is no `seek`, so that nothing is changed after it has been counted.
    def __init__(self, file: BinaryIO):
        self._file = file
        self.size = self.crc32 = 0

    def write(self, content: bytes) -> int:
        """Writes bytes and returns their number."""
        written = self._file.write(content)
        self.crc32 = zlib.crc32(content, self.crc32)
        self.size += written
        return written

    def flush(self) -> None:
        """Writes the file's buffer."""
        self._file.flush()


class Blocks(NamedTuple):
    """An array that is never whole in memory."""

    shape: tuple[int, ...]
    dtype: np.dtype
    blocks: Iterable[np.ndarray]  # its parts along the first axis, in order


class Batch:
    """Files that are flushed to the disk together, in the time of a single file."""

    def __init__(self):
        self._partial: dict[pathlib.Path, pathlib.Path] = {}

    @contextlib.contextmanager
    def open(self, path: pathlib.Path, mode: int = 0o666) -> Iterator[Stream]:
        """Yields a stream to a new file, which will take the place of `path`.

        It has the permissions of `mode` that the process gives to new files.
        """
        partial = self._partial[path] = path.with_name(f".{path.name}.partial")
        with naming(path):
            partial.unlink(missing_ok=True)
            with open(partial, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                yield Stream(file)

    def npz(
        self,
        path: pathlib.Path,
        arrays: Iterable[tuple[str, np.ndarray | Blocks]],
        mode: int = 0o666,
    ) -> Stream:
        """Writes named arrays for `numpy.load`. The same arrays give the same bytes.

        Only one of them is needed at a time, so a generator saves memory. The stream that is
        returned has the size and the checksum of the file.
        """
        opened = self.open(path, mode)
        with opened as stream, zipfile.ZipFile(cast(BinaryIO, stream), "w") as archive:
            for name, array in arrays:
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                    if isinstance(array, Blocks):
                        _write_blocks(member, array)
                    else:
                        np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
        return stream

    def npy(self, path: pathlib.Path, array: Blocks) -> None:
        """Writes an array as `numpy.load` reads it."""
        with self.open(path) as stream:
            _write_blocks(stream, array)

    def json(self, path: pathlib.Path, content: Any) -> None:
        """Writes JSON that is easy to read."""
        with self.open(path) as stream:
            stream.write((json.dumps(content, indent=2, allow_nan=False) + "\n").encode())

    def csv(
        self, path: pathlib.Path, names: Iterable[str], rows: Iterable[Iterable], mode: int = 0o666
    ) -> None:
        """Writes rows of a table under the names of its columns (see `inert`)."""
        text = io.StringIO(newline="")
        csv.writer(text).writerows([names, *([inert(cell) for cell in row] for row in rows)])
        with self.open(path, mode) as stream:
            stream.write(text.getvalue().encode())

    def finish(self, also: Iterable[pathlib.Path]) -> None:
        """Flushes all files to the disk, and then renames them in the order of their writing.

        `also` are files that are already in their places and go to the disk with the others.
        """
        with concurrent.futures.ThreadPoolExecutor() as pool:
            list(pool.map(to_disk, [*self._partial.values(), *also]))
        directories = {path.parent for path in self._partial}
        for path, partial in list(self._partial.items()):
            os.replace(partial, path)
            del self._partial[path]
        for directory in directories:
            to_disk(directory)

    def discard(self) -> None:
        """Removes the files that have not been renamed."""
        for partial in list(self._partial.values()):
            partial.unlink(missing_ok=True)


@contextlib.contextmanager
def batch(also: Iterable[pathlib.Path] = ()) -> Iterator[Batch]:
    """Yields a batch. Its files move to their places when the block succeeds (see `Batch.finish`).

    If a file cannot be written, the old file still exists.
    """
    files = Batch()
    with leftovers.removed_after(files.discard):
        yield files
        files.finish(also)


@contextlib.contextmanager
def naming(path: pathlib.Path) -> Iterator[None]:
    """Lets an `OSError` of a write, such as on a full disk, name the file."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def remove(path: pathlib.Path) -> None:
    """Removes a file, a directory with its contents, or a link, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def is_plain(path: pathlib.Path, names: re.Pattern[str]) -> bool:
    """Returns whether a path is a regular file, no link, with one of these names."""
    return bool(names.fullmatch(path.name)) and stat.S_ISREG(path.lstat().st_mode)


def remove_files(directory: pathlib.Path, names: re.Pattern[str]) -> None:
    """Removes a directory's regular files of such names, and then the directory if it is empty."""
    for path in list(directory.iterdir()) if directory.is_dir() else ():
        if is_plain(path, names):
            path.unlink()
    with contextlib.suppress(OSError):
        directory.rmdir()


def move(source: pathlib.Path, target: pathlib.Path, names: Iterable[str]) -> None:
    """Moves what there is of some names to another directory, in this order."""
    for name in names:
        if (source / name).exists():
            (source / name).rename(target / name)
    for directory in (source, target):
        to_disk(directory)


def to_disk(path: pathlib.Path) -> None:
    """Returns when a file's bytes, or the names of a directory's files, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            try:  # fsync of macOS trusts the disk's own memory; Linux has no such command.
                fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            except (AttributeError, OSError):
                os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_blocks(member, array):
    """Writes what `numpy.lib.format.write_array` would write of the whole array."""
    header = {
        "descr": np.lib.format.dtype_to_descr(array.dtype),
        "fortran_order": False,
        "shape": array.shape,
    }
    np.lib.format.write_array_header_1_0(member, header)
    for block in array.blocks:
        member.write(block.tobytes())
