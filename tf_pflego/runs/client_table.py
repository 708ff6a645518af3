"""The clients at the end of a run: the columns of clients.csv, and those that fare worst."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tf_pflego.data.clients import ClientData
from tf_pflego.simulation.evaluation import Evaluation
from tf_pflego.simulation.records import worst_tenth

_SHOWN = 5
_MOST_CLASSES_WIDTH = 16

Columns = Mapping[str, Sequence[Any]]


def client_columns(evaluations: Mapping[str, Evaluation], data: ClientData) -> Columns:
    """Returns the columns of clients.csv, one row per client that was tested.

    Clients that have names have them as `name`. For each group of clients there is a column that is
    1 for those who belong to it and else 0. Evaluations without a loss give none.
    """
    first = next(iter(evaluations.values()))
    tested = np.arange(data.num_clients) if first.clients is None else first.clients
    classes = [data.classes[client] for client in tested]
    columns = {
        "client": tested.tolist(),
        **_names(data.client_names, tested),
        **{f"{name}_examples": split.sizes[tested] for name, split in data.splits.items()},
        "num_classes": [len(labels) for labels in classes],
        "classes": [" ".join(map(str, labels)) for labels in classes],
    }
    for name, members in data.groups_of(tested).items():
        columns[name] = members.astype(int)
    for position, (name, evaluation) in enumerate(evaluations.items()):
        prefix = f"{name}/" if position else ""
        columns |= _ratios(evaluation, prefix)
        for metric, values in evaluation.own_metrics.items():
            columns[f"{prefix}{metric}"] = [f"{value:.6g}" for value in values]
    return columns


def new_client_columns(
    evaluation: Evaluation, epoch: int, first_client: int, names: Sequence[str] | None = None
) -> Columns:
    """Returns the columns of new_clients.csv, one row per new client, whose ids follow the first's.

    The evaluation is after so many epochs of their own training; `names` are those of all clients.
    """
    examples = {
        f"{split}_examples": next(iter(named.values())).sums[:, 1]
        for split, named in evaluation.tallies.items()
        if named
    }
    count = len(next(iter(examples.values())))
    ids = range(first_client, first_client + count)
    return {
        "epoch": [epoch] * count,
        "client": ids,
        **_names(names, ids),
        **{name: numbers.astype(int) for name, numbers in examples.items()},
        **{name: column for name, column in _ratios(evaluation).items() if name != "train_loss"},
    }


def _names(names, ids):
    return {} if names is None else {"name": [names[client] for client in ids]}


def _ratios(evaluation, prefix=""):
    return {
        f"{prefix}{name}": [f"{ratio:.6g}" for ratio in ratios]
        for name, ratios in evaluation.of_clients().items()
    }


def worst_rows(columns: Columns) -> tuple[float, int, list[tuple[str, ...]]]:
    """Returns how the clients fare that are served worst, by their test accuracy.

    These are the mean accuracy of the worst tenth of the clients, how many these are, and for each
    of the worst five, the worst first, what it is called, its classes, numbers of training and test
    examples, and accuracy.
    """
    accuracy = [float(share) for share in columns["test_accuracy"]]
    order = sorted(range(len(accuracy)), key=accuracy.__getitem__)
    tenth = order[: worst_tenth(len(order))]
    mean = sum(accuracy[row] for row in tenth) / len(tenth)
    rows = []
    for row in order[:_SHOWN]:
        classes = columns["classes"][row]
        if len(classes) > _MOST_CLASSES_WIDTH:
            classes = f"{columns['num_classes'][row]} classes"
        sizes = (str(columns[f"{split}_examples"][row]) for split in ("train", "test"))
        name = f"  client {columns.get('name', columns['client'])[row]}"
        rows.append((name, classes, *sizes, f"{accuracy[row]:.4f}"))
    return mean, len(tenth), rows
