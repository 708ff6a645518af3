"""What the kernel tells of processes and their memory (Linux), and a disk that is full."""

import contextlib
import ctypes
import gc
import os
import pathlib
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator

_RESET_PEAK = "5"
_GONE_SECONDS = 200


def is_running(pid: int) -> bool:
    """Returns whether a process is there and has not ended."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in ("Z", "X")


def commands(text: str | os.PathLike, file: str = "environ") -> dict[int, str]:
    """Returns the commands of processes with a text in their environment, by their ids.

    With `file="cmdline"` it is in the command and its arguments, which end with a zero each.
    """
    found = {}
    for place in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # It may have ended, or be another user's.
            if os.fsencode(text) in (place / file).read_bytes():
                found[int(place.name)] = (place / "cmdline").read_text().split("\0")[0]
    return found


def wait_until_gone(pid: int) -> None:
    """Waits for the end of a process."""
    deadline = time.monotonic() + _GONE_SECONDS
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} is still running"
        time.sleep(0.01)


def reset_peak_memory() -> int:
    """Lets the peak be what is in memory now, and returns that in bytes."""
    pathlib.Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    return peak_memory()


def peak_memory() -> int:
    """Returns the most bytes that were in memory at once since the last reset."""
    return _kilobytes("VmHWM") * 1024


def _kilobytes(name):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{name}:")]
    return int(line.split()[1])


@contextlib.contextmanager
def peak_of_anonymous_memory() -> Iterator[Callable[[], int]]:
    """Watches this process in a block, whose memory for mapped files does not count.

    Yields:
      A function of the most bytes that there were more than at the beginning.
    """
    ctypes.CDLL(None).malloc_trim(0)  # What is free already would be taken unseen.
    start, seen, over = _kilobytes("RssAnon"), [0], threading.Event()

    def watch():
        while not over.wait(0.002):
            seen.append(_kilobytes("RssAnon") - start)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield lambda: max(seen) * 1024
    finally:
        over.set()
        watcher.join()


@contextlib.contextmanager
def files_up_to(num_bytes: int) -> Iterator[None]:
    """Refuses this process larger files, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@contextlib.contextmanager
def collecting() -> Iterator[Callable[[], int]]:
    """Yields a function that collects what a block has made, and looks at nothing else.

    All that TensorFlow has made would take it seconds.
    """
    gc.freeze()
    try:
        yield gc.collect
    finally:
        gc.unfreeze()
