"""The metrics of runs: their names, their meaning, and how their values are written.

Where a function takes `rounds`, these are the columns of a run over its rounds: arrays [T] by name,
with round, seconds, bytes_down, bytes_up and metrics, NaN where a round has no value.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tf_pflego.core.statistic_names import Metric, Shown, first_of, of_metric
from tf_pflego.simulation import records

Rounds = Mapping[str, np.ndarray]

PERCENT = 100
UNKNOWN = "–"
_LABEL_LENGTH = 44

_ON = {"test": "", "validation": ", on validation examples, which are not trained on"}
_SERVED = "what it would be served now"
_WHO = {
    "": ("all clients", f"every client, drawn or not, with {_SERVED}"),
    "participant_": (
        "the round's participants",
        "the round's participants with the weights that they hold right after local training",
    ),
}


def metrics_of(all_rounds: Iterable[Rounds]) -> list[str]:
    """Returns the metrics that have a value in any run, the most asked for first.

    The metrics of the first statistic, without a model and a group, come first, and then the loss.
    Standard errors come with their metrics, and privacy has its own section.
    """
    names = dict.fromkeys(
        name
        for rounds in all_rounds
        for name, values in rounds.items()
        if name not in (*records.BOOKKEEPING, *records.PRIVACY)
        and not name.endswith(records.STANDARD_ERROR)
        and np.isfinite(values).any()
    )
    first = first_of(names).name
    asked_for = [
        str(Metric(split, first, mean, whose=whose))
        for split in _ON
        for whose in _WHO
        for mean in ("client", "example")
    ]
    order = {name: place for place, name in enumerate([*asked_for, "train_loss"])}
    return sorted(names, key=lambda name: order.get(name, len(order)))


def _read(metric):
    """Returns the parts of MODEL/METRIC/GROUP by name, or None for an unknown metric."""
    parts = Metric.read(metric)
    return parts if parts is not None and (parts.mean or parts.split == "train") else None


def title_of(metric: str) -> str:
    """Returns the title of a metric."""
    parts = _read(metric)
    if parts is None:
        return metric
    title = "training loss of all clients"
    if parts.mean:
        whom, _ = _WHO[parts.whose]
        title = f"{parts.split} {of_metric(metric).title} of {whom}, mean over {parts.mean}s"
    title += f", with the model “{parts.model}”" * bool(parts.model)
    return title + f", {parts.group.replace('_', ' ')} clients alone" * bool(parts.group)


def meaning_of(metric: str) -> str:
    """Returns the model and the clients that a metric tests."""
    parts = _read(metric)
    if parts is None:
        return "a metric of this run alone, as metrics.jsonl has it"
    if parts.mean:
        meaning = _WHO[parts.whose][1] + _ON[parts.split]
        meaning += f"; clients with more {parts.split} examples count more" * (
            parts.mean == "example"
        )
    else:
        meaning = (
            f"the mean loss, of classes the cross-entropy, of every client with {_SERVED}, "
            "weighted by its share of the training examples"
        )
    if parts.model:
        other = f"the model “{parts.model}”, one that the method can serve beside its first"
        meaning = meaning.replace(_SERVED, other)
    group = parts.group.replace("_", " ")
    return meaning + (f"; only clients that are {group}, as clients.csv says" if group else "")


def unit_of(metric: str) -> str:
    """Returns the label of the y axis."""
    parts, statistic = Metric.read(metric), of_metric(metric)
    if parts is None:
        return shortened(metric)
    if parts.split == "train":
        return "training loss"
    return f"{parts.split} {statistic.title}{statistic.unit}"


def final(rounds: Rounds, metric: str) -> float:
    """Returns the mean of a statistic over the last ten rounds, without those that lack it.

    For other metrics it is the last value. NaN if there is none.
    """
    values = rounds.get(metric, np.zeros(0))
    is_mean = bool(of_metric(metric).name)
    if is_mean:
        values = values[-records.LAST_ROUNDS :]
    values = values[np.isfinite(values)]
    if not len(values):
        return np.nan
    return float(values.mean() if is_mean else values[-1])


def standard_error(rounds: Rounds, metric: str) -> float:
    """Returns a bound of the standard error of `final`, or NaN if no sample of clients was tested.

    Rounds test the same clients, so that the mean over rounds has at most the mean of their errors.
    """
    return final(rounds, f"{metric}/{records.STANDARD_ERROR}")


def from_the_worst(values: np.ndarray, statistic: Shown) -> np.ndarray:
    """Returns the finite ones of the values of clients, the worst first."""
    return statistic.sign * np.sort(statistic.sign * values[np.isfinite(values)])


def mean_of_worst_tenth(values: np.ndarray, statistic: Shown) -> float:
    """Returns the mean of the worst tenth of the clients, excluding NaN."""
    known = from_the_worst(values, statistic)
    return float(known[: records.worst_tenth(len(known))].mean()) if len(known) else np.nan


def shown(value: float, metric: str) -> str:
    """Returns a value of a metric with its unit."""
    statistic = of_metric(metric)
    return in_unit(statistic.scale * value, statistic)


def in_unit(value: float, statistic: Shown) -> str:
    """Returns a value times the scale of its statistic with its unit."""
    if not (statistic.name and np.isfinite(value)):
        return short(value)
    return percent(value) if statistic.is_share else statistic.written(value)


def unit_of_gain(statistic: Shown) -> str:
    """Returns the unit of gains."""
    return "points of percent" if statistic.is_share else statistic.title


def percent(value: float) -> str:
    """Returns a text such as 97.31 %."""
    return f"{value:.2f}\N{NO-BREAK SPACE}%"


def short(value: float) -> str:
    """Returns a number of four digits."""
    return f"{value:.4g}" if np.isfinite(value) else UNKNOWN


def tidy(value: float) -> float | None:
    """Returns a number of few digits for the script, or None."""
    return float(f"{value:.6g}") if np.isfinite(value) else None


def cell(value: Any) -> str:
    """Returns the text of a cell of a table."""
    if value is None or value == "":
        return UNKNOWN
    return f"{value:g}" if isinstance(value, float) else str(value)


def shortened(text: str, length: int = _LABEL_LENGTH) -> str:
    """Returns a text without its middle if it is long."""
    if len(text) <= length:
        return text
    head = length // 2
    return f"{text[:head]}…{text[head + 1 - length :]}"


def listed(words: Iterable[Any]) -> str:
    """Returns words as a sentence lists them."""
    *first, last = map(str, words)
    return f"{', '.join(first)} and {last}" if first else last
