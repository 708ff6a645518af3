"""The clients at the end of a run: the columns of clients.csv, and the worst clients."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tf_pflego.core.statistic_names import Shown, over, significant
from tf_pflego.core.statistics import ratio
from tf_pflego.core.tasks import COUNTS, REGRESSION
from tf_pflego.data.clients import ClientData
from tf_pflego.simulation.evaluation import Evaluation, label_scales
from tf_pflego.simulation.personalizing import Personalized
from tf_pflego.simulation.records import worst_tenth
from tf_pflego.simulation.simulation import Simulation

_SHOWN = 5
_MOST_CLASSES_WIDTH = 16
_PREDICTED_CLIENTS, _PREDICTED_EXAMPLES = 100, 10

Columns = Mapping[str, Sequence[Any]]


def client_columns(evaluations: Mapping[str, Evaluation], data: ClientData) -> Columns:
    """Returns the columns of clients.csv, one row per client that was tested.

    The column `name` has the clients' names, if there are any, and `label_mean` and
    `label_deviation` are of quantities and counts. For each group of clients a column is 1 for its
    members and else 0. Evaluations without a loss give no column of losses.
    """
    first = next(iter(evaluations.values()))
    tested = np.arange(data.num_clients) if first.clients is None else first.clients
    classes = [() if data.is_elsewhere else data.classes[client] for client in tested]
    sizes = {f"{name}_examples": split.sizes[tested] for name, split in data.splits.items()}
    if data.is_elsewhere and first.first.statistic.value is ratio:
        sizes["test_examples"] = first.first.sums[:, 1].astype(int)
    columns = {
        "client": tested.tolist(),
        **_names(data.client_names, tested),
        **sizes,
        "num_classes": [len(labels) for labels in classes],
        "classes": [" ".join(map(str, labels)) for labels in classes],
    }
    for name, scale in label_scales(data).items():
        columns[f"label_{name}"] = [f"{value:.6g}" for value in scale[tested]]
    for name, members in data.groups_of(tested).items():
        columns[name] = members.astype(int)
    for position, (name, evaluation) in enumerate(evaluations.items()):
        prefix = f"{name}/" if position else ""
        columns |= _ratios(evaluation, prefix)
        for metric, values in evaluation.own_metrics.items():
            columns[f"{prefix}{metric}"] = [f"{value:.6g}" for value in values]
    return columns


def new_client_columns(
    evaluation: Evaluation, epoch: int, first_client: int, new: ClientData
) -> Columns:
    """Returns the columns of new_clients.csv, a row per new client. Their ids follow the first's.

    `new` evaluates these clients after this number of epochs of local training.
    """
    count = new.num_clients
    tested = [split for split, named in evaluation.tallies.items() if named]
    return {
        "epoch": [epoch] * count,
        "client": range(first_client, first_client + count),
        **_names(new.client_names, range(count)),
        **{f"{split}_examples": new.splits[split].sizes for split in tested},
        **{name: column for name, column in _ratios(evaluation).items() if name != "train_loss"},
    }


def personalized_columns(results: Personalized, data: ClientData) -> Columns:
    """Returns the columns of personalized.csv, which has one row per client."""
    ids = range(data.num_clients)
    return {
        "client": ids,
        **_names(data.client_names, ids),
        **_ratios(results.after),
        **_ratios(results.before, "before/"),
        "steps": results.steps,
        "at_limit": results.at_limit.astype(int),
        "is_fitted": results.is_fitted.astype(int),
    }


def predicted_columns(simulation: Simulation) -> Columns | None:
    """Returns true and predicted quantities or counts of up to 100 clients at the end of a run.

    There is a row for each output of up to ten test examples of each client. The clients are spread
    evenly over all ids. None if labels are no numbers, or are on other machines.
    """
    data, task = simulation.data, simulation.algorithm.model.task
    if data.is_elsewhere or task.labels not in (REGRESSION, COUNTS):
        return None
    count = data.num_clients
    spread = np.linspace(0, count - 1, min(count, _PREDICTED_CLIENTS))
    ids = spread.round().astype(int).tolist()
    predictions = simulation.predict(client_ids=ids)
    rows = [
        (client, output, f"{true:.6g}", f"{predicted:.6g}")
        for client, of_client in zip(ids, predictions, strict=True)
        for pair in itertools.islice(
            zip(data.test.of(client)[1], of_client, strict=True), _PREDICTED_EXAMPLES
        )
        for output, (true, predicted) in enumerate(zip(*map(np.ravel, pair), strict=True))
    ]
    names = "client", "output", "true", "predicted"
    return {name: [row[k] for row in rows] for k, name in enumerate(names)} if rows else None


def _names(names, ids):
    return {} if names is None else {"name": [names[client] for client in ids]}


def _ratios(evaluation, prefix=""):
    return {
        f"{prefix}{name}": [f"{ratio:.6g}" for ratio in ratios]
        for name, ratios in evaluation.of_clients().items()
    }


def worst_rows(columns: Columns, first: Shown) -> tuple[float, int, list[tuple[str, ...]]]:
    """Returns the values of the worst clients, by the first statistic of the run.

    These are the mean of the worst tenth of the clients, their number, and, below a head, a row for
    each of the worst five, the worst first: name, any classes, numbers of training and test
    examples, and value. An error in units also has the mean and the deviation of the client's
    labels, and its ratio to this deviation, which is largest for the worst. Clients with an
    undefined statistic are excluded.
    """
    measured = [float(value) for value in columns[f"test_{first.name}"]]
    known = [row for row, value in enumerate(measured) if not math.isnan(value)]
    order = sorted(known, key=lambda row: first.sign * measured[row])
    tenth = order[: worst_tenth(len(order))]
    is_relative = first.in_units and "label_deviation" in columns
    ranks = over(measured, map(float, columns["label_deviation"])) if is_relative else measured
    ranked = sorted(known, key=lambda row: (math.isnan(ranks[row]), first.sign * ranks[row]))
    mean = statistics.mean(measured[row] for row in tenth) if tenth else math.nan
    # Any other number says that the labels are no classes; of clients elsewhere they are unknown.
    has_classes = first.is_share and any(columns["classes"])
    head = "served worst", *["classes"] * has_classes, "train", "test", first.title
    rows: list[tuple[str, ...]] = [head + ("labels", "relative") * is_relative]
    for row in ranked[:_SHOWN]:
        classes = [columns["classes"][row]] * has_classes
        if len("".join(classes)) > _MOST_CLASSES_WIDTH:
            classes = [f"{columns['num_classes'][row]} classes"]
        sizes = (str(columns[f"{split}_examples"][row]) for split in ("train", "test"))
        name = f"  client {columns.get('name', columns['client'])[row]}"
        cells = [first.written(measured[row])]
        if is_relative:
            scale = (float(columns[f"label_{what}"][row]) for what in ("mean", "deviation"))
            cells += [" ± ".join(significant(one, 3) for one in scale), f"{ranks[row]:.2f}"]
        rows.append((name, *classes, *sizes, *cells))
    return mean, len(tenth), rows
