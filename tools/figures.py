"""Draws the curves of runs: loss and accuracy against rounds, seconds and bytes."""

import json
import os
import pathlib

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib import ticker

_MEASURES = (
    ("train_loss", "training loss, all clients"),
    ("test_accuracy/client_mean", "test accuracy, all clients"),
    ("participant_test_accuracy/example_mean", "test accuracy, participants"),
)
_LINES = ("-", "--", ":", "-.")
_AXES = ("rounds", "seconds", "megabytes, down and up")


def draw(experiment: str, results: pathlib.Path, rows: list[dict]) -> list[pathlib.Path]:
    """Draws a figure for each dataset and degree of personalisation, with a curve for each run of the first seed.

    Args:
      experiment: Its name.
      results: Where its runs are; figures go to results/EXPERIMENT.
      rows: The finished runs.

    Returns:
      The files.
    """
    groups = {}
    for row in rows:
        runs = groups.setdefault((row["dataset"], row["personalization"]), {})
        runs.setdefault(row["run"], results / experiment / row["run"] / f"seed{row['seed']}")
    paths = []
    for (dataset, personalization), runs in groups.items():
        place = dataset.replace("/", "_") + ("" if dataset == "omniglot" else f"_{personalization}")
        # The names are words, not paths: they are compared letter by letter, up to the last word that all begin with.
        shared = os.path.commonprefix(list(runs)).rpartition("_")[0] + "_" if len(runs) > 1 else ""  # noqa: RUF071
        figure, axes = plt.subplots(len(_MEASURES), len(_AXES), figsize=(15, 11), sharey="row", layout="constrained")
        labels = [name.removeprefix(shared) for name in runs]
        for label, style, directory in zip(labels, styles(labels), runs.values(), strict=True):
            curve = _curve(directory)
            for line, (measure, _) in zip(axes, _MEASURES, strict=True):
                known = ~np.isnan(curve[measure])
                for axis, along in zip(line, _AXES, strict=True):
                    axis.plot(curve[along][known], curve[measure][known], label=label, linewidth=1.2, **style)
        for line, (_, label) in zip(axes, _MEASURES, strict=True):
            line[0].set_ylabel(label)
            for axis in line:
                axis.grid(alpha=0.3)
        for axis in axes[0]:
            axis.set_yscale("log")
            _write_numbers(axis.yaxis)
        for column, label in zip(axes.T, _AXES, strict=True):
            column[-1].set_xlabel(label)
            for axis in column:
                if label == "seconds":  # A round takes some methods tens of times as long as others.
                    axis.set_xscale("log")
                    _write_numbers(axis.xaxis)
                else:
                    axis.set_xlim(left=0)
        _write_legend(figure, axes[0, 0].get_lines(), labels)
        paths.append(results / experiment / f"{place}.png")
        figure.savefig(paths[-1], dpi=110)
        plt.close(figure)
    return paths


def styles(labels: list[str]) -> list[dict]:
    """Returns the colour and the line of each curve.

    Where the labels are a grid, FIRST_SECOND with all firsts and all seconds, the first is told by the line and the second by a
    colour from dark to bright, so that a sweep shows as one. Elsewhere each curve has a colour of its own.
    """
    if places := _grid(labels):
        shades = plt.get_cmap("viridis")(np.linspace(0, 0.9, 1 + max(column for _, column in places)))
        return [{"color": shades[column], "linestyle": _LINES[row]} for row, column in places]
    return [{"color": f"C{number % 10}", "linestyle": _LINES[number // 10 % len(_LINES)]} for number in range(len(labels))]


def _grid(labels):
    """Returns each label's row and column, by its FIRST and its SECOND, where all of them fill a grid; else None."""
    firsts, _, seconds = zip(*(label.rpartition("_") for label in labels), strict=True)
    rows, columns = list(dict.fromkeys(firsts)), list(dict.fromkeys(seconds))
    if not (1 < len(rows) <= len(_LINES) and 1 < len(columns) and len(labels) == len(rows) * len(columns)):
        return None
    return [(rows.index(first), columns.index(second)) for first, second in zip(firsts, seconds, strict=True)]


def _write_legend(figure, curves, labels):
    """Writes a legend above a figure: laid out like the grid, else in as many columns as there is room for."""
    order, columns = range(len(labels)), max(1, min(len(labels), 140 // (8 + max(map(len, labels)))))
    if places := _grid(labels):  # A legend is filled column by column.
        order = sorted(order, key=lambda k: places[k][::-1])
        columns = 1 + max(column for _, column in places)
    figure.legend([curves[k] for k in order], [labels[k] for k in order], loc="outside upper center", ncols=columns)


def _write_numbers(axis):
    """Writes plain numbers on a logarithmic axis, also between the powers of ten."""
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


def _curve(directory):
    """Returns the columns of a run: arrays over rounds, NaN where a round was not evaluated."""
    lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    columns = {measure: np.array([record.get(measure, np.nan) for record in records]) for measure, _ in _MEASURES}
    columns["rounds"] = np.array([record["round"] for record in records])
    columns["seconds"] = np.cumsum([record["seconds"] for record in records])
    columns["megabytes, down and up"] = np.cumsum([record["bytes_down"] + record["bytes_up"] for record in records]) / 1e6
    return columns
