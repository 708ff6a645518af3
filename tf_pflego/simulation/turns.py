"""Who may use a simulation: one thread at a time, of the process that made it, until it is closed.

A refusal comes before anything changes.
"""

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from tf_pflego.system import forked

_Method = TypeVar("_Method", bound=Callable)


class Turns:
    """The turns of one object, whose methods `in_turn` marks; it keeps this as `_turns`.

    Attributes:
      ended: Whether `end` was called.
    """

    def __init__(self):
        forked.refuse("a simulation must be made")
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._calls_back = self.ended = False

    def end(self) -> None:
        """Lets no other turn begin."""
        self.ended = True

    def is_of_this_process(self) -> bool:
        """Returns whether this is the process that made it, not one that was forked from it."""
        return os.getpid() == self._process

    @contextlib.contextmanager
    def turn(self, name: str, moves: bool) -> Iterator[None]:
        """Lets others wait until the block ends.

        Args:
          name: The method that is called.
          moves: Whether it changes what `run` relies on from round to round.

        Raises:
          RuntimeError: It is not this caller's turn.
        """
        if not self.is_of_this_process():
            raise RuntimeError(
                "a simulation must be used in the process that made it; "
                f"`{name}` was called in process {os.getpid()}, forked from {self._process}. "
                "Make a simulation in the new process; `restore` goes on from a checkpoint."
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
                    "that. Make a new one; `restore` goes on from a checkpoint."
                )
            if moves and self._calls_back:
                raise RuntimeError(
                    f"`{name}` must not be called from `on_round`, between two rounds of `run`; "
                    "it was. Call it when `run` has returned."
                )
            yield
        finally:
            self._lock.release()

    def call_back(self, function: Callable[[Any], None], argument: Any) -> None:
        """Calls a user's function, which may not change what `run` relies on."""
        self._calls_back = True
        try:
            function(argument)
        finally:
            self._calls_back = False


def in_turn(moves: bool = False) -> Callable[[_Method], _Method]:
    """Marks a method that `Turns` guards; see `Turns.turn`."""

    def marked(method):
        @functools.wraps(method)
        def call(self, *arguments, **named):
            with self._turns.turn(method.__name__.lstrip("_"), moves):
                return method(self, *arguments, **named)

        return call

    return marked
