"""Leftovers to be removed before a program is ended in the middle of something.

Code that makes something temporary removes it in a `finally` clause, and says here
how, since a program that a signal ends by force does not get there; see `tf_pflego.system.signals`.
"""

import contextlib
from collections.abc import Callable, Iterator

_removals: list[Callable[[], None]] = []


def add(removal: Callable[[], None]) -> None:
    """Notes a function that removes something, whatever else runs at the time."""
    _removals.append(removal)


def forget(removal: Callable[[], None]) -> None:
    """Forgets it, since the thing has been removed; there may be nothing to forget."""
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
    """Forgets everything, in a child process to which nothing of it belongs."""
    _removals.clear()


def remove_all() -> None:
    """Removes everything, the newest first."""
    while _removals:
        with contextlib.suppress(Exception):  # What cannot be removed must not keep the others.
            _removals.pop()()
