"""Draws the curves of runs: loss and accuracy against rounds, seconds and bytes.

The curves are drawn as in the report of runs (`tf_pflego.reports.figures`).
"""

import os
import pathlib
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
import tables
from experiments import TITLES
from matplotlib.figure import Figure

from tf_pflego.reports import figures as drawn
from tf_pflego.reports import series

_MEASURES = (
    ("train_loss", "training loss, all clients"),
    ("test_accuracy/client_mean", "test accuracy, all clients, percent"),
    ("participant_test_accuracy/example_mean", "test accuracy, participants, percent"),
)
_DPI = 110
_COLUMN, _ROW = 5.2, 3.6
_HEAD = 1.2
SEEDS = " (line: mean of the seeds, band: lowest and highest)"


def draw(experiment: str, results: pathlib.Path, rows: list[dict]) -> list[pathlib.Path]:
    """Draws a figure per dataset and degree of personalisation; seeds of a run are one line.

    Args:
      experiment: The name of the experiment.
      results: The directory of its curves; figures go to the directory EXPERIMENT in it.
      rows: The runs, as `tables.read_runs` gives them.

    Returns:
      The paths of the figures.
    """
    curves = tables.read_curves(results, experiment)
    groups = {}
    for row in rows:
        runs = groups.setdefault((row["dataset"], row["personalization"]), {})
        runs.setdefault(row["run"], []).append(row)
    (results / experiment).mkdir(exist_ok=True)
    paths = []
    for (dataset, personalization), runs in groups.items():
        degree = "" if dataset == "omniglot" else f"_{personalization}"
        paths.append(results / experiment / f"{dataset.replace('/', '_')}{degree}.png")
        found = {
            name: [curves[row["run"], row["seed"]] for row in own] for name, own in runs.items()
        }
        marked = marked_of({name: own[0]["algorithm"] for name, own in runs.items()})
        words = "" if dataset == "omniglot" else f", personalization {personalization}"
        figure = _figure_of(found, marked, f"{TITLES[experiment]}: {dataset}{words}")
        tables.replace(paths[-1], png_of(figure))
    return paths


def draw_nothing(experiment: str, results: pathlib.Path, rows: list[dict]) -> list[pathlib.Path]:
    """Draws no figure, for an experiment whose runs are too many for one."""
    return []


def marked_of(algorithms: Mapping[str, str]) -> set[str]:
    """Returns the names of those runs that are PFLEGO's, unless all are."""
    found = {name for name, algorithm in algorithms.items() if algorithm == series.MARKED}
    return set() if len(found) == len(algorithms) else found


def _figure_of(runs, marked, title):
    """Returns a figure with the curves of these runs, lists of seeds by their names."""
    # The names are words, not paths, so they are compared letter by letter; the common part ends
    # with a whole word.
    common = os.path.commonprefix(list(runs)).rpartition("_")[0] + "_"  # noqa: RUF071
    labels = [name.removeprefix(common) if len(runs) > 1 else name for name in runs]
    every = [curve for seeds in runs.values() for curve in seeds]
    axes = series.telling_axes(every)
    size = (_COLUMN * len(axes), _ROW * len(_MEASURES) + _HEAD)
    figure, panels = drawn.grid(size, len(_MEASURES), len(axes))
    looks = list(zip(labels, runs.items(), styles(labels), strict=True))
    for line, (measure, ylabel) in zip(panels, _MEASURES, strict=True):
        for number, (panel, axis) in enumerate(zip(line, axes, strict=True)):
            last = measure == _MEASURES[-1][0]
            lines = [
                drawn.Line(label, curve, number, name in marked, style)
                for number, (label, (name, seeds), style) in enumerate(looks)
                if (curve := series.curve(seeds, measure, axis)) is not None
            ]
            if lines:
                xlabel = series.AXES[axis] if last else ""
                drawn.draw_curves(panel, lines, xlabel, None if number else ylabel)
    banded = len(runs) <= drawn.CROWD and any(len(seeds) > 1 for seeds in runs.values())
    finish(figure, labels, title + SEEDS * banded)
    return figure


def png_of(figure: Figure) -> bytes:
    """Returns the PNG file of a figure."""
    return drawn.png_of(figure, _DPI)


def styles(labels: Sequence[str]) -> list[dict]:
    """Returns the colour, the dashes and the marker of each curve.

    If the labels FIRST_SECOND fill a grid of all firsts by all seconds, the line shows the first
    and a colour from dark to bright shows the second, so that a sweep looks like a sweep. Otherwise
    each curve looks like that of its number in a report.
    """
    if not (places := _grid(labels)):
        return [drawn.look(number) for number in range(len(labels))]
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, 1 + max(c for _, c in places)))
    lines = [drawn.look(row)["linestyle"] for row, _ in places]
    markers = [drawn.look(column)["marker"] for _, column in places]
    return [
        {"color": tuple(shades[column]), "linestyle": line, "marker": marker}
        for (_, column), line, marker in zip(places, lines, markers, strict=True)
    ]


def _grid(labels):
    """Returns the row and the column of each label FIRST_SECOND if all fill a grid, else None."""
    parts = [label.rpartition("_")[::2] for label in labels]
    rows, columns = (list(dict.fromkeys(words)) for words in zip(*parts, strict=True))
    full = len(labels) == len(rows) * len(columns)
    if not (full and 1 < len(rows) <= len(drawn.DASHES) and 1 < len(columns)):
        return None
    return [(rows.index(first), columns.index(second)) for first, second in parts]


def finish(figure: Figure, labels: Sequence[str], title: str) -> None:
    """Writes a title and a legend; the legend of a grid is laid out like it."""
    if not (places := _grid(labels)):
        drawn.finish(figure, title, labels)
        return
    order = sorted(range(len(labels)), key=lambda k: places[k][::-1])
    columns = 1 + max(column for _, column in places)
    drawn.finish(figure, title, [labels[k] for k in order], columns)
