"""Directories for temporary files, which do not outlast the process that made them by much."""

import contextlib
import functools
import os
import pathlib
import platform
import shutil
import tempfile
import zlib
from collections.abc import Iterator

from tf_pflego.system import leftovers
from tf_pflego.system.lock import DirectoryLock, InUseError

_PREFIX = "tf_pflego_directory_"
_locks: dict[str, DirectoryLock] = {}  # of the directories of this process


def make_directory() -> str:
    """Makes a directory for this user alone, and removes those that killed processes have left.

    It is locked, and removed only by who can take the lock: a process that lives may have its files
    in another container's `/proc`, or on another machine. Some network's file systems keep locks
    from other machines, so that only this one's, since it was started, are tried.
    """
    prefix = f"{_PREFIX}{_machine()}_"
    for left in pathlib.Path(tempfile.gettempdir()).glob(f"{prefix}*/.lock"):
        with contextlib.suppress(OSError):
            if left.lstat().st_uid == os.geteuid():
                with DirectoryLock(left.parent):
                    shutil.rmtree(left.parent, ignore_errors=True)
    while True:
        path = tempfile.mkdtemp(prefix=prefix)
        try:
            _locks[path] = DirectoryLock(pathlib.Path(path))
        except (InUseError, FileNotFoundError):
            continue  # Between its file and its lock, another process took it for one that is left.
        except OSError:
            pass  # Where there are no locks, nobody can take this one.
        return path


def remove_directory(path: str) -> None:
    """Removes a directory that `make_directory` has made; it may have been removed."""
    shutil.rmtree(path, ignore_errors=True)
    if path in _locks:
        _locks.pop(path).release()


def _machine():
    """Returns six characters for this machine, the same in all its containers, until it is off."""
    try:
        return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:6]
    except OSError:  # as on macOS
        return f"{zlib.crc32(platform.node().encode()):08x}"[:6]


@contextlib.contextmanager
def own_directory() -> Iterator[None]:
    """Lets a program keep all its temporary files, libraries' too, in one directory.

    It is removed at the end, also at a forced one (`system.leftovers`), where libraries would leave
    theirs behind: TensorFlow writes a file for each Python function that it translates.
    """
    before, directory = tempfile.tempdir, make_directory()
    with leftovers.removed_after(functools.partial(remove_directory, directory)):
        tempfile.tempdir = directory
        try:
            yield
        finally:
            tempfile.tempdir = before
