"""The page of a sweep: one HTML file, by the machinery of the reports of runs."""

import pathlib

from tf_pflego.reports import clients, view, writing
from tf_pflego.reports import figures as drawing
from tf_pflego.reports.metrics import PERCENT, UNKNOWN, listed, percent
from tf_pflego.reports.parts import Runs, Table
from tf_pflego.reports.series import Series
from tf_pflego.sweeps import choice, figures, tables
from tf_pflego.sweeps.contents import Contents, condition_of, conditions
from tf_pflego.sweeps.definition import words

_TEMPLATE = pathlib.Path(__file__).parent / "sweep.html.jinja"


def write(sweep: Contents, output: pathlib.Path) -> None:
    """Writes the page; `Sweep.report` says more."""
    rows, drawn = tables.numbers(sweep), figures.by_condition(sweep)
    sections = {
        "comparison": ("The methods compared", tables.comparison(sweep)),
        "choice": ("What was chosen", _choices(sweep)),
        "curves": (
            "Training",
            {
                condition: view.chart(runs, 0, figures.ACCURACY, "rounds")
                for condition, runs in drawn.items()
                if figures.ACCURACY in runs.metrics
            },
        ),
        "clients": (
            "Clients at the end",
            {condition: clients.distribution(runs) for condition, runs in drawn.items()},
        ),
        "settings": ("Settings", _settings(sweep)),
    }
    content = {
        "title": sweep.title,
        "sweep": sweep,
        "methods": list(dict.fromkeys(cell.label for cell in sweep.cells)),
        "conditions": list(filter(None, (condition_of(cells[0]) for cells in conditions(sweep)))),
        "outcomes": _outcomes(sweep, rows),
        "notes": tables.notes(sweep),
        "warnings": tables.warnings(sweep),
        "sections": {key: section for key, section in sections.items() if section[1]},
        "data": {},
    }
    writing.write_page(_TEMPLATE, content, output)


def _outcomes(sweep, rows):
    """Returns {condition: [(method, accuracy), ...]}, the best first."""
    outcomes = {}
    for cells in conditions(sweep):
        known = [rows[cell.name] for cell in cells if cell.name in rows]
        known = [row for row in known if row["test_accuracy"] is not None]
        known.sort(key=lambda row: -row["test_accuracy"])
        if known:
            ends = [(row["method"], percent(row["test_accuracy"])) for row in known]
            outcomes[condition_of(cells[0])] = ends
    return outcomes


def _choices(sweep):
    """Returns {condition: what was tried, drawn and as numbers}."""
    choices = {}
    for number, cells in enumerate(conditions(sweep)):
        rows = [row for cell in cells for row in _trials(cell, sweep)]
        if rows:
            ends = listed(f"{row[0]} {row[1]}" for row in rows if row[-1] == "yes")
            pictures = {
                width: drawing.svg_of(
                    figures.settings(sweep, cells, size),
                    f"s{number}{width}",
                    f"Validation accuracy of what was tried. Chosen are {ends}.",
                )
                for width, size in (("wide", drawing.WIDE), ("narrow", drawing.NARROW))
            }
            head = ["method", "settings", "validation accuracy", "runs", "rounds", "chosen"]
            choices[condition_of(cells[0])] = {
                "drawing": {"pictures": pictures, "legend": []},
                "numbers": Table("Settings that were tried", head, rows),
            }
    return choices


def _trials(cell, sweep):
    chosen = choice.best(cell, sweep.tuning_rows)
    for trial in choice.trials_of(cell, sweep.tuning_rows):
        settings = ", ".join(f"{name}={words(value)}" for name, value in trial.settings.items())
        accuracy = UNKNOWN if trial.accuracy is None else percent(PERCENT * trial.accuracy)
        yield [
            *(cell.label, settings, accuracy, trial.runs, trial.rounds),
            "yes" if trial == chosen else UNKNOWN,
        ]


def _settings(sweep):
    """Returns the settings of one run of each cell."""
    runs = {name: runs[0] for name, runs in figures.reported(sweep).items()}
    together = [Series(k, name, (run,), (name,)) for k, (name, run) in enumerate(runs.items())]
    if not runs:
        return None
    return view.settings(Runs(list(runs.values()), together[0].runs[0], together))
