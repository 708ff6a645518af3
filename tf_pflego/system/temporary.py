"""Directories for temporary files, which do not outlast the process that made them by much."""

import contextlib
import functools
import os
import pathlib
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from typing import BinaryIO, cast

from tf_pflego.system import leftovers, operating_system
from tf_pflego.system.lock import DirectoryLock, InUseError

_PREFIX = "tf_pflego_directory_"
_made: dict[str, DirectoryLock | None] = {}  # the directories of this process, with their locks
os.register_at_fork(after_in_child=_made.clear)  # A child removes none.


def make_directory(parent: str | None = None) -> str:
    """Makes a directory only for this user, and removes the directories of killed processes.

    It is locked, and removed only by a process with the lock: a living process may be in another
    container, or on another machine. Some network file systems keep locks from other machines.
    Therefore only this machine's directories, since it was started, are tried.
    """
    parent = parent or tempfile.gettempdir()
    prefix = f"{_PREFIX}{operating_system.machine()}_"
    for left in pathlib.Path(parent).glob(f"{prefix}*/.lock"):
        with contextlib.suppress(OSError):
            if left.lstat().st_uid == os.geteuid():
                with DirectoryLock(left.parent):
                    shutil.rmtree(left.parent, ignore_errors=True)
    while True:
        path = tempfile.mkdtemp(prefix=prefix, dir=parent)
        try:
            _made[path] = DirectoryLock(pathlib.Path(path))
        except (InUseError, FileNotFoundError):
            continue  # Between its file and its lock, another process took it for one that is left.
        except OSError:
            _made[path] = None  # Where there are no locks, nobody can take this one.
        return path


def remove_directory(path: str) -> None:
    """Removes a directory of `make_directory`, if it exists."""
    if path in _made:
        shutil.rmtree(path, ignore_errors=True)
        if lock := _made.pop(path):
            lock.release()


def mappable_file(prefix: str) -> BinaryIO:
    """Returns a temporary file that TensorFlow can map, by the path of `operating_system.path_of`.

    On Linux it has no name. On other systems it is in a separate directory, which is removed with
    it.
    """
    if operating_system.IS_LINUX:
        return cast(BinaryIO, tempfile.TemporaryFile(prefix=prefix))
    directory = make_directory()
    file = open(os.path.join(directory, prefix), "x+b")
    weakref.finalize(file, remove_directory, directory)
    return file


@contextlib.contextmanager
def short_path(directory: str | os.PathLike) -> Iterator[str]:
    """Gives a path of a directory so short that sockets in it can be named, by 103 bytes in all."""
    if operating_system.IS_LINUX:
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        path, removal = operating_system.path_of(opened), functools.partial(os.close, opened)
    else:
        made = make_directory("/tmp")  # That for temporary files has a long name on macOS.
        path, removal = f"{made}/to", functools.partial(remove_directory, made)
        os.symlink(os.path.abspath(directory), path)
    with leftovers.removed_after(removal):
        yield path


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
