"""One thread at a time uses a simulation, of the process that made it, until it is closed.

A refusal comes before anything changes.
"""

import contextlib
import functools
import os
import threading
from collections.abc import Callable
from typing import TypeVar

from tf_pflego.core import execution
from tf_pflego.system import forked

_Method = TypeVar("_Method", bound=Callable)


class Turns:
    """The turns of a simulation, which keeps this as `_turns`; `in_turn` marks its methods."""

    def __init__(self):
        forked.refuse("a simulation must be made")
        execution.refuse_others("a simulation must be made")
        self.process = os.getpid()
        self._lock = threading.RLock()
        self.ended = False
        self.calls_back = False  # While it is, a user's function must not change what `run` needs.

    @contextlib.contextmanager
    def turn(self, name: str, moves: bool):
        """Raises RuntimeError if a method of this name may not run now, or gives it its turn."""
        if os.getpid() != self.process:
            raise RuntimeError(
                f"a simulation must be used in the process that made it; `{name}` was called in "
                f"process {os.getpid()}, forked from {self.process}. Make a simulation in the new "
                "process; `restore` continues from a checkpoint."
            )
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                f"a simulation must be used by one thread at a time; `{name}` was called while "
                "another thread uses it. Wait for the other thread, or make a simulation for each."
            )
        try:
            if self.ended:
                raise RuntimeError(
                    f"a simulation must be used before it is closed; `{name}` was called after "
                    "that. Make a new one; `restore` continues from a checkpoint."
                )
            execution.refuse_others(f"`{name}` must be called")
            if moves and self.calls_back:
                raise RuntimeError(
                    f"`{name}` must not be called from `on_round`, between two rounds of `run`; it "
                    "was. Call it when `run` has returned."
                )
            yield
        finally:
            self._lock.release()


def in_turn(moves: bool = False) -> Callable[[_Method], _Method]:
    """Marks a method that may run in its turn, with `moves` if it changes state that `run` uses."""

    def marked(method):
        @functools.wraps(method)
        def call(self, *arguments, **named):
            with self._turns.turn(method.__name__.lstrip("_"), moves):
                return method(self, *arguments, **named)

        return call

    return marked
