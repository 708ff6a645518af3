"""Files read with limits, which can neither stop, fill nor mislead their reader.

A directory may be damaged, or come from a stranger. Only regular files are read, never links, pipes
and devices, and sizes are checked before memory is allocated. TensorFlow is not needed.
"""

import contextlib
import errno
import gzip
import io
import json
import math
import os
import pathlib
import re
import stat
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Any, TypeGuard

import numpy as np

_MOST_BYTES, _MOST_BYTES_OF_JSON = 2**28, 2**20
# What is sparse or compressed may have so many times the bytes that are stored of it, and so many
# more, so that few bytes fill no memory and take no hours.
_MOST_TIMES, _MOST_BYTES_MORE = 100, 2**26
_MOST_MEMBERS, _BLOCK_BYTES = 10_000, 2**20
_DEEPEST, _LONGEST_TEXT, MOST_DIGITS = 8, 10_000, 18
_HALF_A_CHARACTER = re.compile("[\ud800-\udfff]")


class DamagedFileError(ValueError):
    """A file, at `path`, is not a run's file; the message describes it after its name."""

    def __init__(self, path: pathlib.Path, what: str):
        super().__init__(what)
        self.path = path


@contextlib.contextmanager
def reading(path: pathlib.Path, *errors: type[Exception]) -> Iterator[None]:
    """Makes a DamagedFileError of errors that the content of a file leads to."""
    try:
        yield
    except errors as error:
        raise DamagedFileError(path, f"cannot be read ({error})") from None


def content(path: pathlib.Path, most: float = _MOST_BYTES) -> bytes:
    """Returns the bytes of a regular file that has at most `most`, or raises DamagedFileError.

    If it is missing or cannot be read, that is an OSError, here and below.
    """
    with _opened(path, most) as (file, size):
        return file.read(size)


def most_of(stored: int) -> int:
    """Returns the limit in bytes for a stored size, sparse or compressed."""
    return _MOST_TIMES * stored + _MOST_BYTES_MORE


def crc32_of(path: pathlib.Path, size: int) -> int:
    """Returns the checksum of the first `size` bytes of a file, or of all if it has fewer."""
    checksum = 0
    with _opened(path, math.inf) as (file, _):
        while size > 0 and (block := file.read(min(size, _BLOCK_BYTES))):
            checksum, size = zlib.crc32(block, checksum), size - len(block)
    return checksum


def text(path: pathlib.Path) -> str:
    """Returns the text of a file, unpacked if its name ends in .gz."""
    packed = content(path)
    if path.suffix != ".gz":
        return packed.decode()
    unreadable = OSError, EOFError, zlib.error
    with reading(path, *unreadable), gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
        unpacked = file.read(_MOST_BYTES + 1)
    if len(unpacked) > _MOST_BYTES:
        raise DamagedFileError(path, f"has more than {_MOST_BYTES} bytes of text")
    return unpacked.decode()


@contextlib.contextmanager
def _opened(path: pathlib.Path, most: float) -> Iterator[tuple[IO[bytes], int]]:
    """Gives a regular file and its size, which is at most `most`."""
    # It waits for nobody to write into a pipe, and follows no link.
    flags = os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        with open(path, "rb", opener=lambda name, how: os.open(name, how | flags)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise DamagedFileError(path, "is no regular file")
            if status.st_size > (limit := min(most, most_of(512 * status.st_blocks))):
                raise DamagedFileError(path, f"has {status.st_size} bytes, more than {limit}")
            yield file, status.st_size
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise DamagedFileError(path, "is a link, which is not followed") from None
        if error.errno in (errno.ENXIO, errno.EOPNOTSUPP, errno.EISDIR):  # a socket or a directory
            raise DamagedFileError(path, "is no regular file") from None
        raise


def json_object(path: pathlib.Path) -> dict[str, Any]:
    """Returns the object in a JSON file, or raises DamagedFileError."""
    text = content(path, _MOST_BYTES_OF_JSON)
    with reading(path, ValueError):
        return object_of(text)


def arrays(path: str | pathlib.Path, most: float = _MOST_BYTES) -> dict[str, np.ndarray]:
    """Returns the arrays, numbers or text, of an .npz file, or raises DamagedFileError.

    A file that is compressed may have only a hundred times its bytes, and 64 MB, in it.
    """
    path = pathlib.Path(path)
    # Of what is no archive, zipfile raises errors of many kinds.
    with _opened(path, most) as (file, size), reading(path, Exception):
        return {name.removesuffix(".npy"): _array(array) for name, array in members(file, size)}


def members(file: IO[bytes], size: int) -> Iterator[tuple[str, bytes]]:
    """Yields the names and bytes of the members of a zip archive with a size limit.

    It is a ValueError if they are too many or too large; zipfile raises errors of many kinds.
    """
    with zipfile.ZipFile(file) as archive:
        infos = archive.infolist()
        held, limit = sum(one.file_size for one in infos), most_of(size)
        if held > limit or len(infos) > _MOST_MEMBERS:
            raise ValueError(
                f"{len(infos)} members of {held} bytes; at most {_MOST_MEMBERS} of {limit} are read"
            )
        # Others may unpack to more than their size before it is checked.
        if {one.compress_type for one in infos} - {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            raise ValueError("a member must be stored or deflated")
        for one in infos:
            yield one.filename, archive.read(one)


def is_number(value: Any) -> TypeGuard[float]:
    """Returns whether a value of JSON is a number, which true and false are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _array(content):
    """Returns the array of an .npy file, with no more memory than its bytes."""
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }[version]
    shape, in_columns, dtype = read_header(file)
    size = math.prod(shape) * dtype.itemsize
    if dtype.kind not in "biufU" or min(shape, default=0) < 0 or size != len(content) - file.tell():
        raise ValueError(f"its bytes are no array {list(shape)} of {dtype.name}")
    values = np.frombuffer(content, dtype, offset=file.tell()).copy()
    return values.reshape(shape, order="F" if in_columns else "C")


def object_of(text: bytes) -> dict[str, Any]:
    """Returns the object in a JSON text.

    It is a ValueError if there is something else, nested too deeply, or too long a text or number.
    """
    try:
        value = json.loads(text.decode(), parse_int=_whole)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"it contains a {type(value).__name__}, not an object")
    _check(value, _DEEPEST)
    return value


def _whole(digits):
    if len(digits.lstrip("-")) > MOST_DIGITS:
        raise ValueError(f"it has a number of {len(digits)} digits")
    return int(digits)


def _check(value, deepest):
    """Rejects data that are nested too deeply, and texts that are too long or cannot be written."""
    if isinstance(value, str):
        if len(value) > _LONGEST_TEXT or _HALF_A_CHARACTER.search(value):
            raise ValueError("it has a text that is too long or has half a character")
    elif isinstance(value, (dict, list)):
        if not deepest:
            raise ValueError("it is nested too deeply")
        for part in [*value, *value.values()] if isinstance(value, dict) else value:
            _check(part, deepest - 1)
