"""Ctrl-C, SIGTERM and SIGHUP end a program in order, and within seconds at any time.

An exception that a signal raises wherever the program happens to be can come up inside another
library, which may swallow it or turn it into another one. A signal therefore only sets a mark here,
and the program asks for it between its steps, where nothing is half done.

The program may not reach a check soon, as in a long call of TensorFlow. Python's handlers do not
even run before such a call has returned, but at the signal itself a byte is written to a socket
(`signal.set_wakeup_fd`). A thread waits for it there, gives the program three seconds, and then
ends it by force: it ends the child processes, removes temporary files (`system.leftovers`), prints
the program's last line, and exits.
"""

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

from tf_pflego.system import deferred, leftovers, operating_system

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_GRACE_SECONDS = 3.0
# Signals that come this soon after the first are copies of it: `timeout` sends one to the program
# and one to its process group.
_COPIES_SECONDS = 0.5
# How long a forced end waits for children to stop, and for a terminal that does not take the line.
_WAIT_SECONDS = 0.5


class Interrupted(KeyboardInterrupt):
    """The program was asked to end."""


@contextlib.contextmanager
def nothing_to_put_in_order() -> Iterator[None]:
    """Lets a signal end the program at once, as before its first step, while a long call lasts.

    Callers name in `system.leftovers` what has to be removed. Without an `Interruption`
    in force, as in a library, it has no effect.
    """
    before = [(interruption, interruption._orderly) for interruption in _in_force]
    for interruption, _ in before:
        interruption._orderly = False
    try:
        yield
    finally:
        for interruption, orderly in before:
            interruption._orderly = orderly


class Interruption:
    """Handles SIGINT, SIGTERM and SIGHUP, except signals that were ignored at the start.

    It must be made, entered and left in the main thread. Before the first `check` there is no work
    to finish, and a signal ends the `program` at once. A second signal later also does.
    """

    def __init__(self, program="tf_pflego", grace_seconds=_GRACE_SECONDS):
        self.asked: int | None = None  # the signal that has come
        self.hint: Callable[[], str] = str  # returns what the line says after "interrupted"
        self._program = program
        self._grace_seconds = grace_seconds
        self._orderly = False
        self._said = False

    def __enter__(self) -> "Interruption":
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._handlers = {
            number: signal.signal(number, self._handle)
            for number in _SIGNALS
            if signal.getsignal(number) != signal.SIG_IGN
        }
        _in_force.append(self)
        return self

    def __exit__(self, *unused):
        _in_force.remove(self)
        self._restore()
        self._writer.send(b"\0")
        self._thread.join()
        self._reader.close()
        self._writer.close()

    def check(self) -> None:
        """Raises `Interrupted` after a signal. Call it at points without half-finished work."""
        self._orderly = True
        if self.asked is not None:
            raise Interrupted

    def report(self) -> int:
        """Reports the interruption, and returns the exit code, 128 + the signal."""
        if not self._said:
            self._said = True
            _write(f"{self._program}: interrupted{self.hint()}\n")
        return 128 + (self.asked or 0)

    def _handle(self, number, frame):
        self.asked = self.asked or number

    def _restore(self):
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)

    def _watch(self):
        number = self._next(None)
        if not number:
            return
        self.asked = self.asked or number
        first = time.monotonic()
        end = first + (self._grace_seconds if self._orderly else 0)
        while (left := end - time.monotonic()) > 0:
            number = self._next(left)
            if number == 0:
                return
            if number and time.monotonic() > first + _COPIES_SECONDS:
                break
        self._end()

    def _next(self, timeout):
        """Returns the next signal, 0 if the thread is to end, None if there is none in time."""
        self._reader.settimeout(timeout)
        with contextlib.suppress(TimeoutError):
            number = self._reader.recv(1)[0]
            if number in (0, *_SIGNALS):
                return number
        return None

    def _end(self):
        """Ends the program by force."""
        try:
            # Children that are stopped write no file any more, and do not fail the program either,
            # as they would by ending.
            children = _stopped_children()
            leftovers.remove_all()
            self.report()
            for child in children:
                with contextlib.suppress(OSError):
                    os.kill(child, signal.SIGKILL)
        finally:
            os._exit(128 + (self.asked or 0))


_in_force: list[Interruption] = []


def _leave_in_child():
    """Gives a forked child, which has no such thread, the signals back."""
    while _in_force:
        _in_force.pop()._restore()
    leftovers.forget_all()


os.register_at_fork(after_in_child=_leave_in_child)


def _write(line):
    """Writes to standard error past Python, since another thread may hold its stream."""
    with contextlib.suppress(OSError, ValueError):
        descriptor = deferred.stderr_descriptor
        if os.isatty(descriptor):
            line = "\n" + line  # After ^C, or a progress bar.
        if select.select([], [descriptor], [], _WAIT_SECONDS)[1]:
            os.write(descriptor, line.encode("ascii", "backslashreplace"))


def _stopped_children():
    """Stops the child processes, and returns their ids."""
    children = operating_system.children()
    for child in children:
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGSTOP)
    end = time.monotonic() + _WAIT_SECONDS
    while any(map(operating_system.runs, children)) and time.monotonic() < end:
        time.sleep(0.005)
    return children
