"""How much memory this process has taken, as the kernel counts it (Linux)."""

import pathlib

_RESET_PEAK = "5"


def reset_peak() -> int:
    """Lets the peak be what is in memory now, and returns that in bytes."""
    pathlib.Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    return peak()


def peak() -> int:
    """Returns the most bytes that were in memory at once since the last reset."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024
