"""The contents of a sweep's files, read without TensorFlow.

It is apart from `Sweep`, which imports the modules that make tables and pages from it.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tf_pflego.core.statistic_names import Shown, first_of
from tf_pflego.sweeps import choice, store
from tf_pflego.sweeps.choice import settings_tried
from tf_pflego.sweeps.definition import Cell, Range, name_of
from tf_pflego.system.texts import words


class Contents:
    """The contents of a sweep's files; `Sweep` adds tables and pages, and lists the attributes."""

    def __init__(self, path: pathlib.Path, about: Mapping[str, Any]):
        self.path = path
        self.title: str = about["title"]
        self.cells = [_cell(one) for one in about["cells"]]
        self.seeds: list[int] = about["seeds"]
        self.tuning_seeds: list[int] = about["tuning_seeds"]
        self.budget: int = about["budget"]
        self.reference: str = about["reference"]
        self.failures: list[Any] = []
        names = [cell.name for cell in self.cells]
        self.rows, tuning_rows = (
            [row for row in store.runs_in(path / name) if row["run"] in names]
            for name in (store.RUNS, store.TUNING)
        )
        # Trials that a change of the definition has left do not count.
        tried = {
            cell.name: [name_of(one) for one in settings_tried(cell, self.budget)]
            for cell in self.cells
            if not cell.is_searched
        }
        self.tuning_rows = [
            row
            for row in tuning_rows
            if row["seed"] in self.tuning_seeds
            and row["trial"] in tried.get(row["run"], (row["trial"],))
        ]
        # A changed definition may have another order; of equal trials the first is best.
        self.tuning_rows.sort(
            key=lambda row: [*tried.get(row["run"], ()), row["trial"]].index(row["trial"])
        )

    def curves(self) -> dict[tuple[str, int], dict[str, np.ndarray]]:
        """Returns {(cell, seed): {metric: [T]}}, NaN where a round has no value."""
        return store.columns_in(self.path / store.CURVES)

    def clients(self) -> dict[tuple[str, int], dict[str, np.ndarray]]:
        """Returns {(cell, seed): {column: [I]}} of the clients at the end of each run."""
        found = store.columns_in(self.path / store.CLIENTS)
        for run in found.values():
            if not any(name.startswith("test_") for name in run.keys() - {"test_examples"}):
                raise ValueError(
                    f"{self.path / store.CLIENTS} must have a statistic of the clients; it has "
                    f"none. Move all but `{store.RAW}` away, and run the sweep again."
                )
        return found

    def of_method(self, table: str) -> dict[tuple[str, int], dict[str, np.ndarray]]:
        """Returns {(cell, seed): {column: [entries]}} of a table that methods declare."""
        return store.columns_in(self.path / f"{table}.csv.gz")

    def new_clients(self) -> dict[tuple[str, int], np.ndarray]:
        """Returns {(cell, seed): [epochs + 1]}, the first statistic of new clients after each."""
        curves = {}
        for key, run in store.columns_in(self.path / store.NEW_CLIENTS).items():
            epochs, tested = np.unique(run["epoch"]), run[f"test_{first_of(run).name}"]
            means = [tested[run["epoch"] == epoch].mean() for epoch in epochs]
            curves[key] = np.array(means)
        return curves

    def best(self) -> dict[str, dict[str, Any]]:
        """Returns {cell: settings} of what was chosen for each cell whose trials are all done."""
        chosen = {}
        for cell in self.cells:
            tried, planned = tried_of(self, cell)
            best = choice.best(cell, self.tuning_rows) if tried == planned else None
            if best is not None:
                chosen[cell.name] = best.settings
        return chosen


def runs_of(sweep: Contents, cell: Cell) -> dict[int, dict[str, Any]]:
    """Returns {seed: row} of the runs of a cell that are reported."""
    rows = [row for row in sweep.rows if row["run"] == cell.name and row["seed"] in sweep.seeds]
    return {row["seed"]: row for row in rows}


def tried_of(sweep: Contents, cell: Cell) -> tuple[int, int]:
    """Returns how many settings of a cell were tried to their end, and how many are to be."""
    ended = [
        trial
        for trial in choice.trials_of(cell, sweep.tuning_rows)
        if trial.value is None or trial.runs == len(sweep.tuning_seeds)
    ]
    planned = settings_tried(cell, sweep.budget)
    return len(ended), sweep.budget if cell.is_searched else len(planned)


def first_of_cells(sweep: Contents, cells: Sequence[Cell]) -> Shown:
    """Returns the first statistic of the runs of some cells."""
    names = {cell.name for cell in cells}
    rows = [row for row in (*sweep.rows, *sweep.tuning_rows) if row["run"] in names]
    return choice.first_in(rows)


def conditions(sweep: Contents) -> list[list[Cell]]:
    """Returns the cells that are run on the same, together."""
    groups: dict[str, list[Cell]] = {}
    for cell in sweep.cells:
        groups.setdefault(str(cell.condition), []).append(cell)
    return list(groups.values())


def condition_of(cell: Cell) -> str:
    """Returns what the method of a cell is run on, where cells differ in it."""
    return ", ".join(f"{name}={words(value)}" for name, value in cell.condition.items())


def _cell(about):
    choices = {
        name: Range(**among) if isinstance(among, dict) else tuple(among)
        for name, among in about["choices"].items()
    }
    names = "name", "settings", "paper", "condition", "label"
    return Cell(choices=choices, **{name: about[name] for name in names})
