"""Runs put together: series of runs that differ only in the seed, their curves and gains.

Everything here is a pure function of the runs. `rounds` are the columns of a run (see `metrics`).
"""

import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tf_pflego.core.statistic_names import Shown, of_metric
from tf_pflego.reports.metrics import Rounds, shortened
from tf_pflego.reports.stored import ReportedRun
from tf_pflego.runs.reader import places
from tf_pflego.system import texts

AXES = {"rounds": "rounds", "seconds": "seconds of training", "megabytes": "megabytes down and up"}
# A series of runs that has this algorithm is drawn with a bolder line.
MARKED = "pflego"
# A round counts with at most this many times the median of its run. Longer ones are those that
# compile, or that a busy or sleeping machine held up, and would squeeze the others together.
LONGEST_ROUND = 10
_ALIKE = 0.1


@dataclasses.dataclass(frozen=True)
class Series:
    """Runs that differ only in the seed, or one run."""

    number: int  # among all; it says how the line looks, `FADED` that it is one of many
    label: str
    runs: tuple[ReportedRun, ...]
    names: tuple[str, ...]  # what a reader calls each of the runs

    @property
    def marked(self) -> bool:
        """Whether the line is bolder."""
        return self.runs[0].algorithm == MARKED

    @property
    def begun(self) -> list[Rounds]:
        """The rounds of the runs that have some."""
        return [run.rounds for run in self.runs if run.num_rounds]


class Curve(NamedTuple):
    """A metric along an axis, at the rounds that have it: arrays [n]."""

    x: np.ndarray
    mean: np.ndarray  # over the runs of the series
    low: np.ndarray  # the lowest of the runs
    high: np.ndarray


class Reached(NamedTuple):
    """When a run first reached a value of a metric."""

    round: int
    seconds: float
    megabytes: float
    value: float


def series_of(runs: Sequence[ReportedRun]) -> list[Series]:
    """Returns the runs in their order, grouped if they differ only in the seed."""
    groups: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        kept = {key: value for key, value in settings(run).items() if key != "seed"}
        groups.setdefault(json.dumps(kept, sort_keys=True, default=str), []).append(number)
    parted = []
    for numbers in groups.values():
        seeds = {runs[number].configuration.get("seed") for number in numbers}
        parted += [numbers] if len(seeds) == len(numbers) else [[number] for number in numbers]
    parted.sort()
    all_series = []
    for place, label in enumerate(_labels([runs[numbers[0]] for numbers in parted])):
        members = tuple(runs[number] for number in parted[place])
        names: tuple[str, ...] = (label,)
        if len(members) > 1:
            names = tuple(f"{label}, seed {run.configuration.get('seed')}" for run in members)
        all_series.append(Series(place, label, members, names))
    return all_series


def settings(run: ReportedRun) -> dict[str, Any]:
    """Returns the configuration of a run without flags about places."""
    return {key: value for key, value in run.configuration.items() if key not in places()}


def differing(configurations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the settings that are not the same in all of these, in their order."""
    missing = object()

    def differs(key):
        first, *others = (one.get(key, missing) for one in configurations)
        return any(value != first for value in others)

    return list(filter(differs, dict.fromkeys(key for one in configurations for key in one)))


def _labels(runs):
    """Returns the label of each run: its algorithm, other differences, or its directory."""
    tails = _unique_tails([run.path for run in runs])
    labels = []
    for run, tail in zip(runs, tails, strict=True):
        alike = [settings(other) for other in runs if other.algorithm == run.algorithm]
        label = run.algorithm
        if len(alike) > 1:
            keys = differing(alike)
            values = {tuple(texts.words(one.get(key)) for key in keys) for one in alike}
            if 1 <= len(keys) <= 2 and len(values) == len(alike):
                chosen = settings(run)
                tail = ", ".join(f"{key}={texts.words(chosen.get(key, 'none'))}" for key in keys)
            label += f" ({tail})"
        labels.append(shortened(label))
    for label in [label for label in dict.fromkeys(labels) if labels.count(label) > 1]:
        places = [place for place, other in enumerate(labels) if other == label]
        for number, place in enumerate(places, 1):
            labels[place] = f"{label} ({number})"
    return labels


def _unique_tails(paths):
    """Returns as many last parts of each path as distinguish it from the others."""
    parts = [pathlib.Path(os.path.abspath(path)).parts for path in paths]
    tails = []
    for path in parts:
        length = 1
        while length < len(path) and sum(p[-length:] == path[-length:] for p in parts) > 1:
            length += 1
        tails.append("/".join(path[-length:]).removeprefix("//"))
    return tails


def charged_seconds(seconds: np.ndarray) -> np.ndarray:
    """Returns [T] the seconds that each round counts with: at most ten times their median."""
    return np.minimum(seconds, LONGEST_ROUND * np.median(seconds)) if len(seconds) else seconds


def along(rounds: Rounds) -> dict[str, np.ndarray]:
    """Returns {axis: [T]} where each round ends on each of `AXES`."""
    return {
        "rounds": rounds["round"],
        "seconds": np.cumsum(charged_seconds(rounds["seconds"])),
        "megabytes": np.cumsum(rounds["bytes_down"] + rounds["bytes_up"]) / 1e6,
    }


def telling_axes(all_rounds: Sequence[Rounds]) -> list[str]:
    """Returns the axes with distinct information.

    Bytes do not where a round moves as many, within a tenth, in each run and at any time: the
    curves then look like those along rounds.
    """
    means = [
        half.mean()
        for rounds in all_rounds
        for half in np.array_split(rounds["bytes_down"] + rounds["bytes_up"], 2)
        if len(half)
    ]
    alike = not means or max(means) <= (1 + _ALIKE) * min(means)
    return [axis for axis in AXES if axis != "megabytes" or not alike]


def curve(all_rounds: Sequence[Rounds], metric: str, axis: str) -> Curve | None:
    """Returns a metric of a series along an axis, or None if no round has it.

    With several runs the rounds are the common evaluated rounds, and x is the mean of their ends.
    """
    evaluated = []
    for rounds in all_rounds:
        values = rounds.get(metric, np.full(len(rounds["round"]), np.nan))
        evaluated.append(rounds["round"][np.isfinite(values)])
    common = functools.reduce(np.intersect1d, evaluated)
    if not len(common):
        return None
    chosen = [np.isin(rounds["round"], common) for rounds in all_rounds]
    pairs = list(zip(all_rounds, chosen, strict=True))
    x = np.mean([along(rounds)[axis][which] for rounds, which in pairs], axis=0)
    values = of_metric(metric).scale * np.array([rounds[metric][which] for rounds, which in pairs])
    return Curve(x, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def records_of(rounds: Rounds, metric: str) -> list[Reached]:
    """Returns the rounds that were better than all earlier rounds, for any target."""
    places, best, records = along(rounds), -np.inf, []
    sign = of_metric(metric).sign
    for number, value in enumerate(rounds.get(metric, ())):
        if sign * value > best:
            best = sign * value
            seconds, megabytes = (float(places[k][number]) for k in ("seconds", "megabytes"))
            records.append(Reached(int(rounds["round"][number]), seconds, megabytes, float(value)))
    return records


def reached(rounds: Rounds, metric: str, target: float) -> Reached | None:
    """Returns the first evaluated round of a metric that is as good as the target, or None."""
    sign = of_metric(metric).sign
    return next(
        (one for one in records_of(rounds, metric) if sign * one.value >= sign * target), None
    )


def values_of(series: Series, first: Shown) -> np.ndarray:
    """Returns a test statistic of the clients at the end as shown, of all runs that have ended."""
    values = [tested(run.clients, first) for run in series.runs]
    together = first.scale * np.concatenate([np.zeros(0), *values])
    return together[np.isfinite(together)]


def tested(columns: Mapping[str, np.ndarray] | None, first: Shown) -> np.ndarray:
    """Returns the column of a statistic on test examples, or empty if there is none."""
    return (columns or {}).get(f"test_{first.name}", np.zeros(0))


def predicted_of(one: Series) -> tuple[np.ndarray, np.ndarray]:
    """Returns [3, m], the outputs, true and predicted quantities of its runs, where finite.

    The result also has [m] the names of these clients.
    """
    runs = [(run.holdings, run.predictions) for run in one.runs if run.predictions]
    names = ("output", "true", "predicted")
    values = np.array(
        [np.concatenate([np.zeros(0), *(c[name] for _, c in runs)]) for name in names]
    )
    whose: list[str] = []
    for holdings, columns in runs:
        known = dict(enumerate((holdings and holdings.names) or ()))
        whose += [known.get(client, f"{client:.0f}") for client in columns["client"]]
    finite = np.isfinite(values).all(axis=0)
    return values[:, finite], np.array(whose, object)[finite]


def new_client_curves(series: Series, first: Shown) -> list[np.ndarray]:
    """Returns [epochs + 1] the mean of a statistic of new clients, for each run with some."""
    curves = []
    for columns in (run.new_clients for run in series.runs if run.new_clients):
        values = tested(columns, first)
        parts = [values[columns["epoch"] == epoch] for epoch in np.unique(columns["epoch"])]
        finite = [one[np.isfinite(one)] for one in parts]
        curves.append(
            np.array([first.scale * one.mean() if len(one) else np.nan for one in finite])
        )
    return curves


class Gains(NamedTuple):
    """The gains of a series' clients over the reference's, [n], above 0 if better off.

    Shares are in points of percent. `why_not` is the reason for missing gains, or empty.
    """

    differences: np.ndarray
    why_not: str = ""


def gains_of(series: Series, reference: Series, first: Shown) -> Gains:
    """Compares clients with the same examples, run by run, in all finished runs."""
    nothing = np.zeros(0)
    for which in (series, reference):
        ended = [run for run in which.runs if run.clients is not None]
        if not ended:
            return Gains(nothing, f"{which.label} has not ended, so its clients are not tested")
        if all(run.holdings is None for run in ended):
            why_not = f"no partition.npz says which examples the clients of {which.label} hold"
            return Gains(nothing, why_not)
    pairs = [(run, partner_of(run, reference)) for run in series.runs]
    gains = [
        list(gains_over(other, run, first).values()) for run, other in pairs if other is not None
    ]
    if not gains:
        return Gains(nothing, "its clients hold other examples than those of the reference")
    differences = np.concatenate(gains)
    differences = differences[np.isfinite(differences)]
    why_not = f"{first.title} is finite in both for no client"
    return Gains(differences, "" if len(differences) else why_not)


def partner_of(run: ReportedRun, reference: Series) -> ReportedRun | None:
    """Returns the run of a series for comparisons with a run's clients, or None.

    It is the run with most of them; of several, a run with the same seed, or else the first.
    """
    seed = run.configuration.get("seed")
    best, most = None, (0, False)
    for other in reference.runs:
        size = len(_same_clients(run, other)[0]), other.configuration.get("seed") == seed
        if size[0] and size > most:
            best, most = other, size
    return best


def gains_over(reference: ReportedRun, run: ReportedRun, first: Shown) -> dict[Any, float]:
    """Returns {key of a client: gain} of what clients that both have gained in a run."""
    ours, theirs = _same_clients(run, reference)
    values, others = (tested(one.clients, first) for one in (run, reference))
    if not (len(values) and len(others)):
        return {}
    differences = first.sign * first.scale * (values[ours] - others[theirs])
    return dict(zip(run.client_keys[ours].tolist(), differences.tolist(), strict=True))


def _same_clients(run, other):
    """Returns the places in clients.csv of two runs of clients with the same examples."""
    none = np.zeros(0, int)
    if any(one.clients is None or one.holdings is None for one in (run, other)):
        return none, none
    kinds = {one.holdings.keys.dtype.kind for one in (run, other)}
    if kinds != {"U"} and run.holdings.identity != other.holdings.identity:
        return none, none
    return np.intersect1d(run.client_keys, other.client_keys, return_indices=True)[1:]
