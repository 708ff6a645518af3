"""What is drawn and told of several runs: pure functions of their rounds and clients.

Where a function takes `rounds`, these are the columns of a run over its rounds: arrays [T] by name,
with round, seconds, bytes_down, bytes_up and metrics, NaN where a round has no value.
"""

import dataclasses
import json
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tf_pflego.reports.stored import ReportedRun
from tf_pflego.runs.reader import PLACES
from tf_pflego.simulation.records import (
    ACCURACIES,
    BOOKKEEPING,
    LAST_ROUNDS,
    STANDARD_ERROR,
    worst_tenth,
)

Rounds = Mapping[str, np.ndarray]

AXES = {"rounds": "rounds", "seconds": "seconds of training", "megabytes": "megabytes down and up"}
PERCENT = 100
# A series of runs that has this algorithm is drawn with a bolder line.
MARKED = "pflego"

# The metrics by their names without a model and a group: the model and the clients that each is of.
_METRICS = {
    "participant_test_accuracy/client_mean": (
        "test accuracy of the round's participants, mean over clients",
        "the round's participants with the weights that they hold right after local training",
    ),
    "participant_test_accuracy/example_mean": (
        "test accuracy of the round's participants, mean over examples",
        "the round's participants with the weights that they hold right after local training; "
        "clients with more test examples count more",
    ),
    "test_accuracy/client_mean": (
        "test accuracy of all clients, mean over clients",
        "every client, drawn or not, with what it would be served now",
    ),
    "test_accuracy/example_mean": (
        "test accuracy of all clients, mean over examples",
        "every client, drawn or not, with what it would be served now; clients with more test "
        "examples count more",
    ),
    **{
        f"{who}validation_accuracy/{mean}_mean": (
            f"validation accuracy of {whom}, mean over {mean}s",
            f"{meaning}, on validation examples, which are not trained on",
        )
        for who, whom, meaning in (
            (
                "participant_",
                "the round's participants",
                "the round's participants with the weights that they hold right after local "
                "training",
            ),
            ("", "all clients", "every client, drawn or not, with what it would be served now"),
        )
        for mean in ("client", "example")
    },
    "train_loss": (
        "training loss of all clients",
        "the mean cross-entropy of every client with what it would be served now, weighted by its "
        "share of the training examples",
    ),
}
_FIRST = (
    "test_accuracy/client_mean",
    "test_accuracy/example_mean",
    "participant_test_accuracy/client_mean",
    "participant_test_accuracy/example_mean",
    "validation_accuracy/client_mean",
    "validation_accuracy/example_mean",
    "participant_validation_accuracy/client_mean",
    "participant_validation_accuracy/example_mean",
    "train_loss",
)
# A round counts with at most this many times the median of its run. Longer ones are those that
# compile, or that a busy or sleeping machine held up, and would squeeze the others together.
LONGEST_ROUND = 10
# The part of the rounds on either side of a round over which curves are smoothed.
_SMOOTHING = 0.05
FEWEST_TO_SMOOTH = 15
_ALIKE = 0.1
_LABEL_LENGTH = 44


@dataclasses.dataclass(frozen=True)
class Series:
    """Runs that differ in nothing but the seed, or one run.

    Attributes:
      label: What a reader calls them.
      runs: The runs.
      names: What a reader calls each.
    """

    label: str
    runs: tuple[ReportedRun, ...]
    names: tuple[str, ...]

    @property
    def marked(self) -> bool:
        """Whether the line is bolder."""
        return self.runs[0].algorithm == MARKED


class Curve(NamedTuple):
    """A metric along an axis, at the rounds that have it: arrays [n]."""

    x: np.ndarray
    mean: np.ndarray  # over the runs of the series
    low: np.ndarray  # the lowest of the runs
    high: np.ndarray
    smooth: np.ndarray  # the mean over neighbouring rounds


class Reached(NamedTuple):
    """When a run first reached a value of a metric."""

    round: int
    seconds: float
    megabytes: float
    value: float


def series_of(runs: Sequence[ReportedRun]) -> list[Series]:
    """Returns the runs in their order, those that differ in nothing but the seed together."""
    groups: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        kept = {key: value for key, value in settings(run).items() if key != "seed"}
        groups.setdefault(json.dumps(kept, sort_keys=True, default=str), []).append(number)
    parted = []
    for numbers in groups.values():
        seeds = {runs[number].configuration.get("seed") for number in numbers}
        parted += [numbers] if len(seeds) == len(numbers) else [[number] for number in numbers]
    parted.sort()
    labels = _labels([runs[numbers[0]] for numbers in parted])
    found = []
    for label, numbers in zip(labels, parted, strict=True):
        own = tuple(runs[number] for number in numbers)
        names = (label,)
        if len(own) > 1:
            names = tuple(f"{label}, seed {run.configuration.get('seed')}" for run in own)
        found.append(Series(label, own, names))
    return found


def settings(run: ReportedRun) -> dict[str, Any]:
    """Returns the configuration of a run without the flags that say where things are."""
    return {key: value for key, value in run.configuration.items() if key not in PLACES}


def differing(configurations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the settings that are not the same in all of these, in their order."""
    keys = dict.fromkeys(key for own in configurations for key in own)
    missing = object()
    return [
        key
        for key in keys
        if any(
            own.get(key, missing) != configurations[0].get(key, missing) for own in configurations
        )
    ]


def _labels(runs):
    """Returns what each run is called: its algorithm, what else differs, or its directory."""
    tails = unique_tails([run.path for run in runs])
    labels = []
    for run in runs:
        alike = [other for other in runs if other.algorithm == run.algorithm]
        label = run.algorithm
        if len(alike) > 1:
            keys = differing([settings(other) for other in alike])
            values = [tuple(_written(settings(other).get(key)) for key in keys) for other in alike]
            if 1 <= len(keys) <= 2 and len(set(values)) == len(alike):
                own = [f"{key}={_written(settings(run).get(key, 'none'))}" for key in keys]
                label += f" ({', '.join(own)})"
            else:
                label += f" ({tails[runs.index(run)]})"
        labels.append(shortened(label))
    seen: dict[str, int] = {}
    for number, label in enumerate(labels):
        seen[label] = seen.get(label, 0) + 1
        if labels.count(label) > 1:
            labels[number] = f"{label} ({seen[label]})"
    return labels


def _written(value):
    return f"{value:g}" if isinstance(value, float) else str(value)


def unique_tails(paths: Iterable[pathlib.Path]) -> list[str]:
    """Returns as many last parts of each path as tell it from the others."""
    parts = [pathlib.Path(os.path.abspath(path)).parts for path in paths]
    tails = []
    for own in parts:
        length = 1
        while length < len(own) and sum(p[-length:] == own[-length:] for p in parts) > 1:
            length += 1
        tails.append("/".join(own[-length:]).removeprefix("//"))
    return tails


def shortened(text: str, length: int = _LABEL_LENGTH) -> str:
    """Returns a text without its middle if it is long."""
    if len(text) <= length:
        return text
    head = length // 2
    return f"{text[:head]}…{text[head + 1 - length :]}"


def metrics_of(all_rounds: Iterable[Rounds]) -> list[str]:
    """Returns the metrics that have a value in any run, the most asked for first.

    Standard errors stand beside what they are of, and not alone.
    """
    names = dict.fromkeys(
        name
        for rounds in all_rounds
        for name, values in rounds.items()
        if name not in BOOKKEEPING
        and not name.endswith(STANDARD_ERROR)
        and np.isfinite(values).any()
    )
    order = {name: place for place, name in enumerate(_FIRST)}
    return sorted(names, key=lambda name: order.get(name, len(order)))


def is_accuracy(metric: str) -> bool:
    """Returns whether a metric is a share of hits, which is shown in percent."""
    return any(accuracy in metric for accuracy in ACCURACIES)


def _parts_of(metric):
    """Returns (model, metric, group) of MODEL/METRIC/GROUP; the metric is None if not known."""
    for known in _METRICS:
        model, found, group = f"/{metric}/".partition(f"/{known}/")
        if found:
            return model.strip("/"), known, group.strip("/").replace("_", " ")
    return "", None, ""


def title_of(metric: str) -> str:
    """Returns what a metric is called."""
    model, known, group = _parts_of(metric)
    if known is None:
        return metric
    of_model = f", with the model “{model}”" if model else ""
    return _METRICS[known][0] + of_model + (f", {group} clients alone" if group else "")


def meaning_of(metric: str) -> str:
    """Returns which model a metric is of, and on whom."""
    model, known, group = _parts_of(metric)
    if known is None:
        return "a metric of this run alone, as metrics.jsonl has it"
    meaning = _METRICS[known][1]
    if model:
        of_model = f"the model “{model}”, one that the method can serve beside its first"
        meaning = meaning.replace("what it would be served now", of_model)
    return meaning + (f"; only clients that are {group}, as clients.csv says" if group else "")


def charged_seconds(seconds: np.ndarray) -> np.ndarray:
    """Returns [T] the seconds that each round counts with: at most ten times their median."""
    if not len(seconds):
        return seconds
    return np.minimum(seconds, LONGEST_ROUND * np.median(seconds))


def along(rounds: Rounds) -> dict[str, np.ndarray]:
    """Returns {axis: [T]} where each round ends on each of `AXES`."""
    return {
        "rounds": rounds["round"],
        "seconds": np.cumsum(charged_seconds(rounds["seconds"])),
        "megabytes": np.cumsum(rounds["bytes_down"] + rounds["bytes_up"]) / 1e6,
    }


def telling_axes(all_rounds: Sequence[Rounds]) -> list[str]:
    """Returns the axes that show something of their own.

    Bytes do not where a round moves as many, within a tenth, in each run and at any time: the
    curves then look like those along rounds.
    """
    ends = [
        own["bytes_down"][half].mean() + own["bytes_up"][half].mean()
        for own in all_rounds
        for half in np.array_split(np.arange(len(own["round"])), 2)
        if len(half)
    ]
    alike = not ends or max(ends) <= (1 + _ALIKE) * min(ends)
    return [axis for axis in AXES if axis != "megabytes" or not alike]


def curve(all_rounds: Sequence[Rounds], metric: str, axis: str) -> Curve | None:
    """Returns a metric of a series along an axis, or None if no round has it.

    With several runs the rounds are those that all of them have evaluated, and x is the mean of
    where they end.
    """
    known = []
    for rounds in all_rounds:
        values = rounds.get(metric, np.full(len(rounds["round"]), np.nan))
        known.append(rounds["round"][np.isfinite(values)])
    common = known[0]
    for own in known[1:]:
        common = np.intersect1d(common, own)
    if not len(common):
        return None
    values, places = [], []
    for rounds in all_rounds:
        chosen = np.isin(rounds["round"], common)
        values.append(rounds[metric][chosen])
        places.append(along(rounds)[axis][chosen])
    scale = PERCENT if is_accuracy(metric) else 1
    values = scale * np.array(values)
    mean = values.mean(axis=0)
    smooth = smoothed(common, mean, all_rounds[0]["round"][-1])
    return Curve(np.mean(places, axis=0), mean, values.min(axis=0), values.max(axis=0), smooth)


def smoothed(rounds: np.ndarray, values: np.ndarray, last: float) -> np.ndarray:
    """Returns [n] the mean of the values of neighbouring rounds.

    The neighbours of a round are within 5 % of all rounds on either side, or the one before and the
    one after it, as many on both sides; the first and the last value are therefore as they are. A
    value counts with the distance of its neighbours, since the last ten rounds are all evaluated
    and others may not be. Few values are not smoothed.

    Args:
      rounds: [n] ascending.
      values: [n].
      last: The last round.
    """
    if len(rounds) < FEWEST_TO_SMOOTH:
        return values
    gaps = np.diff(rounds)
    widest = max(_SMOOTHING * last, np.median(gaps))
    weights = np.gradient(rounds)
    sums = np.concatenate([[0], np.cumsum(weights * values)])
    totals = np.concatenate([[0], np.cumsum(weights)])
    reach = np.minimum(widest, np.minimum(rounds - rounds[0], rounds[-1] - rounds))
    first = np.searchsorted(rounds, rounds - reach, "left")
    end = np.searchsorted(rounds, rounds + reach, "right")
    return (sums[end] - sums[first]) / (totals[end] - totals[first])


def final(rounds: Rounds, metric: str) -> float:
    """Returns the mean of an accuracy over those of the last ten rounds that have it.

    Of other metrics it is the last value. NaN if there is none.
    """
    values = rounds.get(metric, np.zeros(0))
    if is_accuracy(metric):
        values = values[-LAST_ROUNDS:]
    values = values[np.isfinite(values)]
    if not len(values):
        return np.nan
    return float(values.mean() if is_accuracy(metric) else values[-1])


def standard_error(rounds: Rounds, metric: str) -> float:
    """Returns a bound of the standard error of `final`; NaN if no sample of clients was tested.

    Rounds test the same clients, so that the mean over rounds has at most the mean of their errors.
    """
    return final(rounds, f"{metric}/{STANDARD_ERROR}")


def records_of(rounds: Rounds, metric: str) -> list[Reached]:
    """Returns the rounds that were better than all before them, by which any target is reached."""
    places, best, found = along(rounds), -np.inf, []
    for number, value in enumerate(rounds.get(metric, ())):
        if value > best:
            best = value
            where = (float(places[axis][number]) for axis in ("seconds", "megabytes"))
            found.append(Reached(int(rounds["round"][number]), *where, float(value)))
    return found


def reached(rounds: Rounds, metric: str, target: float) -> Reached | None:
    """Returns the first evaluated round of a metric that is at least the target, or None."""
    return next((found for found in records_of(rounds, metric) if found.value >= target), None)


def worst_decile(accuracies: np.ndarray) -> float:
    """Returns the mean of the lowest tenth of the clients; NaN are left out."""
    known = np.sort(accuracies[np.isfinite(accuracies)])
    return float(known[: worst_tenth(len(known))].mean()) if len(known) else np.nan


def thinned(count: int, most: int) -> np.ndarray:
    """Returns at most `most` numbers of 0 .. count - 1, evenly spread, with both ends."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def blocks(
    classes: Sequence[np.ndarray], counts: np.ndarray | None, most: tuple[int, int]
) -> tuple[np.ndarray, tuple[int, int]]:
    """Returns the mean training examples of blocks of clients by classes, and their two sizes.

    Args:
      classes: For each client its classes.
      counts: [sum |classes_i|] training examples of each client and class; None if unknown: then
        each class that a client holds counts 1.
      most: How many blocks of clients and of classes there may be.
    """
    owners = np.repeat(np.arange(len(classes)), [len(own) for own in classes])
    held = np.concatenate(classes)
    ends = len(classes), int(held.max()) + 1
    sizes = tuple(-(-end // limit) for end, limit in zip(ends, most, strict=True))
    numbers = [np.arange(end) // size for end, size in zip(ends, sizes, strict=True)]
    sums = np.zeros([own[-1] + 1 for own in numbers])
    np.add.at(sums, (owners // sizes[0], held // sizes[1]), 1 if counts is None else counts)
    return sums / np.multiply.outer(*map(np.bincount, numbers)), sizes


def accuracies_of(series: Series) -> np.ndarray:
    """Returns the clients' test accuracies at the end in percent, of all runs that have ended."""
    ended = [run.clients["test_accuracy"] for run in series.runs if run.clients is not None]
    found = PERCENT * np.concatenate([np.zeros(0), *ended])
    return found[np.isfinite(found)]
