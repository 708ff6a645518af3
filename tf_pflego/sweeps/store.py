"""The files of a sweep, each of which any program opens.

  sweep.json              what the sweep is: its cells, seeds and what was chosen
  runs.csv                one row per run that is reported: settings, results, flags
  curves.csv.gz           one row per run and round: participants, seconds, bytes, metrics
  clients.csv.gz          one row per run and client: the first statistic when the run ended
  new_clients.csv.gz      one row per run, epoch and client that took no part, if there are any
  TABLE.csv.gz            one row per run and entry of a TABLE that its method declares
  tuning.csv              one row per run that a choice is made by, without any test example
  tuning.curves.csv.gz    one row per such run and evaluated round

While a sweep goes on, `finished.jsonl` gets a line for each run that has ended: its settings, and
its rows of these files, which are written when the sweep ends. If it was killed, the lines are read
with the files, and the same command goes on from both. The runs themselves write to `runs/`.
"""

import contextlib
import csv
import gzip
import io
import json
import itertools
import math
import os
import pathlib
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tf_pflego import algorithms
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
NEW_CLIENTS = "new_clients.csv.gz"
TUNING, TUNING_CURVES = "tuning.csv", "tuning.curves.csv.gz"
LINES, RAW = "finished.jsonl", "runs"
# So many bytes of lines are read, and with half as many they become files.
_MOST_BYTES = 2**28
_FILE = re.compile(r"\w[\w.]*\.csv(\.gz)?")

Key = tuple[str, str | None, str]  # the cell, trial (None for runs that are reported) and seed

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
# What is kept with the settings of a run on a file of rows, whose path does not say what it has.
_CHECKSUM = "table_checksum"
# A run is the same run wherever its clients are.
_ANYWHERE = {*PLACES, "engine"}


def read(path: pathlib.Path) -> list[dict[str, str]]:
    """Returns the rows of a CSV file, compressed if its name ends in .gz; [] if there is none.

    Of a sweep that goes on, or was killed, these are also the rows that are in its lines.
    """
    return _read(path, _lines(path.parent))  # Lines first: they go when the files are written.


def _read(path, lines):
    rows = _written(path)
    if not lines:
        return rows
    rows = [row for row in rows if _key(row) not in lines]
    rows += [row for line in lines.values() for row in _rows_of(line, path.name)]
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name, "") for name in names} for row in rows]


def _rows_of(line, name):
    """Returns the rows that a line has for a file."""
    columns, said = line["tables"].get(name, {}), {}
    if name in (RUNS, TUNING):
        said = {key: _joined(line[key]) for key in ("flags", "defaults")}
    return [dict(zip(columns, row, strict=True)) | said for row in zip(*columns.values())]


def _written(path):
    """Returns the rows of a CSV file itself."""
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


def _lines(directory):
    """Returns {key: line} of the runs whose rows are not in the files yet.

    A last line without its end was being written when the sweep was killed; its run is read again.
    """
    path, lines = directory / LINES, {}
    if os.path.lexists(path):
        whole, _, _ = limited_files.content(path, _MOST_BYTES).rpartition(b"\n")
        for number, text in enumerate(whole.splitlines(), 1):
            with _as_written(path, f"line {number}: "):
                line = limited_files.object_of(text)
                lines[_key(line)] = _checked(line)
    return lines


def _checked(line):
    """Returns a line; raises an error if it is not as `Store` makes it."""
    (run, trial, seed), tables = _key(line), line["tables"]
    columns = [cells for table in tables.values() for cells in table.values()]
    named = line["flags"].values(), line["defaults"].values()
    said = itertools.chain((run, trial or "", str(int(seed))), *named, *columns)
    if not all(isinstance(text, str) for text in said):
        raise ValueError("it has a value that is no text")
    for name, table in tables.items():
        keys = (table.get(column, []) for column in ("run", "seed"))
        of_others = {*zip(*keys, strict=True)} - {(run, seed)}
        if of_others or len({*map(len, table.values())}) > 1 or not _FILE.fullmatch(name):
            raise ValueError(f"it has rows for {name[:60]} that are not of its run")
    learn(json.loads(line["defaults"].get(OWN_STATISTICS, "{}")))
    return line


def _key(row):
    return row["run"], row.get("trial"), row["seed"]


@contextlib.contextmanager
def _as_written(path, where=""):
    """Raises ValueError with the path and what to do if what is read is damaged."""
    try:
        yield
    except (*_UNREADABLE, AttributeError) as error:
        reason = f"{where}it has no {error}" if isinstance(error, KeyError) else f"{where}{error}"
        raise ValueError(
            f"the files of a sweep must be as it wrote them; {path} cannot be read ({reason}). Move "
            f"all but `{RAW}` away, and run the sweep again, which fills them from there."
        ) from error


def write(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes a CSV file with the columns of all rows, compressed if its name ends in .gz.

    It is replaced as a whole, so that an interruption leaves the old or the new content.
    """
    content = text_of(rows).encode("utf-8")
    with durable.batch() as files, files.open(path) as stream:
        # Without the time in its header, the same rows give the same file.
        stream.write(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def text_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns what a CSV file has with the columns of all rows."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, dict.fromkeys(column for row in rows for column in row))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


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


def settings_of(row: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the settings of the run of a row: those that were given, and those by default."""
    return _parsed(row["flags"]), _parsed(row["defaults"])


def configuration_of(row: Mapping[str, Any]) -> dict[str, str]:
    """Returns all settings of the run of a row as text, given or by default."""
    named, defaults = settings_of(row)
    return defaults | named


def is_made_with(
    named: Mapping[str, str], defaults: Mapping[str, str], flags: Mapping[str, str]
) -> bool:
    """Returns whether a run with the settings `named`, and others by default, is that of `flags`.

    It is if each flag had this value, given or by default, and no other flag was given.
    """
    known = {**defaults, **named}
    return named.keys() - _ANYWHERE <= flags.keys() and all(
        known.get(name) == value for name, value in flags.items() if name not in _ANYWHERE
    )


class DamagedRunError(Exception):
    """A file of a raw run cannot be read as what a run writes."""


class Store:
    """Adds runs to a sweep, and fills its files with them; one process at a time has one.

    Args:
      path: The directory of the sweep.
      cells: Its cells, in whose order rows are. Rows of others are left out when a file is written.
      trials: The names of the trials of each cell, likewise.
      columns: The settings that have a column in runs.csv.

    Raises:
      ValueError: A file is damaged, or runs were made with other rows of the cells' tables.
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
        lines = _lines(path)
        self._made: dict[Key, tuple[dict[str, str], dict[str, str]]] = {
            **{_key(row): settings_of(row) for n in (RUNS, TUNING) for row in _written(path / n)},
            **{key: (line["flags"], line["defaults"]) for key, line in lines.items()},
        }
        self._of_trials: dict[str, dict[Key, list[dict[str, str]]]] = {
            TUNING: {},
            TUNING_CURVES: {},
        }
        self._tables = _checksums(cells)
        for (run, _, _), (_, defaults) in self._made.items():
            expected, got = defaults.get(_CHECKSUM), self._tables.get(run)
            if None not in (expected, got) and expected != got:
                raise ValueError(
                    f"`table` must have the rows that finished runs of {run} were made with, whose "
                    f"checksum is {expected}; got {got}. Give the table as it was, or choose "
                    "another `output_dir`."
                )
        for name, known in self._of_trials.items():
            for row in _read(path / name, lines):
                known.setdefault(_key(row), []).append(row)

    def has(self, cell: Cell, trial: str | None, seed: int, flags: Mapping[str, str]) -> bool:
        """Returns whether a cell's run of a trial, or reported, was made with these flags."""
        made = self._made.get((cell.name, trial, str(seed)))
        return made is not None and is_made_with(*made, flags)

    def trials_of(self, cell: Cell) -> list[dict[str, str]]:
        """Returns the rows of tuning.csv that are of a cell."""
        of_cell = [rows for (run, *_), rows in self._of_trials[TUNING].items() if run == cell.name]
        return list(itertools.chain(*of_cell))

    def curves_of(self, cell: Cell, seed: int) -> list[list[list[float]]]:
        """Returns [[round, value], ...] of the finished trials of a cell with a seed."""
        curves = []
        for row in self.trials_of(cell):
            if row["state"] == choice.FINISHED and row["seed"] == str(seed):
                rows = self._of_trials[TUNING_CURVES].get(_key(row), [])
                measured = choice.first_in(rows).metric(VALIDATION)
                values = [(one["round"], one[measured]) for one in rows if one[measured]]
                curves.append([[int(number), float(value)] for number, value in values])
        return curves

    def add_run(self, cell: Cell, seed: int, raw: pathlib.Path, flags: Mapping[str, str]) -> None:
        """Adds a finished run that is reported, in the place of an earlier one of cell and seed.

        Its checkpoints are removed.

        Raises:
          DamagedRunError: A file of the run is damaged; nothing is added.
        """
        key = {"run": cell.name, "seed": str(seed)}
        config, summary, tables = read_run(raw, cell.settings["algorithm"])
        row = self._row(cell, seed, config, summary)
        unsaid = {*flags, *PLACES, "versions"}
        others = {name: value for name, value in config.items() if name not in unsaid}
        # An earlier run of the key may have had tables that this one has not.
        there = {path.name for path in self.path.glob("*.csv.gz")} - {TUNING_CURVES}
        added = {name: [key | row for row in tables.get(name, ())] for name in {*tables, *there}}
        self._add(key, {**added, RUNS: [row]}, flags, others, config, raw)

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
        is_there = state != choice.NOT_FINITE
        config, summary, tables = read_run(raw, cell.settings["algorithm"]) if is_there else nothing
        tuned = itertools.chain(*self._of_trials[TUNING].values())
        first = first_of(summary) if summary else choice.first_in(tuned)
        validation, records = first.metric(VALIDATION), tables[CURVES]
        about = {name: summary.get(name, "") for name in (f"{validation}/last10", SECONDS)}
        row = {**key, **settings, "state": state, "num_rounds": len(records), **about}
        curve = [
            key | {"round": record["round"], validation: record[validation]}
            for record in records
            if validation in record
        ]
        self._add(key, {TUNING_CURVES: curve, TUNING: [row]}, flags, {}, config, raw)

    def _add(self, key, tables, flags, defaults, config, raw):
        """Adds a line about a run, in the place of what there is with its key."""
        defaults = {name: str(value) for name, value in defaults.items()} | _own_statistics(config)
        if key["run"] in self._tables:
            defaults[_CHECKSUM] = self._tables[key["run"]]
        columns = {name: _columns(rows) for name, rows in tables.items()}
        line = key | {"flags": flags, "defaults": defaults, "tables": columns}
        size = durable.append(self.path / LINES, json.dumps(line).encode() + b"\n")
        self._made[_key(key)] = flags, defaults
        for name, known in self._of_trials.items():
            known[_key(key)] = _rows_of(line, name)
        # Nothing goes on from them any more, and the states of all clients may take much space.
        shutil.rmtree(raw / "checkpoints", ignore_errors=True)
        if size > _MOST_BYTES // 2:
            self.write_files()

    def write_files(self) -> None:
        """Writes the files with the runs that the lines are about, which are then removed."""
        lines = _lines(self.path)
        names = {name for line in lines.values() for name in line["tables"]}

        def is_known(row):
            trials = self._trials.get(row["run"], ())
            return row["run"] in self._places and ("trial" not in row or row["trial"] in trials)

        def order(row):
            trial = list(self._trials[row["run"]]).index(row["trial"]) if "trial" in row else 0
            return self._places[row["run"]], trial, int(row["seed"])

        for name in names:
            rows = [row for row in _read(self.path / name, lines) if is_known(row)]
            if rows:  # Sorting keeps the order of the rounds, or clients, of a run.
                write(self.path / name, sorted(rows, key=order))
            else:
                durable.remove(self.path / name)
        (self.path / LINES).unlink(missing_ok=True)

    def _row(self, cell, seed, config, summary):
        """Returns the row of a finished run in the table of runs, without its settings."""
        versions = config["versions"]
        return (
            {key: config.get(key) for key in ("dataset", "personalization", "algorithm")}
            | {"seed": str(seed), "run": cell.name, "num_rounds": summary["round"]}
            | {key: config.get(key) for key in self._columns}
            | {key: summary.get(key) for key in map(first_of(summary).metric, _RESULTS)}
            | {key: value for key, value in summary.items() if _OF_GROUP.fullmatch(key)}
            | {"paper": cell.paper, "engine": config["engine"], "commit": versions.get("commit")}
            | {"tensorflow": versions.get("tensorflow")}
        )


def _columns(rows):
    """Returns the columns of rows, each a list of what a CSV file has in its cells."""
    names = dict.fromkeys(name for row in rows for name in row)
    cells = {name: [row.get(name) for row in rows] for name in names}
    return {name: ["" if one is None else str(one) for one in of] for name, of in cells.items()}


def _checksums(cells):
    """Returns {cell: checksum} of the files of rows that are there; runs say which is missing."""
    places = {cell.name: cell.settings.get("table") for cell in cells}
    paths = {place: pathlib.Path(place).expanduser() for place in places.values() if place}
    of_files = {
        place: f"{durable.crc32_of(path, path.stat().st_size):08x}"
        for place, path in paths.items()
        if path.is_file()
    }
    return {name: of_files[place] for name, place in places.items() if place in of_files}


def _joined(flags):
    return shlex.join(lines_of(flags).splitlines())


def _own_statistics(config):
    """Returns what rows say of how a user's own statistics are shown, if a run has some."""
    return {name: json.dumps(config[name]) for name in (OWN_STATISTICS,) if name in config}


def read_run(
    raw: pathlib.Path, algorithm: algorithms.Named
) -> tuple[dict[str, Any], dict[str, Any], dict[str, list]]:
    """Returns the configuration, the summary, and the rows for other files of a finished run.

    Raises:
      DamagedRunError: A file of the run is damaged.
    """
    own = algorithms.method_of(algorithm).settings.tables
    try:
        config, summary = (limited_files.json_object(raw / f"{n}.json") for n in _DESCRIBED)
        records, clients = _records(raw), read(raw / "clients.csv")
        if len(records) != summary["round"] or not clients or "versions" not in config:
            raise ValueError("a file has not all rounds, clients or settings")
        server = limited_files.arrays(raw / "server.npz", math.inf) if own else {}
        rows = {
            CURVES: [_numbers_of(record) for record in records],
            CLIENTS: [
                {name: row[name] for name in (*_OF_CLIENT, f"test_{first_of(row).name}")}
                for row in clients
            ],
            NEW_CLIENTS: read(raw / "new_clients.csv"),
            **{f"{name}.csv.gz": _entries(server[name], own[name]) for name in own},
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


def _entries(array, columns):
    """Returns a row for each entry of an array: its place along each axis, and its value."""
    return [
        dict(zip(columns, (*place, f"{value:.6g}"), strict=True))
        for place, value in np.ndenumerate(array)
    ]
