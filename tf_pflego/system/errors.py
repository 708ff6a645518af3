"""The owner of an exception, this package or other code, and exceptions raised together."""

import contextlib
import functools
import traceback
from collections.abc import Callable, Iterator
from typing import Any

_PACKAGE = __name__.partition(".")[0]
_MARK = "raised_by_package"


class Faults(ValueError):
    """Errors of a user's input that are found one by one and raised together, a line for each."""

    def __init__(self):
        super().__init__()
        self._found: list[Exception] = []

    def __str__(self) -> str:
        lines = (f"\n- {' '.join(str(error).split())}" for error in self._found)
        return f"{len(self._found)} faults must be mended:{''.join(lines)}"

    @contextlib.contextmanager
    def collected(self) -> Iterator[None]:
        """Keeps the error that ends a block, if it is a ValueError or TypeError, for `refuse`."""
        try:
            yield
        except (ValueError, TypeError) as error:
            self._found.append(error)

    def refuse(self) -> None:
        """Raises the errors: one as it is, and several as this one."""
        if self._found:
            raise self._found[0] if len(self._found) == 1 else self


def is_ours(error: BaseException) -> bool:
    """Returns whether this package itself raised an exception, here or where `marked` runs."""
    mark = getattr(error, _MARK, None)
    if mark is not None:
        return mark
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE


def marked(function: Callable) -> Callable:
    """Preserves the owner of a function's exceptions on their way to another process.

    Errors that arrive there have no traceback.
    """

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except Exception as error:
            setattr(error, _MARK, is_ours(error))
            raise

    return call
