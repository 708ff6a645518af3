"""The figures of a report, each drawn from series of runs in the size that is asked for.

A chart is None where no run has what it shows.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib import colors, ticker
from matplotlib.figure import Figure

from tf_pflego.reports import figures, metrics
from tf_pflego.reports.series import (
    AXES,
    Curve,
    Series,
    accuracies_of,
    blocks,
    curves_of,
    gains_of,
    new_client_curves,
    series_of,
    telling_axes,
)
from tf_pflego.reports.stored import Holdings, ReportedRun

Size = tuple[float, float]

_CLIENT_ROWS, _CLASS_COLUMNS = 300, 150
# With more of them an axis has numbers, since the names would not fit a narrow screen.
_MOST_NAMED_CLIENTS, _MOST_NAMED_CLASSES = 30, 20
_LENGTH_OF_NAME, _SIZE_OF_NAMES = 16, 8
_HEIGHT, _WIDTH = 4.4, 5.0  # inches of a PNG file, of one panel
_SHADES = colors.LinearSegmentedColormap.from_list(
    "shades", ("#c6dcf0", "#2f7ab8", "#08264d")
).with_extremes(bad=(0, 0, 0, 0))


def lines_of(series: Sequence[Series], metric: str, axis: str) -> list[figures.Line]:
    """Returns the curves of those series that have a metric."""
    curves = curves_of(series, metric, axis)
    return [
        figures.Line(series[number].label, curve, number, series[number].marked)
        for number, curve in curves.items()
    ]


def curves(series: Sequence[Series], metric: str, axes: Sequence[str], size: Size) -> Figure | None:
    """Returns a figure of a metric along some axes, side by side."""
    if not lines_of(series, metric, axes[0]):
        return None
    figure, panels = figures.new(size, len(axes))
    for number, (axis, panel) in enumerate(zip(axes, panels, strict=True)):
        ylabel = metrics.unit_of(metric) if number == 0 else None
        lines = lines_of(series, metric, axis)
        figures.draw_curves(panel, lines, AXES[axis], ylabel)
    return figure


def distribution(series: Sequence[Series], size: Size) -> Figure | None:
    """Returns a figure of which share of the clients has at most a certain accuracy at the end."""
    accuracies = [np.sort(accuracies_of(one)) for one in series]
    if not any(map(len, accuracies)):
        return None
    figure, (axis,) = figures.new(size)
    for number, (one, ordered) in enumerate(zip(series, accuracies, strict=True)):
        if len(ordered):
            chosen = figures.thinned(len(ordered), figures.POINTS)
            x = np.concatenate([ordered[:1], ordered[chosen]])
            y = np.concatenate([[0], metrics.PERCENT * (chosen + 1) / len(ordered)])
            axis.step(x, y, where="post", **figures.styled(one.label, number, one.marked, len(x)))
    axis.axhline(10, color=figures.INK, linewidth=0.9)
    axis.annotate(
        "worst tenth of the clients below this line",
        (0, 10),
        color=figures.INK,
        xytext=(4, 3),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        bbox={"facecolor": figures.PAPER, "edgecolor": "none", "pad": 1},
    )
    axis.set_xlabel("test accuracy of a client, percent")
    axis.set_ylabel("share of clients, percent")
    axis.set_ylim(0, 101)
    return figure


def gains(series: Sequence[Series], reference: Series, size: Size) -> Figure | None:
    """Returns a figure of the clients' gains over the reference, from who lost most."""
    others = {number: one for number, one in enumerate(series) if one is not reference}
    differences = {
        number: np.sort(gains_of(one, reference).differences) for number, one in others.items()
    }
    if not any(map(len, differences.values())):
        return None
    figure, (axis,) = figures.new(size)
    for number, ordered in differences.items():
        if len(ordered):
            chosen = figures.thinned(len(ordered), figures.POINTS)
            shares = metrics.PERCENT * (chosen + 0.5) / len(ordered)
            one = others[number]
            style = figures.styled(one.label, number, one.marked, len(chosen))
            axis.plot(shares, ordered[chosen], **style)
    axis.axhline(0, color=figures.INK, linewidth=1.2)
    axis.set_xlim(0, 100)
    axis.set_xlabel("clients in the order of their gain, percent")
    axis.set_ylabel("gain, points of percent")
    return figure


def new_clients(series: Sequence[Series], size: Size) -> Figure | None:
    """Returns a figure of the accuracy of new clients by epochs of their training."""
    lines = []
    for number, one in enumerate(series):
        if measured := new_client_curves(one):
            length = min(map(len, measured))
            values = np.array([curve[:length] for curve in measured])
            mean, low, high = values.mean(axis=0), values.min(axis=0), values.max(axis=0)
            curve = Curve(np.arange(float(length)), mean, low, high, mean)
            lines.append(figures.Line(one.label, curve, number, one.marked))
    if not lines:
        return None
    figure, (axis,) = figures.new(size)
    figures.draw_curves(axis, lines, "epochs of a new client's own training", "accuracy, percent")
    return figure


def block_sizes(holdings: Holdings) -> tuple[int, int]:
    """Returns how many clients and how many classes a cell of the partition's figure stands for."""
    return _blocks(holdings)[1]


def _blocks(holdings):
    return blocks(holdings.classes, holdings.class_counts, (_CLIENT_ROWS, _CLASS_COLUMNS))


def partition(holdings: Holdings, size: Size) -> Figure:
    """Returns a figure of clients by classes, the darker the more training examples."""
    matrix, (clients, classes) = _blocks(holdings)
    figure, (axis,) = figures.new(size)
    known = holdings.class_counts is not None
    extent = (-0.5, len(matrix) * clients - 0.5, matrix.shape[1] * classes - 0.5, -0.5)
    positive = matrix[matrix > 0]
    # Where only the classes are known, a filled cell has a colour from the middle.
    most = positive.max() if known else 2
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
    if known:
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
    """Draws what the shades of a partition mean, above it."""
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


def for_paper(runs: Sequence[ReportedRun], reference: ReportedRun) -> Iterator[tuple[str, Figure]]:
    """Yields the name and the figure, with title and legend, of each PNG file of a report."""
    series = series_of(runs)
    (base,) = [one for one in series if reference in one.runs]
    dataset = " and ".join(dict.fromkeys(str(run.configuration.get("dataset")) for run in runs))
    begun = [run.rounds for run in runs if run.num_rounds]
    axes = telling_axes(begun)
    banded = len(series) <= figures.CROWD and any(len(one.runs) > 1 for one in series)
    seeds = " (line: mean, band: lowest and highest of seeds)" * banded
    drawn = [
        (
            f"curves_{metric.replace('/', '_')}",
            curves(series, metric, axes, (_WIDTH * len(axes), _HEIGHT)),
            f"{metrics.title_of(metric)}{seeds}",
        )
        for metric in metrics.metrics_of(begun)
    ]
    size = (1.6 * _WIDTH, _HEIGHT)
    drawn += [
        ("clients", distribution(series, size), "accuracies of the clients at the end"),
        ("gains", gains(series, base, size), f"gains over {base.label}, client by client"),
        ("new_clients", new_clients(series, size), "accuracy of new clients"),
    ]
    for name, figure, title in drawn:
        if figure is not None:
            yield name, figures.finish(figure, f"{dataset}: {title}")
    partitions: dict[tuple, Holdings] = {}
    for run in runs:
        if run.holdings is not None:
            partitions.setdefault(run.holdings.identity, run.holdings)
    for number, holdings in enumerate(partitions.values(), 1):
        figure = partition(holdings, size)
        title = f"{holdings.identity[0]}: training examples of each client by class"
        figure.suptitle(figures.plain(title))
        yield f"partition_{number}" if len(partitions) > 1 else "partition", figure
