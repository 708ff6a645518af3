"""Infinity and NaN: how a round finds them, and names their clients."""

from collections.abc import Collection

import numpy as np

from tf_pflego.core import nests
from tf_pflego.core.nests import Structure

_MOST_NAMED = 10


class NotFiniteError(ArithmeticError):
    """A round cannot end with finite numbers, and makes no change."""


def leaves_not_finite(structure: Structure) -> list[str]:
    """Returns the names of the leaves of a nest of arrays that have an infinite number or a NaN."""
    return [
        name
        for name, leaf in nests.named(structure).items()
        if np.asarray(leaf).dtype.kind == "f" and not np.isfinite(leaf).all()
    ]


def named(clients: Collection[int]) -> str:
    """Returns clients as text, the first ten by number."""
    ids = sorted(map(int, clients))
    more = f" and {len(ids) - _MOST_NAMED} more" if len(ids) > _MOST_NAMED else ""
    return f"client{'s' * (len(ids) > 1)} {', '.join(map(str, ids[:_MOST_NAMED]))}{more}"
