"""What a program says; a terminal or pipe that does not take it never fails a run.

A reader may close its pipe (`| head`), a disk may be full, a descriptor may be closed from the
start (`2>&-`), and an encoding may lack a character of a path. What cannot be written is left out,
and a character that cannot be encoded is written as its escape.
"""

import atexit
import contextlib
import faulthandler
import os
import sys
from collections.abc import Iterator

import tqdm

_STDERR = 2
# Where standard error leads while descriptor 2 does not; see `without_native_messages`.
_kept_stderr: int | None = None


class Stream:
    """A text stream whose writing never fails, for libraries that want a stream.

    Args:
      name: stdout or stderr; it is what `sys` has under this name.
    """

    def __init__(self, name: str):
        self._name = name

    @property
    def _stream(self):
        return getattr(sys, self._name)  # None if there is none.

    @property
    def encoding(self) -> str:
        """The encoding of what `sys` has."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Writes and flushes, and returns the number of characters."""
        try:
            if self._stream is not None:
                self._stream.write(
                    text.encode(self.encoding, "backslashreplace").decode(self.encoding)
                )
                self._stream.flush()
        except (OSError, ValueError):  # ValueError: it is closed.
            pass
        return len(text)

    def flush(self) -> None:
        """Does nothing, since `write` flushes."""

    def isatty(self) -> bool:
        """Returns whether it is a terminal."""
        try:
            return self._stream is not None and self._stream.isatty()
        except ValueError:
            return False

    def fileno(self) -> int:
        """Returns the descriptor, which tells the width of a terminal."""
        return self._stream.fileno()


STDOUT, STDERR = Stream("stdout"), Stream("stderr")


def show(text: str, end: str = "\n") -> None:
    """Writes a result to standard output."""
    STDOUT.write(text + end)


def say(text: str) -> None:
    """Writes a line about the run to standard error, above a bar that `STDERR` may show."""
    tqdm.tqdm.write(text, file=STDERR)


def prepare() -> None:
    """Prepares a program, before it opens any file; a library must not call it.

    A closed descriptor 0, 1 or 2 is opened on /dev/null. Else the next file that is opened would
    get its number, and what libraries write to it would go into that file. When the program ends,
    what could not be written is dropped, which else would change the exit code.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    atexit.register(_settle)


@contextlib.contextmanager
def without_native_messages() -> Iterator[None]:
    """Drops what libraries write to descriptor 2 past Python, as TensorFlow does at its import.

    From TensorFlow 2.17 on it writes there before it reads TF_CPP_MIN_LOG_LEVEL. If a library
    aborts the process meanwhile, Python's stack is written to standard error.
    """
    global _kept_stderr
    try:
        kept = os.dup(_STDERR)
    except OSError:  # There is none.
        yield
        return
    own_trace = not faulthandler.is_enabled()
    if own_trace:
        faulthandler.enable(kept)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    _kept_stderr = kept
    os.dup2(nowhere, _STDERR)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(kept, _STDERR)
        _kept_stderr = None
        if own_trace:
            faulthandler.disable()
        os.close(kept)


def stderr_descriptor() -> int:
    """Returns the descriptor of standard error, also within `without_native_messages`."""
    return _STDERR if _kept_stderr is None else _kept_stderr


def _settle():
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            _drop(stream)


def _drop(stream):
    """Lets a stream write what it still holds to /dev/null."""
    try:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, stream.fileno())
        os.close(devnull)
    except (OSError, ValueError):  # It is closed, so that nothing is left to write.
        pass
