"""What clients are called: text of one line that stands in tables, on flags and in file names."""

from collections.abc import Sequence
from typing import Any

LONGEST = 60  # So that a file's name has room for it, whatever its letters are.
_REMEDY = "Give every client a name of its own, in the order of the clients."


def checked(names: Sequence[Any] | None, num_clients: int) -> tuple[str, ...] | None:
    """Returns the names of all clients as a tuple; None if there are none.

    Raises:
      TypeError: They are no sequence of text.
      ValueError: There are not as many as clients, or one is empty, too long, of several lines, has
        characters that cannot be shown, or is another one but for upper and lower case.
    """
    if names is None:
        return None
    if isinstance(names, str) or not hasattr(names, "__getitem__"):  # A set has no order.
        raise TypeError(
            f"`client_names` must be a sequence of text; got {type(names).__name__}. {_REMEDY}"
        )
    names, seen = tuple(names), set()
    for name in names:
        if not isinstance(name, str):
            raise TypeError(
                f"`client_names` must be text; got {name!r:.60}. Write numbers as `str(number)`."
            )
        if not 1 <= len(name) <= LONGEST or not name.isprintable() or name != name.strip():
            raise ValueError(
                f"`client_names` must be of one line, with 1 to {LONGEST} characters and no space "
                f"at the ends; got {name!r:.80}. Rename the client."
            )
        if name.casefold() in seen:
            raise ValueError(
                "`client_names` must differ, in more than upper and lower case; got "
                f"{name!r} twice. {_REMEDY}"
            )
        seen.add(name.casefold())
    if len(names) != num_clients:
        raise ValueError(
            f"`client_names` must be {num_clients} names, one per client; got {len(names)}. "
            f"{_REMEDY}"
        )
    return tuple(map(str, names))


def joined(names: tuple[str, ...] | None, others: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Returns the names of clients and, after them, of others that join them.

    Raises:
      ValueError: Only one of the two has names.
    """
    if (names is None) != (others is None):
        expected, got = ("no names", "some") if names is None else ("names", "none")
        raise ValueError(
            f"the clients that join must have {expected}, as those that they join; got {got}. Name "
            "all of them or nobody."
        )
    return None if names is None else (*names, *others)
