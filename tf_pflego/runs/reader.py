"""The files of a run, its settings and tables, read with limits.

A file that no run would write is a DamagedFileError (see `system.limited_files`). This module does
not need TensorFlow.
"""

import csv
import dataclasses
import functools
import io
import json
import pathlib
from typing import Any

from tf_pflego.core import statistic_names
from tf_pflego.core.settings import Role, kind_of, named_as_today, names_with
from tf_pflego.simulation.records import BOOKKEEPING
from tf_pflego.system import deferred, limited_files
from tf_pflego.system.limited_files import DamagedFileError, content, is_number, json_object

CLIENT = "client.json"  # in the directory of a client on a machine of its own
# The key of config.json that says how statistics of a user's own are shown, if a run has some.
OWN_STATISTICS = "own_statistics"
# The partition in the configuration of a run whose clients the user gave.
OWN_CLIENTS = "own"

_MOST_ROUNDS, _MOST_NAMES, _MOST_CELLS = 1_000_000, 1_000, 20_000_000
_MOST_COUNTED = 10**limited_files.MOST_DIGITS
_COUNTED = ("round", "seconds", "bytes_down", "bytes_up")


@functools.cache
def _declared():
    with deferred.meanwhile():
        from tf_pflego.runs.config import RunConfig
    return RunConfig


@functools.cache
def places() -> frozenset[str]:
    """Returns the settings about places and storage."""
    return frozenset(names_with(Role.PLACE, _declared()))


def configuration(path: pathlib.Path) -> dict[str, Any]:
    """Returns the contents of config.json, after a check of their types."""
    settings = named_as_today(json_object(path))
    for one in dataclasses.fields(_declared()):
        name, kind = one.name, kind_of(one)
        value = settings.get(name, kind())
        if one.metadata["read_with"] or kind not in (int, str):
            continue
        if type(value) is not kind or value < kind():
            what = "a whole number" if kind is int else "a text"
            raise DamagedFileError(
                path, f"must have {what} as {name}; got {json.dumps(value)[:60]}"
            )
    try:
        statistic_names.learn(settings.get(OWN_STATISTICS, {}))
    except (TypeError, AttributeError):
        raise DamagedFileError(path, f"must define how each of {OWN_STATISTICS} is shown") from None
    return settings


def records(path: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the rounds of metrics.jsonl. A last line without its end is still being written.

    Counts are in [0, 10^18], and rounds are 1, 2, .. Metrics may have any value.
    """
    whole, _, _ = content(path).rpartition(b"\n")
    names: set[str] = set()
    rounds = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            record = limited_files.object_of(line)
            names.update(record)
            if number > _MOST_ROUNDS or len(names) > _MOST_NAMES:
                raise ValueError(f"more than {_MOST_ROUNDS} rounds or {_MOST_NAMES} names")
            if number * len(names) > _MOST_CELLS:
                raise ValueError(f"more than {_MOST_CELLS} values")
            for name in (*_COUNTED, *(record.keys() & BOOKKEEPING)):
                if name not in record:
                    raise ValueError(f"it has no {name!r}")
                if not (is_number(record[name]) and 0 <= record[name] <= _MOST_COUNTED):
                    raise ValueError(f"{name} is {json.dumps(record[name])[:60]}")
            if record["round"] != number:
                raise ValueError(f"round {number} expected, got {record['round']}")
        except ValueError as error:
            raise DamagedFileError(path, f"is damaged in line {number} ({error})") from None
        rounds.append(record)
    return rounds


def columns(path: pathlib.Path) -> dict[str, list[str]]:
    """Returns the columns of a CSV file, as text."""
    text = content(path)
    with limited_files.reading(path, ValueError, csv.Error):
        rows = csv.reader(io.StringIO(text.decode(), newline=""))
        names = next(rows, [])
        if len(set(names)) < len(names) or len(names) > _MOST_NAMES:
            raise ValueError(f"a name is there twice, or there are more than {_MOST_NAMES}")
        cells: list[list[str]] = [[] for _ in names]
        for number, row in enumerate(rows, 2):
            if len(row) != len(names):
                raise ValueError(f"row {number} has {len(row)} cells, not {len(names)}")
            if number * len(names) > _MOST_CELLS:
                raise ValueError(f"it has more than {_MOST_CELLS} cells")
            for column, cell in zip(cells, row, strict=True):
                column.append(cell.removeprefix("'"))  # See `durable.inert`.
    return dict(zip(names, cells, strict=True))
