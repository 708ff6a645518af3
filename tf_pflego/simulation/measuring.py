"""A user's own measures of clients' predictions."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from tf_pflego.core.algorithm import Algorithm
from tf_pflego.data.clients import ClientData
from tf_pflego.simulation.records import METRIC_NAMES
from tf_pflego.system import values

# By name, (labels [n] int32, probabilities [n, K] float32) -> a number, of one client.
Metrics = Mapping[str, Callable[[np.ndarray, np.ndarray], float]]


def check(metrics: Metrics, algorithm: Algorithm, data: ClientData) -> None:
    """Refuses metrics whose names or functions a run cannot take."""
    values.instance("metrics", metrics, Mapping, "Give `{'name': function}`.")
    reserved = METRIC_NAMES | set(algorithm.served) | set(data.client_groups)
    statistics = [statistic.name for statistic in algorithm.model.task.statistics]
    measured = tuple(f"{on}_{name}" for on in ("test", "validation") for name in statistics)
    for name, function in metrics.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
            must = "have names that are one word of letters, digits and _"
        elif name in reserved or name.endswith(measured):
            must = "have other names than what a run measures already"
        elif not callable(function):
            must = "be functions of labels and probabilities"
            name = f"{function!r} for {name}"
        else:
            continue
        raise ValueError(f"`metrics` must {must}; got {name!s:.80}. Correct `metrics`.")


def measured(
    metrics: Metrics, ids: np.ndarray, data: ClientData, predicted: Iterable[np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns {metric: [n] float64} for clients, from predictions for their test examples."""
    columns = {metric: np.empty(len(ids)) for metric in metrics}
    for row, (client, probabilities) in enumerate(zip(ids, predicted, strict=True)):
        _, labels = data.test.of(client)
        for metric, function in metrics.items():
            columns[metric][row] = _number(metric, client, function(labels, probabilities))
    return columns


def _number(metric: str, client: int, value: Any) -> float:
    """Returns the value of a user's function as a float."""
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(
            f"`metrics` {metric} must return a finite number for each client; got {value!r:.60} "
            f"for client {client}. Let it return a number also where it is not defined."
        )
    return number
