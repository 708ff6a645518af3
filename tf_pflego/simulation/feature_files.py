"""Features of frozen parts in files of a directory, which its later runs map into memory.

The name of a file is the digest of all inputs of its features. The file has their rows, float32,
and then a checksum of these bytes and of the name. Any other file is written again. Everyone with
write access to the directory is trusted.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
import os
import pathlib
import re
import stat
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tf_pflego.system import durable, file_arrays, limited_files, lock, log, rows

NAME = "features"
DTYPE = np.dtype(np.float32)
_SUFFIX, _BYTES_OF_CHECKSUM = ".float32", 4
_PARTIAL = re.compile(r"\.[0-9a-f]{64}\.float32\.partial")


class _Kept(NamedTuple):
    directory: pathlib.Path
    used: set[str]  # names of files


_kept: contextvars.ContextVar[_Kept | None] = contextvars.ContextVar("features", default=None)


@contextlib.contextmanager
def kept_in(directory: pathlib.Path | None, is_shared: bool = False) -> Iterator[None]:
    """Within it, features are in files of a directory, or in no files. An outer block has priority.

    Unless others share the directory, whole files that were not used are removed at the end.
    """
    if directory is None or _kept.get() is not None:
        yield
        return
    token = _kept.set(kept := _Kept(directory, set()))
    try:
        yield
    finally:
        _kept.reset(token)
    for path in () if is_shared else directory.glob(f"*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            if path.name not in kept.used and _is_whole(path):  # Any other is not of a run.
                path.unlink()


def stored(digest: str, features: durable.Blocks) -> np.ndarray | None:
    """Returns float32 features from their file, and writes the file if there is none yet.

    Another process that wants them waits for it. It is None if features are in no files, or have no
    room.
    """
    if (kept := _kept.get()) is None:
        return None
    path, shape = kept.directory / f"{digest}{_SUFFIX}", features.shape
    kept.used.add(path.name)
    if (array := _read(path, shape)) is not None:
        return array
    if not rows.fit_disk(_bytes_of(shape), path.parents[1]):
        return None
    with lock.waited_for(path.parent):
        if (array := _read(path, shape)) is not None:
            return array
        if os.path.lexists(path):
            log.warning(f"{path} is not as it was written, and is made again")
        durable.remove_files(path.parent, _PARTIAL)  # Nobody else has the lock.
        # Others may read a run, but nothing that is made of its examples.
        with durable.batch() as files, files.open(path, 0o600) as stream:
            for block in features.blocks:
                stream.write(block.tobytes())
            stream.write(_checksum(path, stream.crc32))
        return _mapped(path, shape)


def _read(path, shape):
    """Returns the features in a file, None if there is no undamaged file."""
    with contextlib.suppress(OSError):
        if path.lstat().st_size == _bytes_of(shape) + _BYTES_OF_CHECKSUM and _is_whole(path):
            return _mapped(path, shape)
    return None


def _is_whole(path):
    """Returns whether a regular file ends with the checksum of its bytes and of its name."""
    about = path.lstat()
    size = about.st_size - _BYTES_OF_CHECKSUM
    if not stat.S_ISREG(about.st_mode) or size < 0:
        return False
    with open(path, "rb") as file:
        file.seek(size)
        return file.read() == _checksum(path, limited_files.crc32_of(path, size))


def _mapped(path, shape):
    log.debug(f"the features of the body's frozen part are in {path}")
    return file_arrays.mapped(open(path, "rb"), DTYPE, shape)


def _bytes_of(shape):
    return math.prod(shape) * DTYPE.itemsize


def _checksum(path, crc32):
    return zlib.crc32(path.name.encode(), crc32).to_bytes(_BYTES_OF_CHECKSUM, "little")
