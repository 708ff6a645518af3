"""Single values that users give: each is checked, and converted into a plain Python value.

A whole number may have any integer type, such as NumPy's, or be a whole float. A number may have
any real type, and a path may be `str` or `os.PathLike`. A truth value is no number. An error has
the name of the argument in backticks, the expected value, the given value, and the remedy. It is a
ValueError unless stated otherwise.
"""

import math
import numbers
import operator
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tf_pflego.system import texts

# A sum of two such numbers still fits int32, in which TensorFlow counts.
INTEGER_LIMIT = 10**9
# The square of such a number still fits float32.
FLOAT_LIMIT = 1e18
SEED_LIMIT = 2**63 - 1
_LEAST_FLOAT = float(np.finfo(np.float32).tiny)


def whole_of(text: str) -> int:
    """Returns the whole number of a text, in digits 0 to 9; raises ValueError otherwise.

    Python takes more: hexadecimal numbers, underscores, spaces and digits of other scripts.
    """
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise ValueError(f"a whole number must be digits 0 to 9; got {text!r}. Correct it.")
    return int(text)


def number_of(text: str) -> float:
    """Returns the number of a text, such as 0.01 or 1e-3; raises ValueError otherwise."""
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", text.lower()):
        # These are numbers to Python; what they are for says that they must be finite.
        if text.lower().lstrip("+-") not in ("inf", "infinity", "nan"):
            raise ValueError(f"a number must be digits 0 to 9; got {text!r}. Correct it.")
    return float(text)


def whole(name: str, value: Any, at_least: int | None = None, at_most: int = INTEGER_LIMIT) -> int:
    """Returns a whole number in [at_least, at_most], by default from -at_most on, as an int."""
    real = _real(name, value)
    try:
        checked = operator.index(real)
    except TypeError:
        checked = int(real)
        if checked != real:
            raise ValueError(
                f"`{name}` must be a whole number; got {shown(value)}. Correct `{name}`."
            ) from None
    _refuse_outside(name, checked, -at_most if at_least is None else at_least, None, at_most, None)
    return checked


def number(
    name: str,
    value: Any,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float = FLOAT_LIMIT,
    below: float | None = None,
    words: Sequence[str] = (),
) -> float:
    """Returns a real number as a float in the range of float32, without underflow to 0.

    Without `at_least` and `above` it is from -at_most on. The message names `words`, which could
    have been given instead.
    """
    real = _real(name, value, words)
    if at_least is None and above is None:
        at_least = -at_most
    _refuse_outside(name, real, at_least, above, at_most, below)
    checked = float(real)  # Integers outside may be too large for it.
    if 0 < abs(checked) < _LEAST_FLOAT:
        raise ValueError(
            f"`{name}` must be at least {_LEAST_FLOAT:.2g} in size, the least of float32; got "
            f"{value}. Raise `{name}`."
        )
    return checked


def seed(value: Any) -> int:
    """Returns a seed as an int; raises ValueError unless it is whole and in [0, 2^63)."""
    return whole("seed", value, 0, SEED_LIMIT)


def shape(name: str, value: Any) -> tuple[int, ...]:
    """Returns the shape of an array, sizes from 1 on, as a tuple of ints."""
    try:
        return tuple(whole(name, size, 1) for size in listed(name, value))
    except ValueError:
        raise ValueError(
            f"`{name}` must be sizes from 1 on, such as (28, 28, 1); got {shown(value)}. Correct "
            f"`{name}`."
        ) from None


def truth(name: str, value: Any) -> bool:
    """Returns a truth value as a bool; raises ValueError for other values, such as 0."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"`{name}` must be True or False; got {shown(value)}. Correct `{name}`.")
    return bool(value)


def one_of(name: str, value: Any, choices: Sequence[str]) -> str:
    """Returns one of the choices; raises ValueError for other values."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(
            f"`{name}` must be one of {', '.join(choices)}; got {shown(value)}. "
            f"{texts.suggestion(shown(value), choices)}Correct `{name}`."
        )
    return str(value)


def is_word(value: Any, word: str) -> bool:
    """Returns whether a value is this text. Arrays, which compare by element, are not."""
    return isinstance(value, str) and value == word


def listed(name: str, value: Any, of: str = "") -> tuple[Any, ...]:
    """Returns the elements of a list, an array or another iterable, which is no mapping."""
    try:
        if isinstance(value, bytes | Mapping):
            raise TypeError
        return tuple(value)
    except Exception:  # An object of others may raise anything.
        raise ValueError(f"`{name}` must be a list{of}; got {shown(value)}. Give a list.") from None


def text(name: str, value: Any) -> str:
    """Returns text; raises ValueError for other values."""
    if not isinstance(value, str):
        raise ValueError(f"`{name}` must be text; got {shown(value)}. Correct `{name}`.")
    return str(value)


def path(name: str, value: Any, may_be_empty: bool = True) -> str:
    """Returns the path of a file or directory of this machine as text; "" means none."""
    try:
        place = os.fspath(value)
    except TypeError:
        place = None
    if not isinstance(place, str):
        raise ValueError(
            f"`{name}` must be a path, text or os.PathLike; got {shown(value)}. Correct `{name}`."
        )
    wrong = None
    if not place and not may_be_empty:
        wrong = "a path", "Write the current directory as `.`, if that is meant."
    elif re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", place):
        wrong = "a path of this machine", "Copy the files to a directory of this machine."
    else:
        try:
            if b"\0" in os.fsencode(place):
                raise UnicodeError
            pathlib.Path(place).expanduser()
        except UnicodeError:
            wrong = "a path of characters that the file system has", f"Correct `{name}`."
        except RuntimeError:
            wrong = "a path whose user is known here", "Write the directory out instead of the `~`."
    if wrong is not None:
        raise ValueError(f"`{name}` must be {wrong[0]}; got {place!r}. {wrong[1]}")
    return place


def instance(name: str, value: Any, kind: type, remedy: str) -> None:
    """Raises TypeError unless an object is of a class; `remedy` names the way to it."""
    if not isinstance(value, kind):
        raise TypeError(
            f"`{name}` must be of the class {kind.__name__}; got {type(value).__name__}. {remedy}"
        )


def function(name: str, value: Any) -> None:
    """Raises TypeError unless an object can be called."""
    if not callable(value):
        raise TypeError(
            f"`{name}` must be a function; got {shown(value)}. Leave it out or give a function."
        )


def shown(value: Any) -> str:
    """Returns a value as text of some forty characters at most, without a line break."""
    try:
        text = str(value) if isinstance(value, numbers.Real) else " ".join(repr(value).split())
    except Exception:  # Python writes no integers of some thousand digits; others raise anything.
        is_integer = isinstance(value, int)
        return f"an integer of {value.bit_length()} bits" if is_integer else type(value).__name__
    return text if len(text) <= 60 else f"{text[:40]}..."


def _real(name, value, words=()):
    """Returns a finite real number as it came."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        # Integers of any size are finite; `math.isfinite` would make floats of them.
        if isinstance(value, numbers.Integral) or math.isfinite(value):
            return value
    instead = "".join(f" or {word}" for word in words)
    raise ValueError(
        f"`{name}` must be a finite number{instead}; got {shown(value)}. Correct `{name}`."
    )


def _refuse_outside(name, value, at_least, above, at_most, below):
    if at_least is not None and value < at_least:
        expected, remedy = f"at least {at_least}", "Raise"
    elif above is not None and value <= above:
        expected, remedy = f"above {above}", "Raise"
    elif below is not None and value >= below:
        expected, remedy = f"below {below}", "Lower"
    elif value > at_most:
        expected, remedy = f"at most {at_most}", "Lower"
    else:
        return
    raise ValueError(f"`{name}` must be {expected}; got {shown(value)}. {remedy} `{name}`.")


def finite_or_none(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Returns metrics with None in place of inf and NaN, which JSON lacks."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in metrics.items()
    }
