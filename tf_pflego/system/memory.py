"""How much memory this process may still take: what the machine has, or its container (Linux)."""

import contextlib
import pathlib

_CGROUPS = pathlib.Path("/sys/fs/cgroup")
_OWN_GROUPS = pathlib.Path("/proc/self/cgroup")
_MEMINFO = pathlib.Path("/proc/meminfo")
# The files of a group's limit, of what it uses, and the line of memory.stat with the part of that
# which the kernel gives back at once: cached pages of files. First those of version 2.
_VERSIONS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def available() -> int:
    """Returns how many bytes can be taken before the machine or a container's limit is reached."""
    found = [_of_machine()]
    for group in _groups():
        for limit, used, cached in _VERSIONS:
            # A group without a limit has the word max there, or no such file.
            with contextlib.suppress(OSError, ValueError, KeyError):
                rest = int((group / limit).read_text()) - int((group / used).read_text())
                found.append(rest + int(_table(group / "memory.stat")[cached]))
    return max(0, min(found))


def _of_machine():
    return int(_table(_MEMINFO)["MemAvailable:"]) * 1024


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


def _table(path):
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0]: words[1] for words in lines if len(words) > 1}
