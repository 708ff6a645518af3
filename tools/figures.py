"""Draws the curves of runs: loss and accuracy against rounds, seconds and bytes."""

import io
import os
import pathlib

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import tables
from matplotlib import ticker

_MEASURES = (
    ("train_loss", "training loss, all clients"),
    ("test_accuracy/client_mean", "test accuracy, all clients"),
    ("participant_test_accuracy/example_mean", "test accuracy, participants"),
)
_LINES = ("-", "--", ":", "-.")
_AXES = ("rounds", "seconds", "megabytes, down and up")


def draw(experiment: str, results: pathlib.Path, rows: list[dict]) -> list[pathlib.Path]:
    """Draws a figure per dataset and degree of personalisation, with the first seed of each run.

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
        runs.setdefault(row["run"], _along_axes(curves[row["run"], row["seed"]]))
    (results / experiment).mkdir(exist_ok=True)
    paths = []
    for (dataset, personalization), runs in groups.items():
        degree = "" if dataset == "omniglot" else f"_{personalization}"
        paths.append(results / experiment / f"{dataset.replace('/', '_')}{degree}.png")
        tables.replace(paths[-1], _figure_of(runs))
    return paths


def draw_nothing(experiment: str, results: pathlib.Path, rows: list[dict]) -> list[pathlib.Path]:
    """Draws no figure, for an experiment whose runs are too many for one."""
    return []


def _figure_of(runs):
    """Returns the PNG file of a figure with the curves of these runs, by their names."""
    # The names are words, not paths, so they are compared letter by letter; the common part ends
    # with a whole word.
    common = os.path.commonprefix(list(runs)).rpartition("_")[0] + "_"  # noqa: RUF071
    labels = [name.removeprefix(common) if len(runs) > 1 else name for name in runs]
    size = len(_MEASURES), len(_AXES)
    figure, axes = plt.subplots(*size, figsize=(15, 11), sharey="row", layout="constrained")
    for label, style, curve in zip(labels, styles(labels), runs.values(), strict=True):
        for line, (measure, _) in zip(axes, _MEASURES, strict=True):
            known = ~np.isnan(curve[measure])
            for axis, along in zip(line, _AXES, strict=True):
                axis.plot(
                    curve[along][known],
                    curve[measure][known],
                    label=label,
                    linewidth=1.2,
                    **style,
                )
    for line, (_, label) in zip(axes, _MEASURES, strict=True):
        line[0].set_ylabel(label)
        for axis in line:
            axis.grid(alpha=0.3)
    for axis in axes[0]:
        axis.set_yscale("log")
        write_numbers(axis.yaxis)
    for column, label in zip(axes.T, _AXES, strict=True):
        column[-1].set_xlabel(label)
        for axis in column:
            # A round of one method can take tens of times as long as a round of another.
            if label == "seconds":
                axis.set_xscale("log")
                write_numbers(axis.xaxis)
            else:
                axis.set_xlim(left=0)
    _write_legend(figure, axes[0, 0].get_lines(), labels)
    return png_of(figure)


def png_of(figure: plt.Figure) -> bytes:
    """Returns the PNG file of a figure, and closes the figure."""
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=110)
    plt.close(figure)
    return png.getvalue()


def styles(labels: list[str]) -> list[dict]:
    """Returns the colour and the line of each curve.

    If the labels FIRST_SECOND fill a grid of all firsts by all seconds, the line shows the first
    and a colour from dark to bright shows the second, so that a sweep looks like a sweep. Otherwise
    each curve has its own colour.
    """
    if places := _grid(labels):
        count = 1 + max(column for _, column in places)
        shades = plt.get_cmap("viridis")(np.linspace(0, 0.9, count))
        return [{"color": shades[column], "linestyle": _LINES[row]} for row, column in places]
    colors, lines = 10, len(_LINES)
    numbers = range(len(labels))
    return [{"color": f"C{k % colors}", "linestyle": _LINES[k // colors % lines]} for k in numbers]


def _grid(labels):
    """Returns the row and the column of each label FIRST_SECOND if all fill a grid, else None."""
    parts = [label.rpartition("_")[::2] for label in labels]
    rows, columns = (list(dict.fromkeys(words)) for words in zip(*parts, strict=True))
    full = len(labels) == len(rows) * len(columns)
    if not (full and 1 < len(rows) <= len(_LINES) and 1 < len(columns)):
        return None
    return [(rows.index(first), columns.index(second)) for first, second in parts]


def _write_legend(figure, curves, labels):
    """Writes a legend above a figure, laid out like the grid or else in as many columns as fit."""
    order = range(len(labels))
    columns = max(1, min(len(labels), 140 // (8 + max(map(len, labels)))))
    if places := _grid(labels):  # A legend is filled column by column.
        order = sorted(order, key=lambda k: places[k][::-1])
        columns = 1 + max(column for _, column in places)
    curves, labels = ([values[k] for k in order] for values in (curves, labels))
    figure.legend(curves, labels, loc="outside upper center", ncols=columns)


def write_numbers(axis: "matplotlib.axis.Axis", subs: tuple[int, ...] = (1, 2, 5)) -> None:
    """Writes plain numbers on a logarithmic axis, also between the powers of ten."""
    axis.set_major_locator(ticker.LogLocator(subs=subs))
    axis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


def _along_axes(curve):
    """Returns the measures of a run, and the columns that the axes show, which its table lacks."""
    unknown = np.full_like(curve["round"], np.nan)
    measures = {measure: curve.get(measure, unknown) for measure, _ in _MEASURES}
    rounds, seconds = curve["round"], np.cumsum(curve["seconds"])
    megabytes = np.cumsum(curve["bytes_down"] + curve["bytes_up"]) / 1e6
    return measures | dict(zip(_AXES, (rounds, seconds, megabytes), strict=True))
