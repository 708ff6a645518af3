"""The choice of settings, which uses only validation examples.

It reads rows of tuning.csv, which have nothing of test examples.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tf_pflego.core.statistic_names import Shown, first_of
from tf_pflego.sweeps.experiments import CHOSEN_BY, Cell, Range

FINISHED, NOT_FINITE = "finished", "not finite"


class Trial(NamedTuple):
    """Settings that were tried, on all tuning seeds or as far as they were worth it."""

    name: str
    settings: dict[str, Any]
    value: float | None  # the mean over seeds, or None if a seed was not finite
    first: Shown  # the statistic that it is of
    runs: int  # how many were made
    rounds: int  # how many these had, all together


def settings_tried(cell: Cell, budget: int) -> list[dict[str, Any]]:
    """Returns the settings that are tried from a grid, evenly spread if there are more."""
    if cell.is_searched or not cell.choices:
        return []
    # There may be more combinations than can be listed.
    total = math.prod(map(len, cell.choices.values()))
    count, tried = min(budget, total), []
    for number in range(count):
        place, settings = number * total // count, {}
        for name, among in reversed(cell.choices.items()):
            place, last = divmod(place, len(among))
            settings[name] = among[last]
        tried.append({name: settings[name] for name in cell.choices})
    return tried


def trials_of(cell: Cell, rows: Sequence[Mapping[str, Any]]) -> list[Trial]:
    """Returns the trials of a cell, from the rows of tuning.csv."""
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["run"] == cell.name:
            by_name.setdefault(row["trial"], []).append(row)
    trials = []
    for name, of_trial in by_name.items():
        finished = [row for row in of_trial if row["state"] == FINISHED]
        first = first_in(finished)
        cells = [row.get(first.metric(CHOSEN_BY)) for row in finished]
        values = [float(cell) for cell in cells if cell not in (None, "")]
        whole = len(values) == len(of_trial)
        settings = {key: _value(among, of_trial[0][key]) for key, among in cell.choices.items()}
        value = statistics.mean(values) if whole else None
        rounds = sum(int(row["num_rounds"]) for row in of_trial)
        trials.append(Trial(name, settings, value, first, len(of_trial), rounds))
    return trials


def first_in(rows: Iterable[Mapping[str, Any]]) -> Shown:
    """Returns the first statistic with a value in rows of a table."""
    return first_of(name for row in rows for name, cell in row.items() if cell not in (None, ""))


def best(cell: Cell, rows: Sequence[Mapping[str, Any]]) -> Trial | None:
    """Returns the trial with the best value, the first of equal trials, or None without any."""
    whole = [
        (trial.first.sign * trial.value, trial)
        for trial in trials_of(cell, rows)
        if trial.value is not None
    ]
    return max(whole, key=lambda pair: pair[0], default=(None, None))[1]


def at_edge(cell: Cell, settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns the chosen settings that are the least or the largest value tried."""
    edges = {}
    for name, among in cell.choices.items():
        if isinstance(among, Range):
            continue  # A search tries values between the ends.
        numbers = [one for one in among if isinstance(one, int | float)]
        if len(numbers) == len(among) > 1 and settings[name] in (min(numbers), max(numbers)):
            edges[name] = "least" if settings[name] == min(numbers) else "largest"
    return edges


def _value(among, text):
    """Returns the value of a row's text."""
    if isinstance(among, Range):
        return type(among.low)(text)
    return next((one for one in among if str(one) == str(text)), text)
