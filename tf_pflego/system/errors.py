"""Whose an exception is: raised by this package, with a message for the user, or by others."""

import functools
import traceback
from collections.abc import Callable
from typing import Any

_PACKAGE = __name__.partition(".")[0]
_MARK = "raised_by_package"


def is_ours(error: BaseException) -> bool:
    """Returns whether this package itself raised an exception, here or where `marked` runs."""
    mark = getattr(error, _MARK, None)
    if mark is not None:
        return mark
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE


def marked(function: Callable) -> Callable:
    """Lets exceptions of a function keep whose they are on their way to another process.

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
