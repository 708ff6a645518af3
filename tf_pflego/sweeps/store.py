"""The files of a sweep, in formats that any program opens (docs/sweeps.md).

The name TABLE.csv.gz is for tables that a method declares, with one row per run and entry.
"""

import contextlib
import csv
import gzip
import io
import json
import os
import pathlib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tf_pflego.core.settings import named_as_today
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
RAW = "runs"

UNREADABLE = OSError, ValueError, KeyError, TypeError, AttributeError, csv.Error

Key = tuple[str, str | None, str]  # the cell, trial (None for runs that are reported) and seed

# The column with the configuration of a run, as `plan.parts_of` takes it, and the one in its place
# in files of versions before it, with the settings that `flags` do not say, as flags.
PLAN, _DEFAULTS = "plan", "defaults"
# The columns that a file must have.
_NEEDED = {
    RUNS: ("run", "seed", "flags", PLAN),
    CURVES: ("run", "seed", "round", "seconds", "bytes_down", "bytes_up"),
    CLIENTS: ("run", "seed", "client"),
}
# Columns of a table of runs that are read as numbers, where they are not empty.
_NUMBERS = {"seed": int, "num_rounds": int, "paper": float, SECONDS: float}
# A run is the same run wherever its clients are.
_ANYWHERE = {*places(), "engine"}


def read(path: pathlib.Path) -> list[dict[str, str]]:
    """Returns the rows of a CSV file, compressed if its name ends in .gz, or [] if it is absent."""
    if not os.path.lexists(path):
        return []
    with _as_written(path):
        rows = list(csv.DictReader(io.StringIO(limited_files.text(path), newline="")))
        needed = _NEEDED.get(path.name, ())
        missing = [name for name in needed if rows and name not in rows[0]]
        if missing and not (missing == [PLAN] and _DEFAULTS in rows[0]):
            raise ValueError(f"it has no column {missing[0]}")
        for row in rows:
            if row.get(PLAN):
                learn(limited_files.object_of(row[PLAN].encode()).get(OWN_STATISTICS, {}))
            elif OWN_STATISTICS in row.get(_DEFAULTS, ""):
                learn(json.loads(_parsed(row[_DEFAULTS])[OWN_STATISTICS]))
        return rows


def key_of(row: Mapping[str, str]) -> Key:
    """Returns which run a row is about."""
    return row["run"], row.get("trial"), row["seed"]


@contextlib.contextmanager
def _as_written(path):
    """Raises ValueError with the path and the remedy for damaged data."""
    try:
        yield
    except UNREADABLE as error:
        lacks = "it has no " * isinstance(error, KeyError)
        raise ValueError(
            f"the files of a sweep must be as it wrote them; {path} cannot be read ({lacks}"
            f"{error}). Move all but `{RAW}` away, and run the sweep again, which fills them from "
            "there."
        ) from error


def write(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes a CSV file with the columns of all rows, compressed if its name ends in .gz.

    It is replaced as a whole, so that an interruption leaves the old or the new content.
    """
    with durable.batch() as files:
        add(files, path, rows)


def add(files: durable.Batch, path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Adds a CSV file to the batch that is written together (see `write`)."""
    content = text_of(rows).encode("utf-8")
    with files.open(path) as stream:
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
    """Returns settings as flags, without settings about places."""
    return {name: str(value) for name, value in settings.items() if name not in places()}


def lines_of(flags: Mapping[str, Any]) -> str:
    """Returns flags as a flag file has them, one per line, quoted as for a shell."""
    return "".join(shlex.quote(f"--{name}={value}") + "\n" for name, value in flags.items())


def said(flags: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, str]:
    """Returns the columns of a row about the settings of its run (see `settings_of`)."""
    return {"flags": " ".join(lines_of(flags).splitlines()), PLAN: json.dumps(plan)}


def _parsed(text):
    pairs = (word.lstrip("-").partition("=") for word in shlex.split(text or ""))
    return named_as_today({name: value for name, _, value in pairs})


def settings_of(row: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the settings of the run of a row: given settings, and defaults."""
    flags = _parsed(row["flags"])
    if not row.get(PLAN):
        return flags, _parsed(row.get(_DEFAULTS))
    plan = named_as_today(json.loads(row[PLAN]))
    return flags, {name: str(value) for name, value in plan.items() if name not in flags}


def is_made_with(
    named: Mapping[str, str], defaults: Mapping[str, str], flags: Mapping[str, str]
) -> bool:
    """Returns whether `flags` mean a run with the settings `named` and defaults otherwise.

    This is true if each flag had this value, given or by default, and no other flag was given.
    """
    known = {**defaults, **named}
    return named.keys() - _ANYWHERE <= flags.keys() and all(
        known.get(name) == value for name, value in flags.items() if name not in _ANYWHERE
    )
