"""A directory that one process at a time uses."""

import contextlib
import errno
import fcntl
import math
import os
import pathlib
import stat
import time

from tf_pflego.system import leftovers

_NAME = ".lock"


class InUseError(BlockingIOError):
    """Another process holds the lock; the message names it."""


def taken(path: pathlib.Path, what: str, kind: type[Exception] = ValueError) -> "DirectoryLock":
    """Returns the lock of an `output_dir`; raises an error where a lock is impossible."""
    try:
        return DirectoryLock(path)
    except InUseError as error:
        raise kind(
            f"`output_dir` must not be in use; another {what} writes to {path} ({error}). Wait for "
            "its end, or choose another `output_dir`."
        ) from None
    except OSError as error:
        raise kind(
            f"`output_dir` must be a directory that can be written; {path} is not "
            f"({error.strerror}). Choose another `output_dir`."
        ) from error


def waited_for(path: pathlib.Path, seconds: float = math.inf) -> "DirectoryLock":
    """Returns the lock of a directory when it is free, or InUseError after a time."""
    end = time.monotonic() + seconds
    while True:
        try:
            return DirectoryLock(path)
        except InUseError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


class DirectoryLock(contextlib.AbstractContextManager["DirectoryLock"]):
    """A lock on a directory, which ends with the process in all cases.

    Release it after use, or use it in a `with` statement. The directory is made if it does not
    exist. A lock of another process is an `InUseError`. A link, or an object that is no file, with
    the name of the lock's file is another `OSError`.
    """

    def __init__(self, path: pathlib.Path):
        self._process = os.getpid()
        self._made = [parent for parent in (path, *path.parents) if not parent.exists()]
        self._path = path / _NAME
        while True:
            self._descriptor = self._opened()
            try:
                about = os.fstat(self._descriptor)
                # Writes to a file of several names would show in another place too.
                if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
                    raise self._refusal()
                # The kernel unlocks the file when its descriptor is closed.
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                there = os.pread(self._descriptor, 21, 0)
                if len(there) > 20 or not (there.strip() or b"0").isdigit():
                    raise self._refusal()  # At its release, it would be removed.
                if self._is_current():
                    with contextlib.suppress(OSError):  # The lock holds on a full disk too.
                        os.pwrite(self._descriptor, f"{self._process}\n".encode().ljust(20), 0)
                    leftovers.add(self.release)
                    return
            except BlockingIOError:
                holder = os.pread(self._descriptor, 20, 0).decode("ascii", "replace").strip()
                os.close(self._descriptor)
                # A process that has just taken it may not have written its number yet.
                known = f"process {holder}" if holder.isdigit() else "another process"
                raise InUseError(known) from None
            except BaseException:
                os.close(self._descriptor)
                raise
            os.close(self._descriptor)

    def _opened(self):
        # A user who may read the file could lock it. A FIFO must not let the program wait.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        for tries_left in reversed(range(100)):
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                return os.open(self._path, flags, 0o600)
            except FileNotFoundError:  # Another process removed a parent that it had made.
                if not tries_left:
                    raise
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.EISDIR):
                    raise self._refusal() from error
                raise

    def _refusal(self):
        return OSError(
            errno.EPERM, f"{_NAME} there is a link or no file of a lock: remove it", str(self._path)
        )

    def _is_current(self):
        """Returns whether the file was not removed, after it was opened, by a run that ended."""
        try:
            return os.path.samestat(self._path.lstat(), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def __exit__(self, *unused):
        self.release()

    def release(self) -> None:
        """Unlocks the directory, and removes it and its parents if they were made and are empty.

        In a forked child, it does nothing: the lock is the parent's.
        """
        if os.getpid() != self._process:
            return
        leftovers.forget(self.release)
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)
        for directory in self._made:
            try:
                directory.rmdir()
            except OSError:  # It is not empty.
                break
