"""The figures of the papers' experiments: loss and accuracy against rounds, seconds and bytes.

Figures 3 to 5 of the PGFed paper are the change of A, new clients and convergence. The curves are
drawn as in the report of runs (`tf_pflego.reports.figures`).
"""

import os
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from paper_pages import PERCENT, grouped

from tf_pflego.reports import figures, series
from tf_pflego.sweeps import Sweep

_SERVED = "test_accuracy/client_mean"
_MEASURES = {
    "train_loss": "training loss, all clients",
    _SERVED: "test accuracy, all clients, percent",
    "participant_test_accuracy/example_mean": "test accuracy, participants, percent",
}
_DPI = 110
_SEEDS = " (line: mean of the seeds, band: lowest and highest)"
# Where the accuracies of `convergence` begin, in points below the best.
_DEPTH = 40


def curves(sweep: Sweep) -> dict[str, bytes]:
    """Returns a figure per dataset and degree of personalisation; the seeds of a run are a line."""
    by_run = sweep.curves()
    images = {}
    for (dataset, degree), rows in grouped(sweep.rows, "dataset", "personalization").items():
        runs = grouped(rows, "run")
        name, words = dataset.replace("/", "_"), dataset
        if dataset != "omniglot":
            name, words = f"{name}_{degree}", f"{words}, personalization {degree}"
        seeds = {run: [by_run[run, row["seed"]] for row in same] for run, same in runs.items()}
        marked = {run for run, same in runs.items() if same[0]["algorithm"] == series.MARKED}
        marked = marked if len(marked) < len(runs) else set()
        images[f"{name}.png"] = image_of(_drawn(seeds, marked, f"{sweep.title}: {words}")[0])
    return images


def _drawn(runs, marked, title, measures=_MEASURES, column=5.2, row=3.6, head=1.2):
    """Returns a figure with the curves of these runs, lists of seeds by their names, and its lines.

    Its panels, a row for each measure, are `column` by `row` inches, with `head` above them.
    """
    # The names are words, not paths, so they are compared letter by letter; the common part ends
    # with a whole word.
    common = os.path.commonprefix(list(runs)).rpartition("_")[0] + "_"  # noqa: RUF071
    labels = [name.removeprefix(common) if len(runs) > 1 else name for name in runs]
    axes = series.telling_axes([curve for seeds in runs.values() for curve in seeds])
    size = (column * len(axes), row * len(measures) + head)
    figure, panels = figures.grid(size, len(measures), len(axes))
    looks, drawn = list(zip(labels, runs.items(), styles(labels), strict=True)), []
    for place, (measure, ylabel) in enumerate(measures.items()):
        for panel, axis in zip(panels[place], axes, strict=True):
            lines = [
                figures.Line(label, curve, number, name in marked, style)
                for number, (label, (name, seeds), style) in enumerate(looks)
                if (curve := series.curve(seeds, measure, axis)) is not None
            ]
            if lines:
                xlabel = series.AXES[axis] if place == len(measures) - 1 else ""
                is_first = panel is panels[place, 0]
                figures.draw_curves(panel, lines, xlabel, ylabel if is_first else None)
            drawn += lines
    banded = len(runs) <= figures.CROWD and any(len(seeds) > 1 for seeds in runs.values())
    _finish(figure, labels, title + _SEEDS * banded)
    return figure, drawn


def convergence(methods: Mapping[str, Sequence[dict]], title: str) -> bytes:
    """Returns the accuracy of all clients along what tells; the seeds of a method are one line."""
    measures = {_SERVED: "test accuracy as served, mean over clients, percent"}
    figure, lines = _drawn(methods, {series.MARKED}, title, measures, 5.4, 6.2, 0)
    best = max(line.curve.high.max() for line in lines)
    figure.axes[0].set_ylim(max(0, best - _DEPTH), best + 1)
    return image_of(figure)


def new_clients(methods: Mapping[str, Sequence[np.ndarray]], title: str) -> bytes:
    """Returns the accuracy of new clients against the epochs of their own training."""
    figure, (axis,) = figures.new((9, 5.5))
    lines = []
    for number, (method, seeds) in enumerate(methods.items()):
        values = PERCENT * np.array(seeds)
        mean, ends = values.mean(axis=0), (values.min(axis=0), values.max(axis=0))
        curve = series.Curve(np.arange(float(len(mean))), mean, *ends)
        lines.append(figures.Line(method, curve, number, method == series.MARKED))
    ylabel = "test accuracy, mean over new clients, percent"
    figures.draw_curves(axis, lines, "epochs of a new client's own training", ylabel)
    _finish(figure, list(methods), title)
    return image_of(figure)


def risk_weights(change: Mapping) -> bytes:
    """Returns the change of A in a run, and of its columns and rows with their regression lines."""
    figure, panels = figures.grid((15, 4.6), 1, 3, sharey="none")
    image, *lines = panels[0]
    matrix, examples = change["change"], change["examples"]
    limit = np.abs(matrix).max()
    colors = image.imshow(matrix, cmap="RdBu_r", vmin=-limit, vmax=limit)
    image.grid(False)
    figure.colorbar(colors, ax=image)
    image.set_xlabel("client j, whose risk counts")
    image.set_ylabel("client i, for whom it counts")
    image.set_title(f"change of A in {change['run']}")
    ends = np.array([examples.min(), examples.max()])
    whose = {"columns": "its risk for the others", "rows": "the others' risks for it"}
    for panel, (name, of) in zip(lines, whose.items(), strict=True):
        means, slope, correlation = change[name]
        panel.scatter(examples, means, color=figures.COLORS[0][0])
        line = means.mean() + slope * (ends - examples.mean())
        panel.plot(ends, line, color=figures.COLORS[1][0])
        panel.set_xlabel("client's training examples")
        panel.set_ylabel(f"mean change of the weight of {of}")
        panel.set_title(f"{name} of A, r = {correlation:+.2f}")
    return image_of(figure)


def image_of(figure: Figure) -> bytes:
    """Returns the PNG file of a figure."""
    return figures.image_of(figure, _DPI)


def styles(labels: Sequence[str]) -> list[dict]:
    """Returns the colour, the dashes and the marker of each curve.

    If the labels FIRST_SECOND fill a grid of all firsts by all seconds, the line shows the first
    and a colour from dark to bright shows the second, so that a choice of values looks like one.
    Otherwise each curve looks as its number does in a report.
    """
    if not (places := _grid(labels)):
        return [figures.look(number) for number in range(len(labels))]
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, 1 + max(c for _, c in places)))
    return [
        figures.look(row)
        | {"color": tuple(shades[column]), "marker": figures.MARKERS[column % len(figures.MARKERS)]}
        for row, column in places
    ]


def _grid(labels):
    """Returns the row and the column of each label FIRST_SECOND if all fill a grid, else None."""
    parts = [label.rpartition("_")[::2] for label in labels]
    rows, columns = (list(dict.fromkeys(words)) for words in zip(*parts, strict=True))
    full = len(labels) == len(rows) * len(columns)
    if not (full and 1 < len(rows) <= len(figures.DASHES) and 1 < len(columns)):
        return None
    return [(rows.index(first), columns.index(second)) for first, second in parts]


def _finish(figure, labels, title):
    """Writes a title and a legend; the legend of a grid is laid out like it."""
    if not (places := _grid(labels)):
        figures.finish(figure, title, labels)
        return
    order = sorted(range(len(labels)), key=lambda k: places[k][::-1])
    columns = 1 + max(column for _, column in places)
    figures.finish(figure, title, [labels[k] for k in order], columns)
