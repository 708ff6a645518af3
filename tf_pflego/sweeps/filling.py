"""Fills the files of a sweep with its runs."""

import math
import pathlib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tf_pflego import algorithms
from tf_pflego.core.statistic_names import Metric, first_of
from tf_pflego.runs import reader
from tf_pflego.runs.plan import TABLE_CHECKSUM
from tf_pflego.runs.reader import places
from tf_pflego.simulation.records import CHECKPOINT_FILES
from tf_pflego.sweeps import choice, store
from tf_pflego.sweeps.experiments import Cell, name_of
from tf_pflego.sweeps.store import CURVES, RUNS, SECONDS, SERVED, TUNING, VALIDATION
from tf_pflego.system import durable, limited_files, texts

# The results of a run that is reported.
_RESULTS = (
    *(store.PARTICIPANTS, SERVED, store.BEST),
    *("train_loss", SECONDS, "bytes_down", "bytes_up"),
)
# So much of the time that runs take goes into writing files between them.
_SHARE_OF_WRITING = 0.05
_OF_CLIENT = ("client", "train_examples", "test_examples")


def _tables():
    """Returns the compressed files that sweeps write. Any others are foreign."""
    methods = map(algorithms.method_of, algorithms.REGISTRY)
    named = {name for method in methods for name in method.settings.tables}
    return {CURVES, store.CLIENTS, store.NEW_CLIENTS, *(f"{name}.csv.gz" for name in named)}


class DamagedRunError(Exception):
    """A file of a raw run is not a file that a run writes."""


class Run(NamedTuple):
    """A run of a cell with a seed, which is reported or which a choice is made by."""

    cell: Cell
    tried: Mapping[str, Any] | None  # the settings to choose; None if it is reported
    settings: Mapping[str, Any]  # all that is given, apart from the seed
    seed: int

    @property
    def about(self) -> dict[str, str]:
        """The columns that identify the run of a row."""
        trial = {} if self.tried is None else {"trial": name_of(self.tried)}
        return {"run": self.cell.name, **trial, "seed": str(self.seed)}

    @property
    def flags(self) -> dict[str, str]:
        """The given settings as flags, without those about places."""
        algorithm = {"algorithm": self.cell.algorithm}
        return store.flags_of({**self.settings, **algorithm, "seed": self.seed})


class Store:
    """Adds runs to a sweep, and fills its files with them. One process at a time has a store.

    Rows are in the order of the cells and of each cell's `trials`. Rows of other trials are not
    written. `columns` are the settings with a column in runs.csv. Damaged files, and runs that were
    made with other rows of the cells' tables, are a ValueError.
    """

    def __init__(
        self,
        path: pathlib.Path,
        cells: Sequence[Cell],
        trials: Mapping[str, Iterable[str]],
        columns: Sequence[str],
    ):
        self.path, self._trials, self._columns = path, trials, columns
        self._places = {cell.name: place for place, cell in enumerate(cells)}
        self._tables = _checksums(cells)
        self._trial_rows = store.read(path / TUNING)
        rows = *store.read(path / RUNS), *self._trial_rows
        self._made = {store.key_of(row): store.settings_of(row) for row in rows}
        # The rows that are not in the files yet, by their runs and the names of the files.
        self._waiting: dict[store.Key, dict[str, list[dict[str, str]]]] = {}
        self._writes_after = 0.0
        for (run, *_), (_, defaults) in self._made.items():
            expected, got = defaults.get(TABLE_CHECKSUM), self._tables.get(run)
            if expected and got and expected != got:
                raise ValueError(
                    f"`table` must have the rows that finished runs of {run} were made with, with "
                    f"the checksum {expected}; got {got}. Give the table as it was, or choose "
                    "another `output_dir`."
                )

    def has(self, run: Run) -> bool:
        """Returns whether a run was made with these flags."""
        made = self._made.get(store.key_of(run.about))
        return made is not None and store.is_made_with(*made, run.flags)

    def trials_of(self, cell: Cell) -> list[dict[str, str]]:
        """Returns the rows of tuning.csv that are of a cell."""
        return [row for row in self._trial_rows if row["run"] == cell.name]

    def add(self, run: Run, raw: pathlib.Path, state: str) -> None:
        """Adds a run that has `finished` or, as a trial, is `not finite`.

        It is in the place of an earlier one of cell, trial and seed. Its checkpoints are removed.
        If a file of it is damaged, nothing is added: `DamagedRunError`.
        """
        # A run that is not finite has no summary, and the statistic of the others.
        config: dict[str, Any] = {}
        summary: dict[str, Any] = {}
        tables: dict[str, list] = {CURVES: []}
        if state != choice.NOT_FINITE:
            config, summary, tables = read_run(raw, run.cell.settings["algorithm"])
        left = {*places(), "versions"}
        plan = {name: value for name, value in config.items() if name not in left}
        if run.cell.name in self._tables:
            plan[TABLE_CHECKSUM] = self._tables[run.cell.name]
        said = store.said(run.flags, plan)
        if run.tried is None:
            # An earlier run of the key may have had tables that this one has not.
            there = {path.name for path in self.path.glob("*.csv.gz")} & _tables()
            tables = {
                name: [run.about | row for row in tables.get(name, ())]
                for name in {*tables, *there}
            }
            tables[RUNS] = [self._row(run, config, summary) | said]
        else:
            first = first_of(summary) if summary else choice.first_in(self._trial_rows)
            names = f"{first.metric(VALIDATION)}/last10", SECONDS
            results = {"state": state, "num_rounds": len(tables[CURVES])}
            results |= {name: summary.get(name, "") for name in names}
            tables = {TUNING: [{**run.about, **run.tried, **results, **said}]}
        key = store.key_of(run.about)
        self._made[key] = store.settings_of(said)
        self._waiting[key] = {name: list(map(_as_text, rows)) for name, rows in tables.items()}
        kept = [row for row in self._trial_rows if store.key_of(row) != key]
        self._trial_rows = kept + self._waiting[key].get(TUNING, [])
        # Nothing goes on from them any more, and the states of all clients may take much space.
        durable.remove_files(raw / "checkpoints", CHECKPOINT_FILES)
        if time.monotonic() >= self._writes_after:
            self.write_files()

    def write_files(self) -> None:
        """Writes the files with the rows of all runs that were added."""
        started = time.monotonic()

        def is_known(row):
            trials = self._trials.get(row["run"], ())
            return row["run"] in self._places and ("trial" not in row or row["trial"] in trials)

        def order(row):
            trial = list(self._trials[row["run"]]).index(row["trial"]) if "trial" in row else 0
            return self._places[row["run"]], trial, int(row["seed"])

        # A run is there with its row in one of these, which come last.
        names = {name for tables in self._waiting.values() for name in tables}
        with durable.batch() as files:
            for name in sorted(names, key=(RUNS, TUNING).__contains__):
                path = self.path / name
                rows = [row for row in store.read(path) if store.key_of(row) not in self._waiting]
                rows += [row for tables in self._waiting.values() for row in tables.get(name, ())]
                columns = dict.fromkeys(column for row in rows for column in row)
                rows = [{c: row.get(c, "") for c in columns} for row in rows if is_known(row)]
                if rows:  # Sorting keeps the order of the rounds, or clients, of a run.
                    store.add(files, path, sorted(rows, key=order))
                else:
                    durable.remove(path)
        self._waiting.clear()
        ended = time.monotonic()
        self._writes_after = ended + (ended - started) / _SHARE_OF_WRITING

    def _row(self, run, config, summary):
        """Returns the row of a finished run in the table of runs, without its settings."""
        return (
            {key: config.get(key) for key in ("dataset", "personalization", "algorithm")}
            | {"seed": str(run.seed), "run": run.cell.name, "num_rounds": summary["round"]}
            | {key: config.get(key) for key in self._columns}
            | {key: summary.get(key) for key in map(first_of(summary).metric, _RESULTS)}
            | {key: value for key, value in summary.items() if _is_kept(key)}
            | {"paper": run.cell.paper, "engine": config["engine"]}
            | {key: config["versions"].get(key) for key in ("commit", "tensorflow")}
        )


def _is_kept(name):
    """Returns whether a row has a number of a group, on validation examples, or as served."""
    metric = Metric.read(name)
    if metric is None or metric.model or metric.rounds != "last10":
        return False
    if metric.mean == "client" and (metric.group or not metric.whose):
        return True
    return metric.split == "validation" and not metric.group


def _as_text(row):
    """Returns a row as a CSV file has it."""
    return {name: "" if cell is None else str(cell) for name, cell in row.items()}


def _checksums(cells):
    """Returns {cell: checksum} of the files of existing rows, and the missing files of runs."""
    places = {cell.name: cell.settings.get("table") for cell in cells}
    paths = {place: pathlib.Path(place).expanduser() for place in filter(None, places.values())}
    sizes = {place: path.stat().st_size for place, path in paths.items() if path.is_file()}
    of_files = {
        place: f"{limited_files.crc32_of(paths[place].resolve(), sizes[place]):08x}"
        for place in sizes
    }
    return {name: of_files[place] for name, place in places.items() if place in of_files}


def read_run(
    raw: pathlib.Path, algorithm: algorithms.Named
) -> tuple[dict[str, Any], dict[str, Any], dict[str, list]]:
    """Returns the configuration, the summary, and the rows for other files of a finished run."""
    own = algorithms.method_of(algorithm).settings.tables
    try:
        config = reader.configuration(raw / "config.json")  # It learns own statistics.
        summary = reader.json_object(raw / "summary.json")
        records, clients = reader.records(raw / "metrics.jsonl"), store.read(raw / "clients.csv")
        if len(records) != summary["round"] or not clients or "versions" not in config:
            raise ValueError("a file has not all rounds, clients or settings")
        server = limited_files.arrays(raw / "server.npz", math.inf) if own else {}
        rows = {
            CURVES: [  # Without who was left out.
                {name: value for name, value in record.items() if not isinstance(value, list)}
                for record in records
            ],
            store.CLIENTS: [
                {name: row[name] for name in (*_OF_CLIENT, f"test_{first_of(row).name}")}
                for row in clients
            ],
            store.NEW_CLIENTS: store.read(raw / "new_clients.csv"),
            **{f"{name}.csv.gz": _entries(server[name], own[name]) for name in own},
        }
    except store.UNREADABLE as error:
        reason = texts.reason(error) or type(error).__name__
        raise DamagedRunError(f"{raw} cannot be read as a run ({reason})") from error
    return config, summary, rows


def _entries(array, columns):
    """Returns a row for each entry of an array: its place along each axis, and its value."""
    return [
        dict(zip(columns, (*place, f"{value:.6g}"), strict=True))
        for place, value in np.ndenumerate(array)
    ]
