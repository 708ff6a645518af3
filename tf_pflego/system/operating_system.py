"""The only access to Linux' `/proc`, which macOS does not have.

Linux keeps its own calls, which are fast and leave no files. Other systems have alternatives.
"""

import contextlib
import pathlib
import platform
import sys
import zlib
from typing import IO

IS_LINUX = sys.platform == "linux"  # Tests choose the other ways by it.
_CGROUPS = pathlib.Path("/sys/fs/cgroup")
_OWN_GROUPS = pathlib.Path("/proc/self/cgroup")
# The files of a group's limit and of its use, and the line of memory.stat with the cached pages of
# files, which the kernel gives back at once. Version 2 comes first.
_VERSIONS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def path_of(file: IO | int) -> str:
    """Returns a path that leads to an open file or directory, as long as it is open."""
    name = file if isinstance(file, int) else file.name
    return name if isinstance(name, str) else f"/proc/self/fd/{name}"


def machine() -> str:
    """Returns six characters for this machine, the same in all its containers, until it is off."""
    with contextlib.suppress(OSError):
        if IS_LINUX:
            return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:6]
    return f"{zlib.crc32(platform.node().encode()):08x}"[:6]


def children() -> list[int]:
    """Returns the ids of the child processes."""
    import psutil  # A start of the program is not to wait for it.

    return [child.pid for child in psutil.Process().children()]


def runs(process: int) -> bool:
    """Returns whether a process has neither ended nor been stopped."""
    import psutil

    with contextlib.suppress(psutil.Error):
        return psutil.Process(process).status() not in ("stopped", "tracing-stop", "zombie", "dead")
    return False


def available_memory() -> int:
    """Returns how many bytes this process can take before the machine's or container's limit."""
    import psutil

    limits = [psutil.virtual_memory().available]
    for group in _groups():
        for limit, used, cached in _VERSIONS:
            # A group without a limit has the word max there, or no such file.
            with contextlib.suppress(OSError, ValueError, KeyError):
                left = int((group / limit).read_text()) - int((group / used).read_text())
                stat = dict(map(str.split, (group / "memory.stat").read_text().splitlines()))
                limits.append(left + int(stat[cached]))
    return max(0, min(limits))


def _groups():
    """Yields the directories of the control groups of this process, and of those above them."""
    with contextlib.suppress(OSError):
        for line in _OWN_GROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root = _CGROUPS / "memory" if controllers else _CGROUPS
            group = root / path.lstrip("/")
            yield from (group, *(above for above in group.parents if above.is_relative_to(root)))
