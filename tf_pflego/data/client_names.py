"""Names of clients: one line of text for tables, flags and file names."""

import contextlib
import hashlib
import operator
import re
from collections.abc import Sequence
from typing import Any

from tf_pflego.system import texts, values

LONGEST = 200
_MOST_BYTES = 180  # of a part of a file's name, which may have 255 in all
_REMEDY = "Give every client a name of its own, in the order of the clients."


def checked(
    names: Sequence[Any] | None, num_clients: int, what: str = "`client_names`"
) -> tuple[str, ...] | None:
    """Returns the names of all clients as a tuple, or None. `what` is their name in messages."""
    if names is None:
        return None
    if isinstance(names, str) or not hasattr(names, "__getitem__"):  # A set has no order.
        raise TypeError(
            f"`client_names` must be a sequence of text; got {type(names).__name__}. {_REMEDY}"
        )
    names = values.listed("client_names", names)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(
                f"`client_names` must be text; got {values.shown(name)}. Write numbers as "
                "`str(number)`."
            )
        unseen = texts.unseen(name)
        if not 1 <= len(name) <= LONGEST or unseen or name != name.strip():
            raise ValueError(
                f"{what} must be of one line, with 1 to {LONGEST} characters and no space at the "
                f"ends; got {name!r:.80}{unseen and f' with {unseen}'}. Rename the client."
            )
    if pair := texts.alike(names, cases=True):
        raise ValueError(
            f"{what} must differ, in more than upper and lower case, spaces and the form of "
            "Unicode; got {!a:.80} and {!a:.80}. Rename a client.".format(*pair)
        )
    if len(names) != num_clients:
        raise ValueError(
            f"`client_names` must be {num_clients} names, one per client; got {len(names)}. "
            f"{_REMEDY}"
        )
    return tuple(map(str, names))


def id_of(
    client: Any,
    names: Sequence[str] | None,
    num_clients: int,
    argument: str = "client",
    others: str = "",
) -> int:
    """Returns the id of a client that is given by its name or its id, an int or its digits.

    If some names are numbers, an id that is not its client's name is refused. Errors call it
    `argument`, and name the `others` that the caller takes.
    """
    names = names or ()
    if isinstance(client, str) and client in names:
        return names.index(client)
    with contextlib.suppress(TypeError, ValueError, AttributeError):
        number = values.whole_of(client) if isinstance(client, str) else operator.index(client)
        if 0 <= number < num_clients:
            if not any(map(str.isdecimal, names)) or names[number] == str(number):
                return number
            others = f", but its name where names are numbers: the id {number} is {names[number]!r}"
    or_name = "or the name " * bool(names)
    hint = texts.suggestion(client, names) if isinstance(client, str) else ""
    raise ValueError(
        f"`{argument}` must be an id, a whole number in [0, {num_clients}), {or_name}of a client"
        f"{others}; got {values.shown(client)}. {hint}Give the id {or_name}of a client of this "
        "simulation."
    )


def in_file_name(name: str) -> str:
    """Returns a name as a part of a file's name: no separator, and nothing that shells expand.

    The ASCII characters in the result are letters, digits and `_.- `. All other characters are
    percent-encoded, and different names stay different. A name too long for a file gets a digest as
    its end.
    """
    unsafe = r"[^\w.\- \x80-\U0010ffff]"
    called = re.sub(unsafe, lambda letter: f"%{ord(letter[0]):02X}", name)
    if len(encoded := called.encode()) <= _MOST_BYTES:
        return called
    digest = hashlib.sha256(encoded).hexdigest()[:32]
    return f"{encoded[: _MOST_BYTES - 33].decode(errors='ignore')}~{digest}"
