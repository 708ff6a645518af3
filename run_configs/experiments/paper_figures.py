"""The figures of the papers' experiments: loss and accuracy against rounds, seconds and bytes.

The curves are drawn as in the report of runs (`tf_pflego.reports.figures`).
"""

import os
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from paper_pages import grouped

from tf_pflego.reports import figures, series
from tf_pflego.sweeps import Sweep

_MEASURES = {
    "train_loss": "training loss, all clients",
    "test_accuracy/client_mean": "test accuracy, all clients, percent",
    "participant_test_accuracy/example_mean": "test accuracy, participants, percent",
}
_DPI = 110
_COLUMN, _ROW, _HEAD = 5.2, 3.6, 1.2
SEEDS = " (line: mean of the seeds, band: lowest and highest)"


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
        images[f"{name}.png"] = image_of(_figure_of(seeds, marked, f"{sweep.title}: {words}"))
    return images


def _figure_of(runs, marked, title):
    """Returns a figure with the curves of these runs, lists of seeds by their names."""
    # The names are words, not paths, so they are compared letter by letter; the common part ends
    # with a whole word.
    common = os.path.commonprefix(list(runs)).rpartition("_")[0] + "_"  # noqa: RUF071
    labels = [name.removeprefix(common) if len(runs) > 1 else name for name in runs]
    axes = series.telling_axes([curve for seeds in runs.values() for curve in seeds])
    size = (_COLUMN * len(axes), _ROW * len(_MEASURES) + _HEAD)
    figure, panels = figures.grid(size, len(_MEASURES), len(axes))
    looks = list(zip(labels, runs.items(), styles(labels), strict=True))
    for row, (measure, ylabel) in enumerate(_MEASURES.items()):
        for column, axis in enumerate(axes):
            lines = [
                figures.Line(label, curve, number, name in marked, style)
                for number, (label, (name, seeds), style) in enumerate(looks)
                if (curve := series.curve(seeds, measure, axis)) is not None
            ]
            if lines:
                xlabel = series.AXES[axis] if row == len(_MEASURES) - 1 else ""
                figures.draw_curves(panels[row, column], lines, xlabel, None if column else ylabel)
    banded = len(runs) <= figures.CROWD and any(len(seeds) > 1 for seeds in runs.values())
    finish(figure, labels, title + SEEDS * banded)
    return figure


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


def finish(figure: Figure, labels: Sequence[str], title: str) -> None:
    """Writes a title and a legend; the legend of a grid is laid out like it."""
    if not (places := _grid(labels)):
        figures.finish(figure, title, labels)
        return
    order = sorted(range(len(labels)), key=lambda k: places[k][::-1])
    columns = 1 + max(column for _, column in places)
    figures.finish(figure, title, [labels[k] for k in order], columns)
