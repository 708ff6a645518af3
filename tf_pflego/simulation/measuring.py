"""A user's own measures of clients' predictions."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from tf_pflego.core.algorithm import Algorithm
from tf_pflego.core.statistic_names import of_metric
from tf_pflego.data.clients import ClientData
from tf_pflego.simulation.records import CLIENT_COLUMNS, METRIC_NAMES, STANDARD_ERROR
from tf_pflego.system import values

# By name, (labels [n] int32, probabilities [n, K] float32) -> a number, of one client.
Metrics = Mapping[str, Callable[[np.ndarray, np.ndarray], float]]


def check(metrics: Metrics, algorithm: Algorithm, data: ClientData) -> None:
    """Refuses metrics with names or functions that a run cannot use."""
    values.instance("metrics", metrics, Mapping, "Give `{'name': function}`.")
    for name, function in metrics.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
            must = "have names that are one word of letters, digits and _"
        elif not callable(function):
            must = "be functions of labels and probabilities"
            name = f"{function!r} for {name}"
        else:
            continue
        raise ValueError(f"`metrics` must {must}; got {name!s:.80}. Correct `metrics`.")
    refuse_taken_names(algorithm, data, metrics)


def refuse_taken_names(algorithm: Algorithm, data: ClientData, metrics: Iterable[str] = ()) -> None:
    """Raises ValueError if a statistic, a group or a measure has the name of another number.

    These are the columns of clients.csv, and the beginnings and ends of metrics' names.
    """
    models = list(algorithm.served)
    taken = CLIENT_COLUMNS | {f"{name}/" for name in (*METRIC_NAMES, *models)}
    taken |= {f"{model}/train_loss" for model in models}
    taken |= {f"client_mean/{end}" for end in (STANDARD_ERROR, "last10", "best")}
    named = [
        ("statistics", one.name, [f"test_{one.name}"]) for one in algorithm.model.task.statistics
    ]
    for name in map(str, data.client_groups):
        ends = [f"client_mean/{name}", f"client_mean/not_{name}"]
        named.append(("client_groups", name, [name, *ends]))
    for name in metrics:
        named.append(
            ("metrics", name, [name, f"{name}/", *(f"{model}/{name}" for model in models)])
        )
    for argument, name, numbers in named:
        # A report would take a column such as test_mine for a statistic.
        misleads = argument != "statistics" and of_metric(name).name
        if misleads or not taken.isdisjoint(numbers):
            raise ValueError(
                f"`{argument}` must have other names than the metrics of a run; got {name:.80}. "
                "Choose another name."
            )
        taken.update(numbers)


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
