"""How a page says numbers and lists of names."""

import numpy as np

from tf_pflego.reports import comparison
from tf_pflego.reports.comparison import PERCENT
from tf_pflego.system import terminal

_MOST_NAMED_CLASSES, _LENGTH_OF_CLASS = 8, 24
_NO_BREAK = "\N{NO-BREAK SPACE}"


def scale(metric):
    """Returns by what the values of a metric are multiplied where they are shown."""
    return PERCENT if comparison.is_accuracy(metric) else 1


def value(value, metric):
    """Returns a value of a metric with its unit."""
    if not np.isfinite(value):
        return "–"
    return percent(PERCENT * value) if comparison.is_accuracy(metric) else short(value)


def percent(value):
    """Returns such as 97.31 %."""
    return f"{value:.2f}{_NO_BREAK}%"


def short(value):
    """Returns a number of four digits."""
    return f"{value:.4g}" if np.isfinite(value) else "–"


def tidy(value):
    """Returns a number of few digits for the script, or None."""
    return float(f"{value:.6g}") if np.isfinite(value) else None


def cell(value):
    """Returns what a cell of a table shows."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if value != "" else "–"


def letter(number):
    """Returns what a partition is called: A, B, .., and then numbers."""
    return chr(ord("A") + number) if number < 26 else str(number + 1)


def counted(count, word):
    """Returns such as `1 client` or `3 clients`; the count may be text."""
    return f"{count} {word}" if str(count) == "1" else f"{count} {word}s"


def listed(words):
    """Returns words as a sentence lists them."""
    words = [str(word) for word in words]
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def ranges(numbers):
    """Returns ascending whole numbers as text, such as 0–3 7."""
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    return " ".join(
        str(part[0]) if len(part) == 1 else f"{part[0]}–{part[-1]}" for part in parts if len(part)
    )


def classes(numbers, names):
    """Returns which classes a client holds: those of few with their names, if there are names."""
    if names is None or len(numbers) > _MOST_NAMED_CLASSES:
        return ranges(numbers)
    shown = (terminal.printable(comparison.shortened(names[k], _LENGTH_OF_CLASS)) for k in numbers)
    # A line breaks between classes alone, and by their spaces the script tells them apart.
    named = (f"{k}: {name}".replace(" ", _NO_BREAK) for k, name in zip(numbers, shown, strict=True))
    return ", ".join(named)


def meaning(metric):
    """Returns what a metric is called and of which model and clients it is."""
    sentences = comparison.title_of(metric), comparison.meaning_of(metric)
    return " ".join(map(sentence, sentences))


def sentence(text):
    """Returns a text as a sentence."""
    return f"{text[:1].upper()}{text[1:]}."
