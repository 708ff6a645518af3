"""Numbers that are not finite: how a round finds them, and what it says of them."""

from collections.abc import Collection

import numpy as np

from tf_pflego.core import nests
from tf_pflego.core.nests import Structure

_MOST_NAMED = 10


class NotFiniteError(ArithmeticError):
    """A round cannot end with finite numbers; nothing of it is kept."""


def leaves_not_finite(structure: Structure) -> list[str]:
    """Returns the names of the leaves of a nest of arrays that have an infinite number or a NaN."""
    return [
        name
        for name, leaf in nests.named(structure).items()
        if np.asarray(leaf).dtype.kind == "f" and not np.isfinite(leaf).all()
    ]


def line_of_left_out(round_number: int, clients: Collection[int]) -> str:
    """Returns the line that names the clients that a round leaves out."""
    return (
        f"tf_pflego: round {round_number}: what {named(clients)} computed is not finite (infinite "
        "or NaN), so the round is run without; if it happens often, lower client_learning_rate or "
        "scale the examples"
    )


def nobody_is_left(round_number: int, clients: Collection[int]) -> NotFiniteError:
    """Returns the error of a round all of whose participants have updates that are not finite."""
    return NotFiniteError(
        f"round {round_number}: at least one participant's update must be finite; got infinite "
        f"numbers or NaN from all of them, {named(clients)}. Nothing of the round is kept. Lower "
        "`client_learning_rate` or, if the loss has grown over the rounds, `server_learning_rate`; "
        "if neither helps, scale the examples."
    )


def server_is_not_finite(
    round_number: int, leaves: Collection[str], clients: Collection[int]
) -> NotFiniteError:
    """Returns the error of a round after which the server's state would not be finite."""
    return NotFiniteError(
        f"round {round_number}: the server's state must stay finite; the uploads of "
        f"{named(clients)} are finite but would make {', '.join(leaves)} infinite or NaN. Nothing "
        "of the round is kept. Lower `server_learning_rate`, or `client_learning_rate` if the "
        "method has no other."
    )


def named(clients: Collection[int]) -> str:
    """Returns clients as text, the first ten by number."""
    ids = sorted(map(int, clients))
    more = f" and {len(ids) - _MOST_NAMED} more" if len(ids) > _MOST_NAMED else ""
    return f"client{'s' * (len(ids) > 1)} {', '.join(map(str, ids[:_MOST_NAMED]))}{more}"
