"""Times things in turn (A B A B ...), and compares the medians of what each of them takes."""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

WARM_UP = 3


class Case(NamedTuple):
    """Things that are timed in turn, and what a report takes from their seconds.

    A key of the report is the case's name, a slash, and a key that stands here.
    """

    name: str
    things: Mapping[object, Callable]  # what is called, by a name that the fields below use
    repeats: int
    seconds: Mapping[str, object] = {}  # key -> thing
    ratios: Mapping[str, tuple] = {}  # key -> (thing, the one that it is divided by)
    over_floor: Mapping[str, object] = {}  # beginning of three keys -> thing; needs a thing "floor"
    num_floors: int = 1  # how often the floor is in a round of those things
    numbers: Callable[[Mapping], dict] | None = None  # seconds -> more of the report
    warm_up: int = WARM_UP  # turns before, and at most as many as are timed


def measured(case: Case) -> dict:
    """Returns the part of the report that a case makes."""
    seconds = in_turn(case.things, case.repeats, min(case.warm_up, case.repeats))
    report = {key: spread(seconds[thing]) for key, thing in case.seconds.items()}
    report |= {key: ratio(seconds[a], seconds[b]) for key, (a, b) in case.ratios.items()}
    for key, thing in case.over_floor.items():
        floor = np.multiply(seconds["floor"], case.num_floors)
        report[f"{key}/seconds"] = spread(seconds[thing])
        report[f"{key}/floor_seconds"] = spread(floor)
        report[f"{key}/over_floor"] = ratio(seconds[thing], floor)
    report |= case.numbers(seconds) if case.numbers else {}
    return {f"{case.name}/{key}": value for key, value in report.items()}


def in_turn(things: Mapping, repeats: int, warm_up: int = WARM_UP) -> dict[object, list[float]]:
    """Calls functions `repeats` times in turn after a warm-up, and returns {name: [seconds]}."""
    seconds: dict[object, list[float]] = {name: [] for name in things}
    for turn in range(warm_up + repeats):
        for name, call in things.items():
            started = time.perf_counter()
            call()
            if turn >= warm_up:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def spread(values) -> dict:
    """Returns the median and the quantiles of a list of seconds."""
    return {
        "median": float(np.median(values)),
        "p10": float(np.quantile(values, 0.1)),
        "p90": float(np.quantile(values, 0.9)),
        "runs": len(values),
    }


def ratio(seconds, other_seconds) -> float:
    """Returns the ratio of two medians."""
    return round(float(np.median(seconds) / np.median(other_seconds)), 3)
