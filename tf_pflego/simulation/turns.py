"""Who may use a simulation: one thread at a time, of the process that made it, until it is closed.

A refusal comes before anything changes.
"""

import functools
import os
import threading
from collections.abc import Callable
from typing import TypeVar

from tf_pflego.system import forked

_Method = TypeVar("_Method", bound=Callable)


class Turns:
    """The turns of a simulation, which keeps this as `_turns`; `in_turn` marks its methods."""

    def __init__(self):
        forked.refuse("a simulation must be made")
        self.process = os.getpid()
        self.lock = threading.RLock()
        self.ended = False
        self.calls_back = False  # While it is, a user's function must not change what `run` needs.

    def refuse(self, name: str, moves: bool) -> None:
        """Raises RuntimeError if a method may not run in a turn of this thread."""
        if self.ended:
            raise RuntimeError(
                f"a simulation must be used before it is closed; `{name}` was called after that. "
                "Make a new one; `restore` goes on from a checkpoint."
            )
        if moves and self.calls_back:
            raise RuntimeError(
                f"`{name}` must not be called from `on_round`, between two rounds of `run`; it "
                "was. Call it when `run` has returned."
            )


def in_turn(moves: bool = False) -> Callable[[_Method], _Method]:
    """Marks a method that may run in its turn; `moves` if it changes what `run` relies on."""

    def marked(method):
        name = method.__name__.lstrip("_")

        @functools.wraps(method)
        def call(self, *arguments, **named):
            turns = self._turns
            if os.getpid() != turns.process:
                raise RuntimeError(
                    f"a simulation must be used in the process that made it; `{name}` was called "
                    f"in process {os.getpid()}, forked from {turns.process}. Make a simulation in "
                    "the new process; `restore` goes on from a checkpoint."
                )
            if not turns.lock.acquire(blocking=False):
                raise RuntimeError(
                    f"a simulation must be used by one thread at a time; `{name}` was called while "
                    "another thread uses it. Wait for the other thread, or make a simulation for "
                    "each."
                )
            try:
                turns.refuse(name, moves)
                return method(self, *arguments, **named)
            finally:
                turns.lock.release()

        return call

    return marked
