"""The page of a sweep: one HTML file, by the machinery of the reports of runs."""

import pathlib

from tf_pflego.reports import client_sections, view, writing
from tf_pflego.reports import figures as drawing
from tf_pflego.reports.metrics import UNKNOWN, in_unit, listed
from tf_pflego.reports.page_parts import Runs, Table
from tf_pflego.reports.series import Series
from tf_pflego.sweeps import choice, sweep_figures, tables
from tf_pflego.sweeps.stored_sweep import StoredSweep
from tf_pflego.system.texts import words

_TEMPLATE = pathlib.Path(__file__).parent / "sweep.html.jinja"


def write(sweep: StoredSweep, output: pathlib.Path) -> None:
    """Writes the page (see `Sweep.report`)."""
    groups = sweep_figures.by_condition(sweep)
    ended = {condition: client_sections.distribution(runs) for condition, runs in groups.items()}
    sections = {
        "curves": (
            "Training",
            {
                condition: view.chart(runs, 0, metric, "rounds")
                for condition, runs in groups.items()
                if (metric := runs.first.metric(sweep_figures.ACCURACY)) in runs.metrics
            },
        ),
        "clients": (
            "Clients at the end",
            {
                condition: {"drawing": one["drawing"], "numbers": one["table"]}
                for condition, one in ended.items()
                if one["ended"]
            },
        ),
        "choice": ("What was chosen", _choices(sweep)),
    }
    compared = tables.Comparison(sweep)
    content = {
        "title": sweep.title,
        "mark": writing.mark_of([sweep.path]),
        "outcomes": {condition: view.outcome(runs) for condition, runs in groups.items()},
        "sweep": sweep,
        "compared": compared,
        "tables": [tables.in_front(one) for one in compared.tables],
        "sections": {key: section for key, section in sections.items() if section[1]},
        "first": sweep.first_of(sweep.cells),
        "of_cells": _settings(groups),
        "data": {},
    }
    writing.write_page(_TEMPLATE, content, output)


def _choices(sweep):
    """Returns {condition: the tried settings, in drawings and as numbers}."""
    choices, chosen_of = {}, sweep.best()
    for number, cells in enumerate(sweep.conditions()):
        rows = [row for cell in cells for row in _trials(cell, sweep, chosen_of.get(cell.name))]
        first = sweep.first_of(cells)
        if rows:
            chosen = [f"{row[0]} with {row[1]}" for row in rows if row[-1] == "yes"] or ["none"]
            pictures = {
                width: drawing.svg_of(
                    sweep_figures.settings(sweep, cells, size),
                    f"s{number}{width}",
                    f"Validation {first.plural} of what was tried. Chosen: {listed(chosen)}.",
                )
                for width, size in (("wide", drawing.WIDE), ("narrow", drawing.NARROW))
            }
            head = ["method", "settings", f"validation {first.title}", "runs", "rounds", "chosen"]
            choices[cells[0].condition_in_words] = {
                "drawing": {"pictures": pictures, "legend": []},
                "numbers": Table("Settings that were tried", head, rows),
            }
    return choices


def _trials(cell, sweep, best):
    """Yields a row for each of the settings of a cell that were tried."""
    for trial in choice.trials_of(cell, sweep.tuning_rows):
        settings = ", ".join(f"{name}={words(value)}" for name, value in trial.settings.items())
        value = "ended early"
        if trial.value is not None:
            value = in_unit(trial.first.scale * trial.value, trial.first)
        chosen = "yes" if trial.settings == best else UNKNOWN
        yield [cell.label, settings, value, trial.runs, trial.rounds, chosen]


def _settings(groups):
    """Returns the settings of one run of each cell, or None without any run."""
    firsts = [one.runs[0] for runs in groups.values() for one in runs.series]
    together = [
        Series(number, run.path.parent.name, (run,), (run.path.parent.name,))
        for number, run in enumerate(firsts)
    ]
    return view.settings(Runs(firsts, firsts[0], together)) if firsts else None
