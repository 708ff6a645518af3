"""HTML that is put together from elements: whatever is no markup becomes text, by construction."""

import html
from typing import Any

from tf_pflego.system import terminal

_VOID = ("input", "meta")


class Markup(str):
    """HTML. What is made of it by the methods of `str` is text again, and is escaped anew."""


def escaped(value: Any) -> Markup:
    """Returns a value as text that is safe in HTML, also inside an attribute; HTML stays HTML.

    What would be obeyed elsewhere, such as what turns the order of letters round, is visible here.
    """
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(terminal.printable(str(value)), quote=True))


def joined(*parts: Any) -> Markup:
    """Returns HTML and texts one after the other; lists of them count as their parts."""
    flat = (joined(*part) if isinstance(part, (list, tuple)) else escaped(part) for part in parts)
    return Markup("".join(flat))


def element(kind: str, /, *content: Any, **attributes: Any) -> Markup:
    """Returns an element.

    Args:
      kind: Its name.
      *content: What is in it, as `joined` takes it.
      **attributes: Its attributes; `_` stands for `-`, and is left out at the end. One that is True
        has no value, and one that is False, None or empty is left out.
    """
    parts = [f"<{kind}"]
    for key, value in attributes.items():
        if value is False or value is None or value == "":
            continue
        key = key.rstrip("_").replace("_", "-")
        parts.append(f" {key}" if value is True else f' {key}="{escaped(value)}"')
    if kind in _VOID:
        return Markup("".join([*parts, ">"]))
    return Markup("".join([*parts, ">", joined(*content), f"</{kind}>"]))
