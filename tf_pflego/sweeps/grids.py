"""The values of settings that a sweep takes: ranges, and grids of all combinations."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np

from tf_pflego.system import values

_MOST_CELLS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Range:
    """The values of a setting from `low` to `high` for a search.

    Args:
      low: The least value.
      high: The largest value.
      log: Whether their logarithms are spread evenly, as for a learning rate.

    Raises:
      ValueError: The limits are no numbers that make a range.

    Example, explained in docs/sweeps.md#search-a-range:
      >>> cell = {"algorithm": "fedper", "client_learning_rate": pfl.Range(0.001, 1, log=True)}
      >>> experiment = pfl.Experiment([cell], trials=20)
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self):
        low, high = values.number("low", self.low), values.number("high", self.high)
        values.truth("log", self.log)
        if not low < high or (self.log and low <= 0):
            raise ValueError(
                f"a range must go from a number to a larger one{', above 0' * self.log}; got "
                f"{self}. Write it as in 1e-3..1:log."
            )

    def of(self, kind: type) -> "Range":
        """Returns the range with limits of the type of a setting, int or float."""
        return dataclasses.replace(self, low=kind(self.low), high=kind(self.high))

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}{':log' * self.log}"


def grid(**among: Any) -> list[dict[str, Any]]:
    """Returns the cells of all combinations of settings. The last setting varies fastest.

    A list or a tuple has the values of a setting. Anything else is its only value.

    Raises:
      ValueError: A list is empty, or there are more than a million combinations.

    Example, explained in docs/sweeps.md#from-python-with-your-own-data-and-network:
      >>> pfl.grid(algorithm=["fedavg", "fedper"], local_steps=5)
      [{'algorithm': 'fedavg', 'local_steps': 5}, {'algorithm': 'fedper', 'local_steps': 5}]
    """
    for name, one in among.items():
        if not len(_values_of(one)):
            raise ValueError(f"`{name}` must have at least one value; got none. Give it some.")
    count = math.prod(len(_values_of(one)) for one in among.values())
    if count > _MOST_CELLS:
        raise ValueError(
            f"a grid must have at most {_MOST_CELLS:,} cells; got {count:,}. Give fewer values, or "
            "search ranges: `Range(low, high)` with `trials`."
        )
    combinations = itertools.product(*map(_values_of, among.values()))
    return [dict(zip(among, combination, strict=True)) for combination in combinations]


def _values_of(one):
    return one if isinstance(one, list | tuple | np.ndarray) else (one,)
