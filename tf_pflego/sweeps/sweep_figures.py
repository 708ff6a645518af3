"""The figures of a sweep: its curves, its clients, and the results of its trials.

The runs are combined as in a report, and drawn by the same functions.
"""

import re
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tf_pflego.reports import charts, figures
from tf_pflego.reports.page_parts import Runs
from tf_pflego.reports.series import Series
from tf_pflego.reports.stored import ReportedRun
from tf_pflego.sweeps import choice, store
from tf_pflego.sweeps.experiments import Cell, Range
from tf_pflego.sweeps.stored_sweep import StoredSweep
from tf_pflego.system.texts import words

ACCURACY = "test_accuracy/client_mean"
_PANEL_HEIGHT, _MOST_COLUMNS = 2.3, 4
# Values that are further apart than this are drawn on a logarithmic axis.
_LOGARITHMIC = 8


def by_condition(sweep: StoredSweep) -> dict[str, Runs]:
    """Returns {condition: its runs, as in a report}. A method looks the same in all."""
    curves, clients = sweep.curves(), sweep.clients()
    labels = list(dict.fromkeys(cell.label for cell in sweep.cells))
    groups = {}
    for number, cells in enumerate(sweep.conditions()):
        together = []
        for cell in cells:
            rows = {s: row for s, row in sweep.runs_of(cell).items() if (cell.name, s) in curves}
            runs = tuple(
                ReportedRun(
                    path=sweep.path / cell.name / str(seed),
                    configuration=store.settings_of(row)[1] | store.settings_of(row)[0],
                    rounds=curves[cell.name, seed],
                    clients=clients.get((cell.name, seed)),
                )
                for seed, row in rows.items()
            )
            if runs:
                names = tuple(f"{cell.label}, seed {seed}" for seed in rows)
                together.append(Series(labels.index(cell.label), cell.label, runs, names))
        if together:
            all_runs = [run for one in together for run in one.runs]
            key = f"c{number}-"
            groups[cells[0].condition_in_words] = Runs(all_runs, all_runs[0], together, key)
    return groups


def settings(sweep: StoredSweep, cells: Sequence[Cell], size: tuple[float, float]) -> Figure:
    """Returns a figure of the results of trials, a panel for each setting.

    It is as wide as the size, and as high as the panels need.
    """
    tried = [cell for cell in cells if choice.trials_of(cell, sweep.tuning_rows)]
    panels = [(cell, name) for cell in tried for name in cell.choices]
    columns = min(len(panels), _MOST_COLUMNS if size == figures.WIDE else _MOST_COLUMNS // 2)
    rows = -(-len(panels) // columns)
    figure, axes = figures.grid((size[0], _PANEL_HEIGHT * rows), rows, columns, sharey="all")
    labels, chosen = list(dict.fromkeys(cell.label for cell in sweep.cells)), sweep.best()
    first = sweep.first_of(cells)
    for place, axis in enumerate(axes.flat):
        if place < len(panels):
            cell, name = panels[place]
            color = figures.look(labels.index(cell.label))["color"]
            trials = choice.trials_of(cell, sweep.tuning_rows)
            _draw_setting(axis, cell, name, trials, first, cell.name in chosen, color)
        else:
            axis.set_visible(False)
    unit = figures.plain(f"{first.title}{first.unit}")
    for axis in axes[:, 0]:
        axis.set_ylabel(f"validation\n{unit}", fontsize=9)
    return figure


def _draw_setting(axis: Axes, cell, name, trials, first, is_chosen, color):
    """Draws the trials of a setting: a dot for each trial, and a line through the best."""
    tried = [(one.settings[name], one.value) for one in trials if one.value is not None]
    among = cell.choices[name]
    are_numbers = all(isinstance(setting, int | float) for setting, _ in tried)
    place = {value: k for k, value in enumerate(() if isinstance(among, Range) else among)}
    points = [(x if are_numbers else place[x], first.scale * value) for x, value in tried]
    axis.set_title(figures.plain(cell.label), fontsize=10, color=figures.INK)
    axis.set_xlabel(figures.plain(name), fontsize=9)
    axis.tick_params(labelsize=9)
    if not points:
        return
    axis.plot(*zip(*points, strict=True), "o", color=color, markersize=4, alpha=0.6, label="tried")
    values = sorted({x for x, _ in points})
    if are_numbers and values[0] > 0 and values[-1] > _LOGARITHMIC * values[0]:
        axis.set_xscale("log")
        figures.write_numbers(axis.xaxis, subs=(1,))
    if not isinstance(among, Range):
        best = [first.best(y for x, y in points if x == value) for value in values]
        axis.plot(values, best, color=color, label="best of each value")
        axis.set_xticks(values, [words(x if are_numbers else among[x]) for x in values])
        axis.minorticks_off()
    if is_chosen:
        ring: Any = {"markersize": 10, "markerfacecolor": "none", "color": figures.INK}
        chosen = max(points, key=lambda point: first.sign * point[1])
        axis.plot(*chosen, "o", label="chosen", clip_on=False, **ring)


def files_of(sweep: StoredSweep) -> dict[str, bytes]:
    """Returns the figures of each condition as PNG, by the names of their files."""
    drawn: dict[str, Figure] = {}
    for condition, runs in by_condition(sweep).items():
        title = ": ".join(filter(None, (sweep.title, condition)))
        pictures = charts.for_paper(runs, title, [runs.first.metric(ACCURACY)])
        drawn |= {f"{name}{_ending(condition)}": figure for name, figure in pictures}
    for cells in sweep.conditions():
        condition = cells[0].condition_in_words
        if any(choice.trials_of(cell, sweep.tuning_rows) for cell in cells):
            title = ": ".join(filter(None, (sweep.title, condition, "settings that were tried")))
            figure = figures.finish(settings(sweep, cells, figures.WIDE), title)
            drawn[f"settings{_ending(condition)}"] = figure
    return {f"{name}.png": figures.image_of(figure) for name, figure in drawn.items()}


def _ending(condition):
    """Returns the end of the names of a condition's files."""
    short = re.sub(r"\w+=(?!True)|=True", "", condition)  # The values, and names of switches.
    return re.sub(r"[^a-zA-Z0-9.]+", "_", f"_{short}") if short else ""
