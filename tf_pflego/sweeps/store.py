"""The files of a sweep, each of which any program opens.

  sweep.json              what the sweep is: its cells, seeds and what was chosen
  runs.csv                one row per run that is reported: settings, results, flags
  curves.csv.gz           one row per run and round: participants, seconds, bytes, metrics
  clients.csv.gz          one row per run and client: the first statistic when the run ended
  risk_weights.csv.gz     one row per run and entry of PGFed's matrix A, if runs have one
  new_clients.csv.gz      one row per run, epoch and client that took no part, if there are any
  tuning.csv              one row per run that a choice is made by, without any test example
  tuning.curves.csv.gz    one row per such run and evaluated round

What the runs themselves write is in `runs/`, from which these files are filled.
"""

import contextlib
import csv
import gzip
import io
import json
import math
import os
import pathlib
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tf_pflego.core.statistic_names import first_of, learn
from tf_pflego.runs.reader import OWN_STATISTICS, PLACES
from tf_pflego.sweeps import choice
from tf_pflego.sweeps.definition import Cell
from tf_pflego.system import durable, limited_files

# As accuracy has them; of other tasks they are of the first statistic.
PARTICIPANTS = "participant_test_accuracy/example_mean/last10"
SERVED = "test_accuracy/client_mean/last10"
BEST = "test_accuracy/client_mean/best"
SECONDS = "seconds_per_round/median"
VALIDATION = "validation_accuracy/client_mean"

RUNS, CURVES, CLIENTS = "runs.csv", "curves.csv.gz", "clients.csv.gz"
RISK_WEIGHTS, NEW_CLIENTS = "risk_weights.csv.gz", "new_clients.csv.gz"
TUNING, TUNING_CURVES = "tuning.csv", "tuning.curves.csv.gz"
RAW = "runs"

# The results of a run that is reported.
_RESULTS = (PARTICIPANTS, SERVED, BEST, "train_loss", SECONDS, "bytes_down", "bytes_up")
# The same of groups of clients and of other statistics, if the run has them.
_OF_GROUP = re.compile(
    r"(participant_)?(test|validation)_\w+/client_mean/\w+/last10"
    r"|(participant_)?validation_\w+/\w+/last10|test_\w+/client_mean/last10"
)
_OF_CLIENT = ("client", "train_examples", "test_examples")
# The columns that a file must have.
_NEEDED = {
    RUNS: ("run", "seed", "flags", "defaults"),
    CURVES: ("run", "seed", "round", "seconds", "bytes_down", "bytes_up"),
    CLIENTS: ("run", "seed", "client"),
}
# Columns of a table of runs that are read as numbers, where they are not empty.
_NUMBERS: dict[str, type] = {
    **dict.fromkeys(("seed", "num_rounds"), int),
    **dict.fromkeys(("paper", SECONDS), float),
}
# A run is the same run wherever its clients are.
_ANYWHERE = {*PLACES, "engine"}


def read(path: pathlib.Path) -> list[dict[str, str]]:
    """Returns the rows of a CSV file, compressed if its name ends in .gz; [] if there is none."""
    if not os.path.lexists(path):
        return []
    with _as_written(path):
        rows = list(csv.DictReader(io.StringIO(limited_files.text(path), newline="")))
        needed = _NEEDED.get(path.name, ())
        if rows and (missing := [name for name in needed if name not in rows[0]]):
            raise ValueError(f"it has no column {missing[0]}")
        for row in rows:
            if OWN_STATISTICS in row.get("defaults", ""):
                learn(json.loads(_parsed(row["defaults"])[OWN_STATISTICS]))
        return rows


@contextlib.contextmanager
def _as_written(path):
    """Raises ValueError with the path and what to do if what is read is damaged."""
    try:
        yield
    except (*_UNREADABLE, AttributeError) as error:
        raise ValueError(
            f"the files of a sweep must be as it wrote them; {path} cannot be read ({error}). Move "
            f"all but `{RAW}` away, and run the sweep again, which fills them from there."
        ) from error


def write(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes a CSV file with the columns of all rows, compressed if its name ends in .gz."""
    content = text_of(rows).encode("utf-8")
    # Without the time in its header, the same rows give the same file.
    replace(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def text_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns what a CSV file has with the columns of all rows."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, dict.fromkeys(column for row in rows for column in row))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def replace(path: pathlib.Path, content: bytes) -> None:
    """Replaces a file as a whole, so that an interruption leaves the old or the new content."""
    with durable.batch() as files, files.open(path) as stream:
        stream.write(content)


def runs_in(path: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the rows of runs.csv or tuning.csv: numbers as such, None where a field is empty."""

    def value_of(column, text):
        kind = float if column.endswith(("/last10", "/best")) else _NUMBERS.get(column, str)
        return kind(text) if text else None

    rows = read(path)
    with _as_written(path):
        return [
            {name: value_of(name, text) for name, text in row.items()} for row in rows if row["run"]
        ]


def columns_in(path: pathlib.Path) -> dict[tuple[str, int], dict[str, np.ndarray]]:
    """Returns {(run, seed): {column: array}} of a CSV file of numbers, NaN for an empty field."""
    runs: dict[tuple[str, int], dict[str, Any]] = {}
    rows = read(path)
    with _as_written(path):
        for row in rows:
            run = runs.setdefault((row.pop("run"), int(row.pop("seed"))), {})
            for column, text in row.items():
                run.setdefault(column, []).append(float(text or "nan"))
    return {
        key: {name: np.array(cells) for name, cells in run.items()} for key, run in runs.items()
    }


def flags_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns settings as flags have them, without those that say where things are."""
    return {name: str(value) for name, value in settings.items() if name not in PLACES}


def lines_of(flags: Mapping[str, Any]) -> str:
    """Returns flags as a flag file has them, one per line."""
    return "".join(f"--{name}={value}\n" for name, value in flags.items())


def _parsed(text):
    pairs = (word.lstrip("-").partition("=") for word in shlex.split(text or ""))
    return {name: value for name, _, value in pairs}


def configuration_of(row: Mapping[str, Any]) -> dict[str, str]:
    """Returns all settings of the run of a row as text, given or by default."""
    return _parsed(row["defaults"]) | _parsed(row["flags"])


def is_made_with(row: Mapping[str, Any], flags: Mapping[str, str]) -> bool:
    """Returns whether the run of a row was made with these flags.

    It was if each flag had this value, given or by default, and no other flag was given.
    """
    named, defaults = (_parsed(row[key]) for key in ("flags", "defaults"))
    known = defaults | named
    return named.keys() - _ANYWHERE <= flags.keys() and all(
        known.get(name) == value for name, value in flags.items() if name not in _ANYWHERE
    )


class DamagedRunError(Exception):
    """A file of a raw run cannot be read as what a run writes."""


class Store:
    """Fills the files of a sweep with its runs; one process at a time has one.

    Args:
      path: The directory of the sweep.
      cells: Its cells, in whose order rows are. Rows of others are left out when a file is written.
      trials: The names of the trials of each cell, likewise.
      columns: The settings that have a column in runs.csv.
    """

    def __init__(
        self,
        path: pathlib.Path,
        cells: Sequence[Cell],
        trials: Mapping[str, Iterable[str]],
        columns: Sequence[str],
    ):
        self.path = path
        self._places = {cell.name: place for place, cell in enumerate(cells)}
        self._trials = trials
        self._columns = columns
        self._rows = {
            name: read(path / name)
            for name in (RUNS, CURVES, CLIENTS, RISK_WEIGHTS, NEW_CLIENTS, TUNING, TUNING_CURVES)
        }

    def has(self, cell: Cell, seed: int, flags: Mapping[str, str]) -> bool:
        """Returns whether runs.csv has a cell's run of a seed that was made with these flags."""
        key = cell.name, str(seed)
        rows = (row for row in self._rows[RUNS] if (row["run"], row["seed"]) == key)
        return any(is_made_with(row, flags) for row in rows)

    def trials_of(self, cell: Cell) -> list[dict[str, str]]:
        """Returns the rows of tuning.csv that are of a cell."""
        return [row for row in self._rows[TUNING] if row["run"] == cell.name]

    def curves_of(self, cell: Cell, seed: int) -> list[list[list[float]]]:
        """Returns [[round, value], ...] of the finished trials of a cell with a seed."""
        finished = {row["trial"] for row in self.trials_of(cell) if row["state"] == choice.FINISHED}
        curves: dict[str, list[list[float]]] = {trial: [] for trial in finished}
        key = cell.name, str(seed)
        rows = [row for row in self._rows[TUNING_CURVES] if (row["run"], row["seed"]) == key]
        measured = choice.first_in(rows).metric(VALIDATION)
        for row in rows:
            if row["trial"] in finished and row[measured] not in (None, ""):
                curves[row["trial"]].append([int(row["round"]), float(row[measured])])
        return list(curves.values())

    def add_run(self, cell: Cell, seed: int, raw: pathlib.Path, flags: Mapping[str, str]) -> None:
        """Adds a finished run that is reported, in the place of an earlier one of cell and seed.

        Its checkpoints are removed.

        Raises:
          DamagedRunError: A file of the run is damaged; nothing is added.
        """
        key = {"run": cell.name, "seed": str(seed)}
        config, summary, rows = read_run(raw)
        added = {name: [key | row for row in of_file] for name, of_file in rows.items()}
        # This file is the last, since a run counts as finished when its row is there.
        added[RUNS] = [self._row(cell, seed, config, summary, flags)]
        self._add(added, key)
        # Nothing goes on from them any more, and the states of all clients may take much space.
        shutil.rmtree(raw / "checkpoints", ignore_errors=True)

    def add_trial(
        self,
        cell: Cell,
        trial: str,
        settings: Mapping[str, Any],
        seed: int,
        raw: pathlib.Path,
        flags: Mapping[str, str],
        state: str,
    ) -> None:
        """Adds a run that a choice is made by, which is `finished`, `pruned` or `not finite`.

        Raises:
          DamagedRunError: As in `add_run`.
        """
        key = {"run": cell.name, "trial": trial, "seed": str(seed)}
        # A run that is not finite has no summary, and the statistic of the others.
        nothing: tuple[dict, dict, dict] = {}, {}, {CURVES: []}
        config, summary, rows = nothing if state == choice.NOT_FINITE else read_run(raw)
        first = first_of(summary) if summary else choice.first_in(self._rows[TUNING])
        validation, records = first.metric(VALIDATION), rows[CURVES]
        about = {name: summary.get(name, "") for name in (f"{validation}/last10", SECONDS)}
        row = key | dict(settings) | {"state": state, "num_rounds": len(records)} | about
        row |= {"flags": _joined(flags), "defaults": _joined(_own_statistics(config))}
        curve = [
            key | {"round": record["round"], validation: record[validation]}
            for record in records
            if validation in record
        ]
        self._add({TUNING_CURVES: curve, TUNING: [row]}, key)
        shutil.rmtree(raw / "checkpoints", ignore_errors=True)

    def _add(self, added, key):
        """Adds rows to files, in the place of those that have the key."""

        def is_known(row):
            trials = self._trials.get(row["run"], ())
            return row["run"] in self._places and ("trial" not in row or row["trial"] in trials)

        def order(row):
            trial = list(self._trials[row["run"]]).index(row["trial"]) if "trial" in row else 0
            return self._places[row["run"]], trial, int(row["seed"])

        for name, rows in added.items():
            kept = list(filter(is_known, self._rows[name]))
            kept = [row for row in kept if any(row[part] != key[part] for part in key)]
            # Sorting keeps the order of the rounds, or clients, of a run.
            self._rows[name] = sorted(kept + rows, key=order)
            if self._rows[name]:
                write(self.path / name, self._rows[name])

    def _row(self, cell, seed, config, summary, flags):
        """Returns the row of a finished run in the table of runs."""
        versions = config.pop("versions")
        others = {name: value for name, value in config.items() if name not in {*flags, *PLACES}}
        others |= _own_statistics(config)
        return (
            {key: config.get(key) for key in ("dataset", "personalization", "algorithm")}
            | {"seed": str(seed), "run": cell.name, "num_rounds": summary["round"]}
            | {key: config.get(key) for key in self._columns}
            | {key: summary.get(key) for key in map(first_of(summary).metric, _RESULTS)}
            | {key: value for key, value in summary.items() if _OF_GROUP.fullmatch(key)}
            | {"paper": cell.paper, "engine": config["engine"], "commit": versions.get("commit")}
            | {"tensorflow": versions.get("tensorflow")}
            | {"flags": _joined(flags), "defaults": _joined(others)}
        )


def _joined(flags):
    return shlex.join(lines_of(flags).splitlines())


def _own_statistics(config):
    """Returns what rows say of how a user's own statistics are shown, if a run has some."""
    return {name: json.dumps(config[name]) for name in (OWN_STATISTICS,) if name in config}


def read_run(raw: pathlib.Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, list]]:
    """Returns the configuration, the summary, and the rows for other files of a finished run.

    Raises:
      DamagedRunError: A file of the run is damaged.
    """
    try:
        config, summary = (limited_files.json_object(raw / f"{n}.json") for n in _DESCRIBED)
        records, clients = _records(raw), read(raw / "clients.csv")
        if len(records) != summary["round"] or not clients or "versions" not in config:
            raise ValueError("a file has not all rounds, clients or settings")
        rows = {
            CURVES: [_numbers_of(record) for record in records],
            CLIENTS: [
                {name: row[name] for name in (*_OF_CLIENT, f"test_{first_of(row).name}")}
                for row in clients
            ],
            RISK_WEIGHTS: list(_risk_weights(raw)),
            NEW_CLIENTS: read(raw / "new_clients.csv"),
        }
    except _UNREADABLE as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DamagedRunError(f"{raw} cannot be read as a run ({reason})") from error
    return config, summary, rows


_DESCRIBED = "config", "summary"
_UNREADABLE = OSError, ValueError, KeyError, TypeError, csv.Error


def _records(raw):
    """Returns the rounds of a run, each of which has its number."""
    lines = limited_files.content(raw / "metrics.jsonl").splitlines()
    records = [limited_files.object_of(line) for line in lines]
    if [record["round"] for record in records] != list(range(1, len(records) + 1)):
        raise ValueError("metrics.jsonl has not each of its rounds")
    return records


def _numbers_of(record):
    """Returns what a round's record says in numbers, without who was left out."""
    return {name: value for name, value in record.items() if not isinstance(value, list)}


def _risk_weights(raw):
    """Yields the entries of the matrix A of a finished run, if it has one."""
    server = limited_files.arrays(raw / "server.npz", math.inf)
    for (client, other), weight in np.ndenumerate(server.get("risk_weights", np.zeros([0, 0]))):
        yield {"client": client, "other": other, "weight": f"{weight:.6g}"}
