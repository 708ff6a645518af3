"""The form of names in messages, tables and representations of objects."""

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

# Characters that a terminal obeys, that change the order or the lines of a text, or that cannot be
# encoded, as in the names of files that are not in UTF-8.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Returns a text with its control characters as escapes such as \\x1b, ends of lines too."""
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def reason(error: BaseException, most: int = 200) -> str:
    """Returns the first characters of an error's message, on one line."""
    return printable(" ".join(str(error).split()))[:most]


def unseen(text: str) -> str:
    """Returns the first character of a text that is not seen, as its code and its name, or "".

    Spaces of any width, and the two joiners, which are used in Persian and emoji, are allowed.
    """
    for one in text:
        kind = unicodedata.category(one)
        if not one.isprintable() and kind != "Zs" and one not in "\u200c\u200d":
            return f"the character U+{ord(one):04X} ({unicodedata.name(one, 'a control')})"
    return ""


def alike(names: Iterable[str], cases: bool) -> tuple[str, str] | None:
    """Returns two texts that look the same, or None.

    They are equal, or differ only in spaces, invisible characters or the form of Unicode, and with
    `cases` also in upper and lower case.
    """
    seen: dict[str, str] = {}
    for name in names:
        seen_as = unicodedata.normalize("NFC", " ".join(name.split()))
        seen_as = "".join(one for one in seen_as if unicodedata.category(one) != "Cf")
        seen_as = seen_as.casefold() if cases else seen_as
        if seen_as in seen:
            return seen[seen_as], name
        seen[seen_as] = name
    return None


def span(numbers: Sequence[int] | np.ndarray) -> str:
    """Returns `3` or `3 to 7`: the least and the largest of some numbers."""
    least, most = int(np.min(numbers)), int(np.max(numbers))
    return str(least) if least == most else f"{least} to {most}"


def array(shape: Sequence[int], dtype: np.dtype) -> str:
    """Returns such as `uint8 [28, 28, 1]`."""
    return f"{np.dtype(dtype).name} {list(shape)}"


def suggestion(got: str, names: Iterable[str]) -> str:
    """Returns `Did you mean NAME? ` with the name that is most like a text, or nothing."""
    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(got.lower(), by_lower, n=1)
    return f"Did you mean {printable(by_lower[close[0]])}? " if close else ""


def words(value: Any) -> str:
    """Returns the value of a setting as names and tables have it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def counted(number: int, one: str, many: str = "") -> str:
    """Returns such as `1 client` or `3 clients`."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def duration(seconds: float) -> str:
    """Returns a time in words: `40 s`, `12 min` or `3 h 05 min`."""
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def aligned(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Returns lines of columns that are as wide as need be, flush left (<) or right (>)."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)
        ).rstrip()
        for row in rows
    ]
