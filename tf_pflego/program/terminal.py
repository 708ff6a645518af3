"""The output of a program. A terminal or pipe with an error never fails a run.

On a terminal a line that is too long is wrapped at words, and `doing` keeps a line with the current
work. On a pipe or in a file lines do not change.

A reader may close its pipe (`| head`), a disk may be full, a descriptor may be closed from the
start (`2>&-`), and an encoding may lack a character of a path. Output that cannot be written is
dropped, and a character that cannot be encoded is written as its escape.
"""

import atexit
import contextlib
import logging
import os
import pathlib
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator

import tqdm

from tf_pflego.system import log, texts

_STDERR = 2
_USUAL_COLUMNS = 80  # of a terminal that does not say how wide it is
_LEAST_COLUMNS = 20  # In a narrower one the terminal itself breaks the lines.
_with_time = False
_shown = 0  # how many characters of `doing` are on the terminal


class Stream:
    """A text stream that never fails on writing: `sys.stdout` or `sys.stderr`."""

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
                can_be_written = text.encode(self.encoding, "backslashreplace")
                self._stream.write(can_be_written.decode(self.encoding))
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
        """Returns the descriptor, which gives the width of a terminal."""
        return self._stream.fileno()

    def columns(self) -> int | None:
        """Returns the width of a terminal; None for a pipe or a file."""
        if not self.isatty():
            return None
        try:
            columns = os.get_terminal_size(self.fileno()).columns
        except (OSError, ValueError):
            columns = 0
        return max(columns or _USUAL_COLUMNS, _LEAST_COLUMNS)


STDOUT, STDERR = Stream("stdout"), Stream("stderr")


def show(text: str, end: str = "\n") -> None:
    """Writes a result to standard output."""
    done()
    STDOUT.write(wrapped(_safe(text), STDOUT.columns()) + end)


def say(text: str) -> None:
    """Writes a line about the run to standard error, above a bar that `STDERR` may show."""
    done()
    tqdm.tqdm.write(wrapped(_safe(timed(text)), STDERR.columns()), file=STDERR)


def show_written(directory: str, about: str) -> None:
    """Shows where runs were written, and the command that makes a page about them."""
    show(f"written to {directory}{about}; a page about it:")
    # The terminal breaks a long line itself, so that it can be pasted whole.
    STDOUT.write(f"{_program()} report {shlex.quote(directory)}\n")


def _program():
    """Returns how a shell calls the program: by its name if that leads to this installation."""
    beside = pathlib.Path(sys.executable).with_name("tf-pflego")
    if shutil.which("tf-pflego") == str(beside):
        return beside.name
    python = min(sys.executable, os.path.relpath(sys.executable), key=len)
    return f"{shlex.quote(python)} -m tf_pflego.main"


def timed(text: str) -> str:
    """Returns a line with the time before it, in programs that `begin_with_time`."""
    return f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}" if _with_time else text


def begin_with_time() -> None:
    """Lets the lines of this program begin with the time, as those that run for days."""
    global _with_time
    _with_time = True


def _safe(text):
    """Returns lines without terminal commands from files or paths."""
    return "\n".join(map(texts.printable, text.split("\n")))


class _Shown(logging.Handler):
    """Shows the package's log. On a terminal a bar shows the rounds, and `doing` the rest."""

    def emit(self, record):
        text = record.getMessage()
        if record.name == log.ROUNDS.name and STDERR.isatty():
            done()
        elif record.levelno < logging.INFO:
            doing(text)
        else:
            say(f"tf_pflego: {text}" if record.name == log.LOG.name else text)


@contextlib.contextmanager
def showing(quiet: bool) -> Iterator[None]:
    """Shows the package's log while a program runs."""
    global _with_time
    before, handler = log.LOG.level, _Shown()
    log.LOG.addHandler(handler)
    log.LOG.propagate = False
    log.bars = STDERR if STDERR.isatty() else None
    be_quiet(quiet)
    try:
        yield
    finally:
        log.LOG.removeHandler(handler)
        log.LOG.propagate, log.bars = True, None
        log.LOG.setLevel(before)
        _with_time = False


def be_quiet(quiet: bool) -> None:
    """Limits the log, `doing` and bars to warnings, or removes the limit."""
    usual = logging.DEBUG if STDERR.isatty() else logging.INFO
    log.LOG.setLevel(logging.WARNING if quiet else usual)


def wrapped(text: str, columns: int | None, further: int = 2) -> str:
    """Returns a text with long lines broken at words, and continuation lines indented.

    Lines that fit the number of columns do not change. With None no line changes.
    """
    if columns is None:
        return text
    lines = []
    for line in text.split("\n"):
        if len(line) <= columns:
            lines.append(line)
            continue
        indent = " " * (len(line) - len(line.lstrip()))
        lines += textwrap.wrap(
            line.strip(),
            columns,
            initial_indent=indent,
            subsequent_indent=indent + " " * further,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def doing(what: str, plain: bool = False) -> None:
    """Shows the current work from now on. The next output replaces it.

    A terminal has one line for it. A pipe or file gets a line if it is `plain`.
    """
    global _shown
    if log.is_quiet():
        return
    if STDERR.isatty():
        done()
        text = f"{what} ..."[: (STDERR.columns() or _USUAL_COLUMNS) - 1]
        _shown = STDERR.write(f"\r{text}") - 1
    elif plain:
        say(what)


def done() -> None:
    """Takes the line of `doing` off the terminal."""
    global _shown
    if _shown:
        STDERR.write("\r" + " " * _shown + "\r")
        _shown = 0


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


def _settle():
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            # It writes what it still holds to /dev/null, unless it is closed.
            with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())
