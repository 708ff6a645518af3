"""The figures of a report, each drawn from series of runs in the size that is asked for."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from tf_pflego.reports import comparison, figures, pairing
from tf_pflego.reports.comparison import Series
from tf_pflego.reports.figures import Line
from tf_pflego.reports.stored import Holdings

_CLIENT_ROWS, _CLASS_COLUMNS = 300, 150
# With more of them an axis has numbers, since the names would not fit a narrow screen.
_MOST_NAMED_CLIENTS, _MOST_NAMED_CLASSES = 30, 20
_LENGTH_OF_NAME, _SIZE_OF_NAMES = 16, 8


def lines_of(series: Sequence[Series], metric: str, axis: str) -> list[Line]:
    """Returns the curves of those series that have a metric."""
    found = []
    for number, one in enumerate(series):
        with_rounds = [run.rounds for run in one.runs if run.num_rounds]
        curve = comparison.curve(with_rounds, metric, axis) if with_rounds else None
        if curve is not None:
            found.append(Line(one.label, curve, number, one.marked))
    return found


def unit_of(metric: str) -> str:
    """Returns what stands at the y axis."""
    if comparison.is_accuracy(metric):
        return f"{'validation' if 'validation_' in metric else 'test'} accuracy, percent"
    return "training loss" if metric.endswith("train_loss") else comparison.shortened(metric)


def curves(
    series: Sequence[Series], metric: str, axes: Sequence[str], size: tuple[float, float]
) -> Figure | None:
    """Returns a figure of a metric along some axes, side by side; None if no run has it."""
    if not lines_of(series, metric, axes[0]):
        return None
    figure, panels = figures.new(size, len(axes))
    for number, (axis, panel) in enumerate(zip(axes, panels, strict=True)):
        ylabel = unit_of(metric) if number == 0 else None
        lines = lines_of(series, metric, axis)
        figures.draw_curves(panel, lines, comparison.AXES[axis], ylabel)
    return figure


def distribution(series: Sequence[Series], size: tuple[float, float]) -> Figure | None:
    """Returns a figure of the accuracies of the clients at the end; None if no run has ended."""
    found = [(one, comparison.accuracies_of(one), n) for n, one in enumerate(series)]
    lines = [(one.label, values, n, one.marked) for one, values, n in found if len(values)]
    if not lines:
        return None
    figure, (axis,) = figures.new(size)
    figures.draw_distribution(axis, lines)
    return figure


def gains(series: Sequence[Series], reference: Series, size: tuple[float, float]) -> Figure | None:
    """Returns a figure of who gained over the reference; None if nothing can be compared."""
    lines = []
    for number, one in enumerate(series):
        differences = pairing.gains_of(one, reference).differences
        if one is not reference and len(differences):
            lines.append((one.label, differences, number, one.marked))
    if not lines:
        return None
    figure, (axis,) = figures.new(size)
    figures.draw_gains(axis, lines)
    return figure


def new_clients(series: Sequence[Series], size: tuple[float, float]) -> Figure | None:
    """Returns a figure of the accuracy of new clients by epochs of their training, or None."""
    lines = []
    for number, one in enumerate(series):
        found = [new_client_curve(run.new_clients) for run in one.runs if run.new_clients]
        if found:
            length = min(map(len, found))
            values = np.array([own[:length] for own in found])
            curve = comparison.Curve(
                np.arange(float(length)),
                values.mean(axis=0),
                values.min(axis=0),
                values.max(axis=0),
                values.mean(axis=0),
            )
            lines.append(Line(one.label, curve, number, one.marked))
    if not lines:
        return None
    figure, (axis,) = figures.new(size)
    figures.draw_curves(axis, lines, "epochs of a new client's own training", "accuracy, percent")
    return figure


def new_client_curve(columns: dict[str, np.ndarray]) -> np.ndarray:
    """Returns [epochs + 1] the mean accuracy of new clients in percent, from new_clients.csv."""
    of_epoch = [
        columns["test_accuracy"][columns["epoch"] == epoch] for epoch in np.unique(columns["epoch"])
    ]
    known = [own[np.isfinite(own)] for own in of_epoch]
    return np.array([comparison.PERCENT * own.mean() if len(own) else np.nan for own in known])


def partition(holdings: Holdings, size: tuple[float, float]) -> tuple[Figure, int, int]:
    """Returns a figure of clients by classes, and how many of each a block of it stands for."""
    most = _CLIENT_ROWS, _CLASS_COLUMNS
    matrix, (clients, classes) = comparison.blocks(holdings.classes, holdings.class_counts, most)
    figure, (axis,) = figures.new(size)
    known = holdings.class_counts is not None
    figures.draw_partition(axis, matrix, clients, classes, known)
    for which, names, count, limit in (
        (axis.xaxis, holdings.names, len(holdings.classes), _MOST_NAMED_CLIENTS),
        (axis.yaxis, holdings.class_names, matrix.shape[1] * classes, _MOST_NAMED_CLASSES),
    ):
        if names is not None and count <= limit:
            labels = [figures.plain(comparison.shortened(n, _LENGTH_OF_NAME)) for n in names]
            which.set_ticks(range(count), labels[:count], fontsize=_SIZE_OF_NAMES)
            which.set_tick_params(rotation=90 if which is axis.xaxis else 0)
    return figure, clients, classes
