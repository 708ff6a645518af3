"""A sweep in a directory, read without TensorFlow.

It is apart from `Sweep`, which imports the modules that make tables and pages from it.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tf_pflego.core.settings import named_as_today
from tf_pflego.core.statistic_names import Shown, first_of
from tf_pflego.sweeps import choice, store
from tf_pflego.sweeps.choice import settings_tried
from tf_pflego.sweeps.experiments import Cell, Range, name_of


class StoredSweep:
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
        """Returns {(cell, seed): {metric: [T]}}, NaN in rounds without a value."""
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
        """Returns {cell: settings} with the choice for each cell with finished trials."""
        chosen = {}
        for cell in self.cells:
            tried, planned = self.tried_of(cell)
            best = choice.best(cell, self.tuning_rows) if tried == planned else None
            if best is not None:
                chosen[cell.name] = best.settings
        return chosen

    def runs_of(self, cell: Cell) -> dict[int, dict[str, Any]]:
        """Returns {seed: row} of the runs of a cell that are reported."""
        rows = [row for row in self.rows if row["run"] == cell.name]
        return {row["seed"]: row for row in rows if row["seed"] in self.seeds}

    def tried_of(self, cell: Cell) -> tuple[int, int]:
        """Returns how many settings of a cell were tried to their end, and how many are to be."""
        ended = [
            trial
            for trial in choice.trials_of(cell, self.tuning_rows)
            if trial.value is None or trial.runs == len(self.tuning_seeds)
        ]
        planned = len(settings_tried(cell, self.budget))
        return len(ended), self.budget if cell.is_searched else planned

    def first_of(self, cells: Sequence[Cell]) -> Shown:
        """Returns the first statistic of the runs of some cells."""
        names = {cell.name for cell in cells}
        return choice.first_in(
            row for row in (*self.rows, *self.tuning_rows) if row["run"] in names
        )

    def conditions(self) -> list[list[Cell]]:
        """Returns the cells that are run on the same, together."""
        groups: dict[str, list[Cell]] = {}
        for cell in self.cells:
            groups.setdefault(str(cell.condition), []).append(cell)
        return list(groups.values())


def _cell(about):
    choices = {
        name: Range(**among) if isinstance(among, dict) else tuple(among)
        for name, among in about["choices"].items()
    }
    about = {**about, "settings": named_as_today(about["settings"])}
    names = "name", "settings", "paper", "condition", "label"
    return Cell(choices=choices, **{name: about[name] for name in names})
