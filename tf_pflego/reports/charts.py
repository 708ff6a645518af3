"""The figures of a report, each drawn from its runs in a given size.

A chart is None if no run has its values.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib import colors, ticker
from matplotlib.figure import Figure

from tf_pflego.reports import figures, metrics, series
from tf_pflego.reports.page_parts import Runs
from tf_pflego.reports.stored import Holdings
from tf_pflego.simulation.records import PRIVACY, PRIVACY_DRAWN

Size = tuple[float, float]

_MOST_CLIENTS, _MOST_CLASSES = 300, 150  # or blocks of them
# With more of them an axis has numbers, since the names would not fit a narrow screen.
_MOST_NAMED_CLIENTS, _MOST_NAMED_CLASSES = 30, 20
_LENGTH_OF_NAME, _SIZE_OF_NAMES = 16, 8
_MOST_OUTPUTS = 3
_HEIGHT, _WIDTH = 4.4, 5.0  # inches of a PNG file, of one panel
_SHADES = colors.LinearSegmentedColormap.from_list(
    "shades", ("#c6dcf0", "#2f7ab8", "#08264d")
).with_extremes(bad=(0, 0, 0, 0))


def lines_of(runs: Runs, metric: str, axis: str) -> list[figures.Line]:
    """Returns the curves of those series that have a metric."""
    return [
        figures.Line(one.label, line, one.number, one.marked)
        for one in runs.series
        if one.begun and (line := series.curve(one.begun, metric, axis)) is not None
    ]


def curves(runs: Runs, size: Size, metric: str, axes: Sequence[str]) -> Figure | None:
    """Returns a figure of a metric along some axes, side by side."""
    figure, panels = figures.new(size, len(axes))
    for number, (axis, panel) in enumerate(zip(axes, panels, strict=True)):
        lines = lines_of(runs, metric, axis)
        if not lines:
            return None
        ylabel = metrics.unit_of(metric) if number == 0 else None
        figures.draw_curves(panel, lines, series.AXES[axis], ylabel)
    return figure


def privacy(runs: Runs, size: Size) -> Figure | None:
    """Returns a figure of epsilon, the bound and the noise of private rounds, a panel for each.

    On a narrow screen the panels are below each other.
    """
    drawn = {name: lines for name in PRIVACY_DRAWN if (lines := lines_of(runs, name, "rounds"))}
    if not drawn:
        return None
    columns = len(drawn) if size[0] > 2 * size[1] else 1
    rows = len(drawn) // columns
    height = size[1] * (1 + rows) / 2
    figure, panels = figures.grid((size[0], height), rows, columns, sharey=False)
    for panel, (name, lines) in zip(panels.flat, drawn.items(), strict=True):
        figures.draw_curves(panel, lines, series.AXES["rounds"], PRIVACY[name])
    return figure


def distribution(runs: Runs, size: Size) -> Figure | None:
    """Returns a figure of the share of clients that end at or below each value."""
    figure, (axis,) = figures.new(size)
    for one in runs.series:
        ordered = metrics.from_the_worst(series.values_of(one, runs.first), runs.first)
        if len(ordered):
            chosen = figures.thinned(len(ordered), figures.POINTS)
            x = np.concatenate([ordered[:1], ordered[chosen]])
            y = np.concatenate([[0], metrics.PERCENT * (chosen + 1) / len(ordered)])
            style = figures.styled(one, len(x))
            axis.step(x, y, where="post", **style)
    if not axis.lines:
        return None
    axis.axhline(10, color=figures.INK, linewidth=0.9)
    axis.annotate(  # Inside it would hide lines.
        "worst\ntenth",
        (1, 10),
        color=figures.INK,
        xytext=(4, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        verticalalignment="top",
    )
    axis.set_xlabel(f"test {runs.first.title} of a client{runs.first.unit}")
    axis.set_ylabel("share of clients, percent")
    axis.set_ylim(0, 101)
    return figure


def predicted(runs: Runs, size: Size) -> Figure | None:
    """Returns a figure of predicted against true quantities, a panel for each of three outputs."""
    pairs = [(one, *series.predicted_of(one)) for one in runs.series]
    compared = [(one, values, whose) for one, values, whose in pairs if values.size]
    outputs = np.unique(np.concatenate([values[0] for _, values, _ in compared] or [[]]))
    if not len(outputs):
        return None
    outputs = outputs[:_MOST_OUTPUTS]
    figure, panels = figures.grid(size, 1, len(outputs), sharey=False)
    for output, axis in zip(outputs, panels.flat, strict=True):
        of_output = [(one, v[1:, v[0] == output], w[v[0] == output]) for one, v, w in compared]
        for one, points, whose in of_output:
            chosen = figures.thinned(points.shape[1], figures.POINTS)
            style = figures.styled(one, 1)
            kept = {name: style[name] for name in ("color", "label", "marker")}
            names = [f"{figures.NAMED}{name}" for name in whose[chosen]]
            axis.scatter(*points[:, chosen], s=16, alpha=0.6, urls=names, **kept)
        true = np.concatenate([points[0] for _, points, _ in of_output])
        axis.plot(*[[true.min(), true.max()]] * 2, color=figures.INK, linewidth=1.2)
        axis.set_xlabel("true" + f", output {output:g}" * (len(outputs) > 1))
    panels[0, 0].set_ylabel("predicted")
    return figure


def gains(runs: Runs, size: Size) -> Figure | None:
    """Returns a figure of the clients' gains over the reference, the largest loss first."""
    figure, (axis,) = figures.new(size)
    for one in runs.series:
        differences = series.gains_of(one, runs.base, runs.first).differences
        ordered = np.zeros(0) if one is runs.base else np.sort(differences)
        if len(ordered):
            chosen = figures.thinned(len(ordered), figures.POINTS)
            shares = metrics.PERCENT * (chosen + 0.5) / len(ordered)
            style = figures.styled(one, len(chosen))
            axis.plot(shares, ordered[chosen], **style)
    if not axis.lines:
        return None
    axis.axhline(0, color=figures.INK, linewidth=1.2)
    axis.set_xlim(0, 100)
    axis.set_xlabel("clients in the order of their gain, percent")
    axis.set_ylabel(f"gain, {metrics.unit_of_gain(runs.first)}")
    return figure


def new_clients(runs: Runs, size: Size) -> Figure | None:
    """Returns a figure of new clients' results by epochs of their training."""
    lines = []
    for one in runs.series:
        if measured := series.new_client_curves(one, runs.first):
            length = min(map(len, measured))
            values = np.array([one_run[:length] for one_run in measured])
            mean, low, high = values.mean(axis=0), values.min(axis=0), values.max(axis=0)
            line = series.Curve(np.arange(float(length)), mean, low, high)
            lines.append(figures.Line(one.label, line, one.number, one.marked))
    if not lines:
        return None
    figure, (axis,) = figures.new(size)
    unit = f"{runs.first.title}{runs.first.unit}"
    figures.draw_curves(axis, lines, "epochs of a new client's own training", unit)
    return figure


def blocks(holdings: Holdings) -> tuple[np.ndarray, tuple[int, int]]:
    """Returns the mean training examples of blocks of clients by classes, and their two sizes."""
    classes = holdings.classes
    owners = np.repeat(np.arange(len(classes)), list(map(len, classes)))
    numbers = np.concatenate(classes)
    ends = len(classes), int(numbers.max()) + 1
    rows, columns = -(-ends[0] // _MOST_CLIENTS), -(-ends[1] // _MOST_CLASSES)
    sizes = np.bincount(np.arange(ends[0]) // rows), np.bincount(np.arange(ends[1]) // columns)
    sums = np.zeros(list(map(len, sizes)))
    np.add.at(sums, (owners // rows, numbers // columns), holdings.class_counts)
    return sums / np.multiply.outer(*sizes), (rows, columns)


def partition(holdings: Holdings, size: Size) -> Figure:
    """Returns a figure of clients by classes, the darker the more training examples."""
    matrix, (clients, classes) = blocks(holdings)
    figure, (axis,) = figures.new(size)
    extent = (-0.5, len(matrix) * clients - 0.5, matrix.shape[1] * classes - 0.5, -0.5)
    positive = matrix[matrix > 0]
    most = positive.max()
    skewed = most > 10 * np.median(positive)
    norm = colors.PowerNorm(0.5, 0, most) if skewed else colors.Normalize(0, most)
    style: dict[str, Any] = {"cmap": _SHADES, "norm": norm}
    style |= {"aspect": "auto", "interpolation": "none"}
    axis.imshow(np.ma.masked_equal(matrix.T, 0), extent=extent, **style)
    axis.grid(False)
    axis.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=True, min_n_ticks=1))
    axis.yaxis.set_major_locator(ticker.MaxNLocator(10, integer=True, min_n_ticks=1))
    axis.set_xlabel("client")
    axis.set_ylabel("class")
    _draw_scale(axis, most, style, clients * classes > 1)
    for which, names, count, limit in (
        (axis.xaxis, holdings.names, len(holdings.classes), _MOST_NAMED_CLIENTS),
        (axis.yaxis, holdings.class_names, matrix.shape[1] * classes, _MOST_NAMED_CLASSES),
    ):
        if names is not None and count <= limit:
            labels = [figures.plain(metrics.shortened(name, _LENGTH_OF_NAME)) for name in names]
            which.set_ticks(range(count), labels[:count], fontsize=_SIZE_OF_NAMES)
            which.set_tick_params(rotation=90 if which is axis.xaxis else 0)
    return figure


def _draw_scale(axis, most, style, of_blocks):
    """Draws the legend of the shades of a partition above it."""
    scale = axis.inset_axes((0.0, 1.06, 0.3, 0.05))
    scale.imshow(np.linspace(0, most, 64)[None], **style)
    scale.grid(False)
    scale.set_yticks([])
    scale.set_xticks([0, 63], ["0", f"{most:.3g}"])
    scale.xaxis.tick_top()
    scale.tick_params(length=0, colors=figures.INK)
    scale.spines[:].set_visible(False)
    words = "training examples" + ", mean of a block" * of_blocks
    style = {"color": figures.INK, "verticalalignment": "bottom"}
    axis.annotate(words, (0.32, 1.06), xycoords="axes fraction", **style)


def for_paper(
    runs: Runs, heading: str = "", drawn_metrics: Sequence[str] | None = None
) -> Iterator[tuple[str, Figure]]:
    """Yields the name and the figure, with title and legend, of each PNG file of a report.

    Their titles begin with the heading, or the dataset. All metrics are drawn by default.
    """
    names = dict.fromkeys(str(run.configuration.get("dataset")) for run in runs.all)
    heading = heading or " and ".join(names)
    axes, size = series.telling_axes(runs.rounds), (1.6 * _WIDTH, _HEIGHT)
    banded = len(runs.series) <= figures.CROWD and any(len(one.runs) > 1 for one in runs.series)
    seeds = " (line: mean, band: lowest and highest of seeds)" * banded
    drawn = [
        (
            f"curves_{metric.replace('/', '_')}",
            curves(runs, (_WIDTH * len(axes), _HEIGHT), metric, axes),
            f"{metrics.title_of(metric)}{seeds}",
        )
        for metric in drawn_metrics or metrics.metrics_of(runs.rounds)
    ]
    drawn += [
        ("privacy", privacy(runs, (4 * _WIDTH, _HEIGHT)), f"private rounds{seeds}"),
        ("clients", distribution(runs, size), f"{runs.first.plural} of the clients at the end"),
        ("predicted", predicted(runs, size), "predicted and true at the end"),
        ("gains", gains(runs, size), f"gains over {runs.base.label}, client by client"),
        ("new_clients", new_clients(runs, size), f"{runs.first.title} of new clients"),
    ]
    for name, figure, title in drawn:
        if figure is not None:
            yield name, figures.finish(figure, f"{heading}: {title}")
    partitions: dict[tuple, Holdings] = {}
    for run in runs.all:
        if run.holdings is not None and runs.first.is_share:
            partitions.setdefault(run.holdings.identity, run.holdings)
    for number, holdings in enumerate(partitions.values(), 1):
        figure = partition(holdings, size)
        title = f"{holdings.identity[0]}: training examples of each client by class"
        figure.suptitle(figures.plain(title))
        yield f"partition_{number}" if len(partitions) > 1 else "partition", figure
