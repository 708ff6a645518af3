"""Checks of a checkpoint before it is used: it may come from anywhere.

Checksums show that a file is complete. They do not show that a simulation wrote it.
"""

import pathlib
import re
import stat
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tf_pflego.core import nests
from tf_pflego.core.algorithm import num_bytes
from tf_pflego.core.last_cohort import LastCohort
from tf_pflego.core.nests import Structure
from tf_pflego.system import rows
from tf_pflego.system.values import INTEGER_LIMIT

_FILE = re.compile(r"(server|clients)-\d+(\.\d+)?\.npz", re.ASCII)
_SIZE_LIMIT = 2**63
_LEVEL_LIMIT = 64


class DamagedError(Exception):
    """A file of a checkpoint differs from the written file."""


class Rows:
    """The rows of an array in an .npz file, of `shape` (n, ...), read one after the other."""

    def __init__(self, archive: zipfile.ZipFile, name: str):
        try:
            self._member = archive.open(f"{name}.npy")
            version = np.lib.format.read_magic(self._member)
            if version != (1, 0):
                raise ValueError(f"version {version}")
            header = np.lib.format.read_array_header_1_0(self._member)
        except Exception as error:
            # For other content NumPy and zipfile raise errors of many kinds.
            raise DamagedError(f"{_named(archive)} has no array {name} ({error})") from error
        self.shape, is_fortran, self.dtype = header
        if is_fortran or self.dtype.hasobject:
            raise DamagedError(f"{_named(archive)} has no plain array {name}")
        self._name = f"{name} in {_named(archive)}"

    def read(self, count: int | None = None) -> np.ndarray:
        """Returns the next `count` rows, or the whole array if none was read yet.

        NaN and infinity are damage: states are finite.
        """
        shape = self.shape if count is None else (count, *self.shape[1:])
        size = int(np.prod(shape, dtype=object)) * self.dtype.itemsize
        try:
            content = self._member.read(size)
        except Exception as error:  # zipfile and zlib raise errors of many kinds.
            raise DamagedError(f"{self._name} cannot be read ({error})") from error
        if len(content) != size:
            raise DamagedError(f"{self._name} has {len(content)} of {size} bytes")
        rows = np.frombuffer(content, self.dtype).reshape(shape)
        if rows.dtype.kind == "f" and not np.isfinite(rows).all():
            raise DamagedError(f"{self._name} has infinite numbers or NaN")
        return rows

    def check(self, shape: tuple[int | None, ...], dtype: np.dtype) -> None:
        """Raises DamagedError unless the array has a dtype and a shape, with None for any size."""
        same = len(shape) == len(self.shape) and all(
            size in (None, got) for size, got in zip(shape, self.shape, strict=True)
        )
        if not same or self.dtype != dtype:
            raise DamagedError(
                f"{self._name} must be {dtype} of shape {shape}; it is {self.dtype} of shape "
                f"{self.shape}"
            )


def check_content(content: Any, round_number: int) -> None:
    """Raises DamagedError unless a JSON file of this round is built as a checkpoint's."""
    if not isinstance(content, dict):
        raise DamagedError(f"its content is {type(content).__name__}")
    if content.get("round") != round_number or not _whole(content["round"], INTEGER_LIMIT):
        raise DamagedError("its round is not that of its name")
    clients = content.get("clients")
    if not isinstance(clients, list):
        raise DamagedError("it lists no files of clients")
    _check_entry(content.get("server"), "server")
    for entry in clients:
        _check_entry(entry, "clients")
        if not _whole(entry.get("level"), _LEVEL_LIMIT):
            raise DamagedError(f"{entry['file']} has no level")
    if len({entry["file"] for entry in clients}) < len(clients):
        raise DamagedError("it lists a file twice")
    if "metrics" in content:
        _check_sum(content["metrics"], "the metrics")


def check_file(path: pathlib.Path, size: int) -> None:
    """Raises DamagedError unless a path is a regular file, not a link to one, of `size` bytes."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        raise DamagedError(f"{path.name} is missing") from None
    if not stat.S_ISREG(status.st_mode):
        raise DamagedError(f"{path.name} is no regular file")
    if status.st_size != size:
        raise DamagedError(f"{path.name} has {status.st_size} of {size} bytes")


def check_server(path: pathlib.Path, spec: Structure, num_clients: int) -> dict[str, np.ndarray]:
    """Returns the server's state in a file, by names, after a check.

    A `LastCohort` may have any clients, and a size that was 0 at first may have grown.
    """
    leaves, specs, cohorts = {}, nests.named(spec), dict(_cohorts(spec))
    with _opened(path, specs) as archive:
        for name, leaf in specs.items():
            shape = [size or None for size in leaf.shape]
            for of_cohort, ids in cohorts.items():
                if name == ids:
                    leaves[name] = _ids(archive, name, num_clients)
                elif name.startswith(of_cohort):
                    shape[0] = len(leaves[ids])
            array = Rows(archive, name)
            array.check(tuple(shape), np.dtype(leaf.dtype.as_numpy_dtype))
            leaves[name] = array.read()
    return leaves


def _cohorts(nest, path=""):
    """Yields for each `LastCohort` the prefix of its leaves' names, and the name of its ids."""
    if isinstance(nest, LastCohort):
        yield path, f"{path}ids"
    elif isinstance(nest, dict | list | tuple):
        parts = nest._asdict() if hasattr(nest, "_asdict") else nest
        for name, part in parts.items() if isinstance(parts, dict) else enumerate(parts):
            yield from _cohorts(part, f"{path}{name}/")


def _ids(archive, name, num_clients):
    """Returns ids of clients, after a check: int64, ascending, each in [0, I)."""
    ids = Rows(archive, name)
    if len(ids.shape) != 1 or ids.shape[0] > num_clients:
        raise DamagedError(f"{_named(archive)} must have at most {num_clients} ids")
    ids.check(ids.shape, np.dtype(np.int64))
    numbers = ids.read()
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < num_clients:
        raise DamagedError(f"{_named(archive)} has ids of none of the {num_clients} clients")
    if (np.diff(numbers) <= 0).any():
        raise DamagedError(f"{_named(archive)} has ids that do not ascend")
    return numbers


def blocks(
    path: pathlib.Path, spec: Mapping[str, Any], num_clients: int
) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
    """Yields the ids and the state leaves, by name, of the clients in a file."""
    with _opened(path, ["ids", *spec]) as archive:
        ids = _ids(archive, "ids", num_clients)
        arrays = [Rows(archive, name) for name in spec]
        for array, leaf in zip(arrays, spec.values(), strict=True):
            array.check((len(ids), *leaf.shape), np.dtype(leaf.dtype.as_numpy_dtype))
        for block in rows.blocks(len(ids), num_bytes(spec)):
            yield ids[block], [array.read(block.stop - block.start) for array in arrays]


def _opened(path, names):
    """Returns an .npz file that has exactly the arrays of these names."""
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise DamagedError(f"{path.name} is no .npz file ({error})") from error
    is_plain = all(one.compress_type == zipfile.ZIP_STORED for one in archive.infolist())
    if not is_plain or sorted(archive.namelist()) != sorted(f"{name}.npy" for name in names):
        archive.close()
        what = f"the arrays {', '.join(names)}, and no others, uncompressed"
        raise DamagedError(f"{path.name} must have {what}")
    return archive


def _check_entry(entry, kind):
    name = entry.get("file") if isinstance(entry, dict) else None
    match = _FILE.fullmatch(name) if isinstance(name, str) else None
    if match is None or match[1] != kind:
        raise DamagedError(f"it names no separate file for {kind}")
    _check_sum(entry, name)


def _check_sum(entry, name):
    """Raises DamagedError unless an entry has a size and a checksum."""
    limits = {"bytes": _SIZE_LIMIT, "crc32": 2**32}
    if not isinstance(entry, dict) or not all(_whole(entry.get(k), v) for k, v in limits.items()):
        raise DamagedError(f"it has no size and checksum of {name}")


def _whole(value, limit):
    return type(value) is int and 0 <= value < limit


def _named(archive):
    return pathlib.Path(str(archive.filename)).name
