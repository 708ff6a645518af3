"""Leftovers to be removed before a program is ended in the middle of something.

Code that makes temporary files removes them in a `finally` clause, and registers their removal
here, since a forced end by a signal skips the clause (see `tf_pflego.system.signals`).
"""

import contextlib
from collections.abc import Callable, Iterator

_removals: list[Callable[[], None]] = []


def add(removal: Callable[[], None]) -> None:
    """Registers a function that removes something, at any time."""
    _removals.append(removal)


def forget(removal: Callable[[], None]) -> None:
    """Unregisters it after the removal, if it is registered."""
    with contextlib.suppress(ValueError):
        _removals.remove(removal)


@contextlib.contextmanager
def removed_after(removal: Callable[[], None]) -> Iterator[None]:
    """Calls a function that removes something after the block, or at an end by force within it."""
    add(removal)
    try:
        yield
    finally:
        removal()
        forget(removal)


def forget_all() -> None:
    """Unregisters everything, in a child process that owns none of it."""
    _removals.clear()


def remove_all() -> None:
    """Removes everything, the newest first."""
    while _removals:
        with contextlib.suppress(Exception):  # What cannot be removed must not keep the others.
            _removals.pop()()
