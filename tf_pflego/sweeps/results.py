"""What a sweep has come to, read from its files without TensorFlow."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from tf_pflego.runs.reader import PLACES
from tf_pflego.sweeps import choice, store
from tf_pflego.sweeps.definition import Cell, Experiment, Range
from tf_pflego.system import durable, limited_files, values

_DESCRIPTION = "sweep.json"


class Sweep:
    """The runs of a sweep, as far as they are done; `load_sweep` opens one.

    Attributes:
      path: Its directory.
      title: What it is called.
      cells: Its cells, in their order.
      seeds: The seeds of the runs that are reported.
      tuning_seeds: Those of the runs that choices are made by.
      budget: How many settings are tried of each cell that has choices.
      reference: The label of the method that others are compared with.
      rows: The runs that are reported, one dictionary each: runs.csv with numbers where it has
        some, and None where a field is empty.
      tuning_rows: The same of tuning.csv.
      failures: How those runs ended that failed, if `sweep` returned this.
    """

    def __init__(self, path: pathlib.Path, about: Mapping[str, Any]):
        self.path = path
        self.title: str = about["title"]
        self.cells = [_cell(one) for one in about["cells"]]
        self.seeds: list[int] = about["seeds"]
        self.tuning_seeds: list[int] = about["tuning_seeds"]
        self.budget: int = about["budget"]
        self.reference: str = about["reference"]
        self.failures: list[Any] = []
        names = {cell.name for cell in self.cells}
        self.rows, self.tuning_rows = (
            [row for row in store.runs_in(path / name) if row["run"] in names]
            for name in (store.RUNS, store.TUNING)
        )

    @property
    def runs(self) -> dict[str, list[Any]]:
        """The columns of `rows`, as `pandas.DataFrame` takes them."""
        return _columns(self.rows)

    @property
    def tuning(self) -> dict[str, list[Any]]:
        """The columns of `tuning_rows`, as `pandas.DataFrame` takes them."""
        return _columns(self.tuning_rows)

    def curves(self) -> dict[tuple[str, int], dict[str, np.ndarray]]:
        """Returns {(cell, seed): {metric: [T]}}, NaN where a round has no value."""
        return store.columns_in(self.path / store.CURVES)

    def clients(self) -> dict[tuple[str, int], dict[str, np.ndarray]]:
        """Returns {(cell, seed): {column: [I]}} of the clients at the end of each run."""
        return store.columns_in(self.path / store.CLIENTS)

    def risk_weights(self) -> dict[tuple[str, int], np.ndarray]:
        """Returns {(cell, seed): A [I, I]} of the runs of PGFed and its variants."""
        matrices = {}
        for key, run in store.columns_in(self.path / store.RISK_WEIGHTS).items():
            num_clients = round(run["client"].max()) + 1
            matrices[key] = run["weight"].reshape(num_clients, num_clients)
        return matrices

    def new_clients(self) -> dict[tuple[str, int], np.ndarray]:
        """Returns {(cell, seed): [epochs + 1]}, the mean accuracy of new clients after each."""
        curves = {}
        for key, run in store.columns_in(self.path / store.NEW_CLIENTS).items():
            epochs = np.unique(run["epoch"])
            means = [run["test_accuracy"][run["epoch"] == epoch].mean() for epoch in epochs]
            curves[key] = np.array(means)
        return curves

    def best(self) -> dict[str, dict[str, Any]]:
        """Returns {cell: settings} of what was chosen for each cell whose trials are all done."""
        chosen = {}
        for cell in self.cells:
            if cell.choices and (trial := choice.best(cell, self.tuning_rows)) is not None:
                chosen[cell.name] = trial.settings
        return chosen


def describe(path: pathlib.Path, experiment: Experiment) -> None:
    """Writes what a sweep is into its directory."""
    cells = experiment.planned
    labels = [cell.label for cell in cells]
    about = {
        "title": experiment.title or "Comparison",
        "seeds": experiment.seeds,
        "tuning_seeds": experiment.tuning_seeds,
        "budget": experiment.budget,
        "reference": experiment.reference or ("local" if "local" in labels else labels[0]),
        "cells": [
            {
                "name": cell.name,
                "label": cell.label,
                "paper": cell.paper,
                "condition": cell.condition,
                "settings": {
                    name: value
                    for name, value in (cell.settings | {"algorithm": cell.algorithm}).items()
                    if name not in PLACES
                },
                "choices": {
                    name: vars(among) if isinstance(among, Range) else among
                    for name, among in cell.choices.items()
                },
            }
            for cell in cells
        ],
    }
    with durable.batch() as files:
        files.json(path / _DESCRIPTION, about)


def load(path: str | pathlib.Path) -> Sweep:
    """Opens the directory of a sweep, also while it goes on.

    Args:
      path: The directory, as `sweep` was given it.

    Raises:
      ValueError: It is not that of a sweep.
    """
    directory = pathlib.Path(values.path("path", path)).expanduser()
    try:
        return Sweep(directory, limited_files.json_object(directory / _DESCRIPTION))
    except (OSError, KeyError, TypeError, limited_files.DamagedFileError) as error:
        raise ValueError(
            f"`path` must be the directory of a sweep; {directory} is not ({_DESCRIPTION}: "
            f"{error}). Name what `sweep` was given as `output_dir`."
        ) from None


def _cell(about):
    choices = {
        name: Range(**among) if isinstance(among, dict) else tuple(among)
        for name, among in about["choices"].items()
    }
    names = "name", "settings", "paper", "condition", "label"
    return Cell(choices=choices, **{name: about[name] for name in names})


def _columns(rows):
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}
