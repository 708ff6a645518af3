"""What the metrics of runs are called, what they mean, and how their values are written.

Where a function takes `rounds`, these are the columns of a run over its rounds: arrays [T] by name,
with round, seconds, bytes_down, bytes_up and metrics, NaN where a round has no value.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tf_pflego.simulation.records import (
    ACCURACIES,
    BOOKKEEPING,
    LAST_ROUNDS,
    STANDARD_ERROR,
    worst_tenth,
)

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
# The metrics by their names without a model and a group, the most asked for first: title, meaning.
_METRICS = {
    f"{who}{split}_accuracy/{mean}_mean": (
        f"{split} accuracy of {whom}, mean over {mean}s",
        meaning + on + f"; clients with more {split} examples count more" * (mean == "example"),
    )
    for split, on in _ON.items()
    for who, (whom, meaning) in _WHO.items()
    for mean in ("client", "example")
} | {
    "train_loss": (
        "training loss of all clients",
        f"the mean cross-entropy of every client with {_SERVED}, weighted by its share of the "
        "training examples",
    )
}


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
    order = {name: place for place, name in enumerate(_METRICS)}
    return sorted(names, key=lambda name: order.get(name, len(order)))


def is_accuracy(metric: str) -> bool:
    """Returns whether a metric is a share of hits, which is shown in percent."""
    return any(accuracy in metric for accuracy in ACCURACIES)


def scale_of(metric: str) -> int:
    """Returns by what the values of a metric are multiplied where they are shown."""
    return PERCENT if is_accuracy(metric) else 1


def _parts_of(metric):
    """Returns (model, metric, group) of MODEL/METRIC/GROUP; the metric is None if not known."""
    for known in _METRICS:
        model, separator, group = f"/{metric}/".partition(f"/{known}/")
        if separator:
            return model.strip("/"), known, group.strip("/").replace("_", " ")
    return "", None, ""


def title_of(metric: str) -> str:
    """Returns what a metric is called."""
    model, known, group = _parts_of(metric)
    if known is None:
        return metric
    which_model = f", with the model “{model}”" if model else ""
    return _METRICS[known][0] + which_model + (f", {group} clients alone" if group else "")


def meaning_of(metric: str) -> str:
    """Returns which model a metric is of, and on whom."""
    model, known, group = _parts_of(metric)
    if known is None:
        return "a metric of this run alone, as metrics.jsonl has it"
    meaning = _METRICS[known][1]
    if model:
        other = f"the model “{model}”, one that the method can serve beside its first"
        meaning = meaning.replace(_SERVED, other)
    return meaning + (f"; only clients that are {group}, as clients.csv says" if group else "")


def unit_of(metric: str) -> str:
    """Returns what stands at the y axis."""
    if is_accuracy(metric):
        return f"{'validation' if 'validation_' in metric else 'test'} accuracy, percent"
    return "training loss" if metric.endswith("train_loss") else shortened(metric)


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


def mean_of_worst_tenth(accuracies: np.ndarray) -> float:
    """Returns the mean of the lowest tenth of the clients; NaN are left out."""
    known = np.sort(accuracies[np.isfinite(accuracies)])
    return float(known[: worst_tenth(len(known))].mean()) if len(known) else np.nan


def shown(value: float, metric: str) -> str:
    """Returns a value of a metric with its unit."""
    if is_accuracy(metric) and np.isfinite(value):
        return percent(PERCENT * value)
    return short(value)


def percent(value: float) -> str:
    """Returns such as 97.31 %."""
    return f"{value:.2f}\N{NO-BREAK SPACE}%"


def short(value: float) -> str:
    """Returns a number of four digits."""
    return f"{value:.4g}" if np.isfinite(value) else UNKNOWN


def tidy(value: float) -> float | None:
    """Returns a number of few digits for the script, or None."""
    return float(f"{value:.6g}") if np.isfinite(value) else None


def cell(value: Any) -> str:
    """Returns what a cell of a table shows."""
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
