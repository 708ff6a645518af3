"""Memory that this process has taken, as the kernel counts it (Linux), and a disk that is full."""

import contextlib
import pathlib
import resource
import signal
import threading
from collections.abc import Callable, Iterator

_RESET_PEAK = "5"


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
