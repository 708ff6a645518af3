"""Predicts whether a child process will answer, from the kernel's facts about it.

A time limit is not possible: a round may take milliseconds or hours, and the next may be an
evaluated round, or have other participants. However, a working process can be recognised at any
speed: at any moment at least one of its threads runs, waits for a processor, or waits for a disk.
"""

import os
import pathlib

LOOK_SECONDS = 0.5
_STOPPED_LOOKS = 2  # When a whole job goes on after a stop, its processes do not do so at once.
# A worker whose threads all sleep waits for something. It has nothing to wait for while it owes an
# answer, and idle ones were never seen with a thread that did not sleep.
_SILENT_SECONDS = 60.0


class Watch:
    """Watches a child process while the program waits for its answers. It must not be reaped.

    It counts looks and not time: if the program itself is stopped or frozen, and the child with it,
    time passes without a look.
    """

    def __init__(self, pid: int):
        self._pid = pid
        self._stopped = self._silent = 0
        self._awaited: object | None = None

    def look(self, awaited: object | None) -> str | None:
        """Looks at the child; to be called every `LOOK_SECONDS`.

        `awaited` is the request without an answer, or None. It returns the reason that the child
        will not answer, as the end of a sentence, or None.
        """
        self._stopped = self._stopped + 1 if _is_stopped(self._pid) else 0
        if self._stopped >= _STOPPED_LOOKS:
            return "was stopped by a signal"
        waits = awaited is not None and awaited is self._awaited
        self._silent = self._silent + 1 if waits and _sleeps(self._pid) else 0
        self._awaited = awaited
        if self._silent * LOOK_SECONDS >= _SILENT_SECONDS:
            return f"slept for {_SILENT_SECONDS:.0f} seconds without an answer"
        return None


def _is_stopped(pid):
    """Returns whether a signal such as SIGSTOP has stopped a child; a debugger's do not count."""
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False  # It has ended.


def _sleeps(pid):
    """Returns whether all threads of a process wait for something that is not a disk."""
    states = []
    for thread in pathlib.Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            # The name of the thread, in brackets, may have spaces and brackets itself.
            states.append(thread.read_text().rsplit(")", 1)[1].split()[0])
        except (FileNotFoundError, ProcessLookupError):
            pass  # This thread has just ended.
    return set(states) == {"S"}
