"""The files of a sweep, each of which any program opens; docs/sweeps.md lists them.

The name TABLE.csv.gz stands for one row per run and entry of a TABLE that its method declares.
While a sweep goes on, `finished.jsonl` gets a line for each run that has ended: its settings, and
its rows of the other files, which are written when the sweep ends. If it was killed, the lines are
read with the files, and the same command goes on from both.
"""

import contextlib
import csv
import gzip
import io
import itertools
import json
import os
import pathlib
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tf_pflego.core.statistic_names import learn
from tf_pflego.runs.reader import OWN_STATISTICS, places
from tf_pflego.system import durable, limited_files

# As accuracy has them; of other tasks they are of the first statistic.
PARTICIPANTS = "participant_test_accuracy/example_mean/last10"
SERVED = "test_accuracy/client_mean/last10"
BEST = "test_accuracy/client_mean/best"
SECONDS = "seconds_per_round/median"
VALIDATION = "validation_accuracy/client_mean"

RUNS, CURVES, CLIENTS = "runs.csv", "curves.csv.gz", "clients.csv.gz"
NEW_CLIENTS = "new_clients.csv.gz"
TUNING = "tuning.csv"
LINES, RAW = "finished.jsonl", "runs"
# So many bytes of lines are read, and with half as many they become files.
MOST_BYTES = 2**28
_FILE = re.compile(r"\w[\w.]*\.csv(\.gz)?")

UNREADABLE = OSError, ValueError, KeyError, TypeError, AttributeError, csv.Error

Key = tuple[str, str | None, str]  # the cell, trial (None for runs that are reported) and seed

# The columns that a file must have.
_NEEDED = {
    RUNS: ("run", "seed", "flags", "defaults"),
    CURVES: ("run", "seed", "round", "seconds", "bytes_down", "bytes_up"),
    CLIENTS: ("run", "seed", "client"),
}
# Columns of a table of runs that are read as numbers, where they are not empty.
_NUMBERS = {"seed": int, "num_rounds": int, "paper": float, SECONDS: float}
# A run is the same run wherever its clients are.
_ANYWHERE = {*places(), "engine"}


def read(path: pathlib.Path) -> list[dict[str, str]]:
    """Returns the rows of a CSV file, compressed if its name ends in .gz; [] if there is none.

    If the sweep goes on or was killed, the rows in its lines are among them.
    """
    return rows_in(path, lines_in(path.parent))  # Lines first: they go when the files are written.


def rows_in(path: pathlib.Path, lines: Mapping[Key, Any]) -> list[dict[str, str]]:
    """Returns the rows of a CSV file and of lines, which take the place of rows with their keys."""
    rows = written(path)
    if not lines:
        return rows
    rows = [row for row in rows if key_of(row) not in lines]
    rows += [row for line in lines.values() for row in rows_of(line, path.name)]
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name, "") for name in names} for row in rows]


def rows_of(line: Mapping[str, Any], name: str) -> list[dict[str, str]]:
    """Returns the rows that a line has for a file of this name."""
    columns, said = line["tables"].get(name, {}), {}
    if name in (RUNS, TUNING):
        said = {key: _joined(line[key]) for key in ("flags", "defaults")}
    cells = zip(*columns.values(), strict=True)
    return [dict(zip(columns, row, strict=True)) | said for row in cells]


def written(path: pathlib.Path) -> list[dict[str, str]]:
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


def lines_in(directory: pathlib.Path) -> dict[Key, dict[str, Any]]:
    """Returns {key: line} of the runs whose rows are not in the files yet.

    A last line without its end was being written when the sweep was killed; its run is read again.
    """
    path, lines = directory / LINES, {}
    if os.path.lexists(path):
        whole, _, _ = limited_files.content(path, MOST_BYTES).rpartition(b"\n")
        for number, text in enumerate(whole.splitlines(), 1):
            with _as_written(path, f"line {number}: "):
                line = limited_files.object_of(text)
                lines[key_of(line)] = _checked(line)
    return lines


def _checked(line):
    """Returns a line; raises an error if it is not as `Store` makes it."""
    (run, trial, seed), tables = key_of(line), line["tables"]
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


def key_of(row: Mapping[str, Any]) -> Key:
    """Returns which run a row, or a line, is about."""
    return row["run"], row.get("trial"), row["seed"]


@contextlib.contextmanager
def _as_written(path, where=""):
    """Raises ValueError with the path and what to do if what is read is damaged."""
    try:
        yield
    except UNREADABLE as error:
        lacks = "it has no " * isinstance(error, KeyError)
        raise ValueError(
            f"the files of a sweep must be as it wrote them; {path} cannot be read ({where}{lacks}"
            f"{error}). Move all but `{RAW}` away, and run the sweep again, which fills them from "
            "there."
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
    """Returns the text of a CSV file with the columns of all rows."""
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
    return {name: str(value) for name, value in settings.items() if name not in places()}


def lines_of(flags: Mapping[str, Any]) -> str:
    """Returns flags as a flag file has them, one per line."""
    return "".join(f"--{name}={value}\n" for name, value in flags.items())


def _joined(flags):
    return shlex.join(lines_of(flags).splitlines())


def _parsed(text):
    pairs = (word.lstrip("-").partition("=") for word in shlex.split(text or ""))
    return {name: value for name, _, value in pairs}


def settings_of(row: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the settings of the run of a row: those that were given, and those by default."""
    return _parsed(row["flags"]), _parsed(row["defaults"])


def is_made_with(
    named: Mapping[str, str], defaults: Mapping[str, str], flags: Mapping[str, str]
) -> bool:
    """Returns whether `flags` say a run with the settings `named`, and others by default.

    It is if each flag had this value, given or by default, and no other flag was given.
    """
    known = {**defaults, **named}
    return named.keys() - _ANYWHERE <= flags.keys() and all(
        known.get(name) == value for name, value in flags.items() if name not in _ANYWHERE
    )
