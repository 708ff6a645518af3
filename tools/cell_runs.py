"""The runs of experiments: making one, and adding it to the tables of results."""

import contextlib
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator

import numpy as np
import tables
from experiments import ROOT, Cell, cells

from tf_pflego.runs.reader import PLACES
from tf_pflego.system.lock import DirectoryLock, InUseError

# What the tables keep of a run's configuration, of its summary, and of each of its clients.
_SETTINGS = (
    "num_clients",
    "local_steps",
    "clients_per_round",
    "client_learning_rate",
    "server_learning_rate",
    "proximal_weight",
    "momentum",
    "head_solver",
)
_RESULTS = (
    tables.PARTICIPANTS,
    tables.SERVED,
    tables.BEST,
    "train_loss",
    tables.SECONDS,
    "bytes_down",
    "bytes_up",
)
# The same of groups of clients and of validation examples, if the run has them.
_OF_GROUP = re.compile(
    r"(participant_)?(test|validation)_accuracy/client_mean/\w+/last10"
    r"|(participant_)?validation_accuracy/\w+/last10"
)
_POLL_SECONDS = 0.1
_OF_CLIENT = ("client", "train_examples", "test_examples", "test_accuracy")


def flags_of(words: list[str]) -> dict[str, str]:
    """Returns the values of flags --NAME=VALUE, except those that say where things are.

    Raises:
      ValueError: A word is not a flag.
    """
    flags = {}
    for word in words:
        match = re.fullmatch(r"--?(\w+)(?:=(.*))?", word, re.DOTALL)
        if not match:
            raise ValueError(f"flags must be written as --NAME=VALUE; got {word!r}. Correct it.")
        flags[match[1]] = "True" if match[2] is None else match[2]
    return {name: value for name, value in flags.items() if name not in PLACES}


def is_made_with(row: dict, flags: dict[str, str]) -> bool:
    """Returns whether the run of a row was made with these flags.

    It was if each flag had this value, given or by default, and no other flag was given.
    """
    given, defaults = (flags_of(shlex.split(row[key] or "")) for key in ("flags", "defaults"))
    held = defaults | given
    return given.keys() <= flags.keys() and all(held.get(name) == flags[name] for name in flags)


class DamagedRunError(Exception):
    """A file of a raw run cannot be read as what a run writes."""


@contextlib.contextmanager
def alone(raw: pathlib.Path) -> Iterator[None]:
    """Keeps other calls of this program from the raw run of one cell and seed.

    Raises:
      ValueError: Another one is at work there; the message says which process.
    """
    # The directory of the run itself is locked by the run.
    with _locked(raw.with_name(f".{raw.name}.reproduce"), raw):
        yield


@contextlib.contextmanager
def _locked(directory, raw):
    try:
        lock = DirectoryLock(directory)
    except InUseError as error:
        raise ValueError(
            f"{raw} must not be in use; {error} uses it. Wait for its end, or choose other cells."
        ) from None
    try:
        yield
    finally:
        lock.release()


def set_aside(raw: pathlib.Path) -> pathlib.Path:
    """Renames the directory of a run, so that the run can be made again, and returns its new name.

    Raises:
      ValueError: A run is at work in it.
    """
    number = 1
    while (aside := raw.with_name(f"{raw.name}.damaged{number}")).exists():
        number += 1
    with _locked(raw, raw):
        aside.mkdir()
        for path in raw.iterdir():
            if path.name != ".lock":
                path.rename(aside / path.name)
    return aside


@contextlib.contextmanager
def _reading(raw):
    """Lets whatever fails in reading the files of a run be a `DamagedRunError`."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DamagedRunError(f"{raw} cannot be read as a run ({reason})") from error


def run(
    flags: dict[str, str],
    extra: list[str],
    raw: pathlib.Path,
    again: bool = False,
    between_steps: Callable[[], None] = lambda: None,
) -> bool:
    """Makes one run in the directory `raw`, or goes on with it, and returns whether it ended well.

    Args:
      flags: The flags that make the run what it is.
      extra: All flags that were given for it.
      raw: The directory.
      again: Whether to start anew in any case.
      between_steps: Called again and again; it may raise `KeyboardInterrupt`, which ends the run.

    Raises:
      ValueError: A run is at work in the directory.
    """
    written = raw / "run.flags"
    same = written.exists() and written.read_text(encoding="utf-8") == lines_of(flags)
    if again or not same or not (raw / "checkpoints").exists():
        # No file of an earlier run must ever lie beside the flags of this one.
        with _locked(raw, raw):
            for path in raw.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif path.name != ".lock":
                    path.unlink()
    raw.mkdir(parents=True, exist_ok=True)
    written.write_text(lines_of(flags), encoding="utf-8")
    command = [sys.executable, "-m", "tf_pflego.main", f"--flagfile={raw / 'run.flags'}", *extra]
    command += [f"--output_dir={raw}", "--resume"]
    with open(raw / "log.txt", "w", encoding="utf-8") as log:
        running = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            while running.poll() is None:
                between_steps()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    running.wait(_POLL_SECONDS)
        finally:
            # It ends by itself within seconds. After Ctrl-C in a terminal it has got that too.
            running.terminate()
            running.wait()
    return running.returncode == 0


def row_of(cell: Cell, raw: pathlib.Path) -> dict:
    """Returns the row of a finished run in the table of runs."""
    config, summary = (read_json(raw / name) for name in ("config.json", "summary.json"))
    versions = config.pop("versions")
    flags = flags_of((raw / "run.flags").read_text(encoding="utf-8").splitlines())
    others = config.keys() - flags.keys() - set(PLACES)
    defaults = {name: value for name, value in config.items() if name in others}
    return (
        {key: config.get(key) for key in ("dataset", "personalization", "algorithm", "seed")}
        | {"run": cell.name, "num_rounds": summary["round"]}
        | {key: config.get(key) for key in _SETTINGS}
        | {key: summary.get(key) for key in _RESULTS}
        | {key: value for key, value in summary.items() if _OF_GROUP.fullmatch(key)}
        | {"paper": cell.paper, "engine": config["engine"], "commit": versions.get("commit")}
        | {"tensorflow": versions.get("tensorflow")}
        | {"flags": shlex.join(lines_of(flags).splitlines())}
        | {"defaults": shlex.join(lines_of(defaults).splitlines())}
    )


def merge(cell: Cell, seed: int, raw: pathlib.Path, results: pathlib.Path) -> None:
    """Adds a finished run to its experiment's files, replacing a run of the same cell and seed.

    The run's checkpoints are removed.

    Raises:
      DamagedRunError: A file of the run is damaged; nothing is added.
    """
    with _reading(raw):
        added = _added(cell, {"run": cell.name, "seed": seed}, raw)
    places = {cell.name: place for place, cell in enumerate(cells(cell.experiment))}
    results.mkdir(parents=True, exist_ok=True)
    with tables.locked(results):
        for path_of, own in added.items():
            path = path_of(results, cell.experiment)
            rows = [row for row in tables.read(path) if row["run"] in places]
            rows = [row for row in rows if (row["run"], row["seed"]) != (cell.name, str(seed))]
            # Sorting keeps the order of the rounds, or clients, of a run.
            rows = sorted(rows + own, key=lambda row: (places[row["run"]], int(row["seed"])))
            if rows:
                tables.write(path, rows)
    # Nothing goes on from them any more, and the states of all clients may take much space.
    shutil.rmtree(raw / "checkpoints", ignore_errors=True)


def _added(cell, key, raw):
    """Returns the rows that a finished run adds to each file."""
    records = (raw / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [key | _numbers_of(json.loads(record)) for record in records]
    row = row_of(cell, raw)
    if [record["round"] for record in records] != list(range(1, row["num_rounds"] + 1)):
        raise ValueError(f"metrics.jsonl has not each of the {row['num_rounds']} rounds")
    clients = [{key: row[key] for key in _OF_CLIENT} for row in tables.read(raw / "clients.csv")]
    if not clients:
        raise ValueError("clients.csv has no clients")
    return {
        tables.curves_path: records,
        tables.clients_path: [key | client for client in clients],
        tables.risk_weights_path: [key | entry for entry in _risk_weights(raw)],
        tables.new_clients_path: [key | row for row in tables.read(raw / "new_clients.csv")],
        # This file is the last, since a run counts as finished when its row is there.
        tables.runs_path: [row],
    }


def is_in_results(cell: Cell, flags: dict[str, str], results: pathlib.Path) -> bool:
    """Returns whether the results have a run of this cell that was made with these flags."""
    rows = tables.read_runs(results, cell.experiment)
    return any(row["run"] == cell.name and is_made_with(row, flags) for row in rows)


def is_left_over(cell: Cell, flags: dict[str, str], raw: pathlib.Path) -> bool:
    """Returns whether `raw` holds a finished run that was made with these flags.

    That is so if an interruption came after the end of the run and before its results were added.

    Raises:
      DamagedRunError: A file of the run is damaged.
    """
    with _reading(raw):
        if (raw / "config.json").exists():
            read_json(raw / "config.json")  # A run that goes on needs it too.
        if not (raw / "summary.json").exists():
            return False
        return is_made_with(row_of(cell, raw), flags)


def lines_of(flags: dict[str, str]) -> str:
    """Returns flags as a flag file has them, one per line."""
    return "".join(f"--{name}={value}\n" for name, value in flags.items())


def _numbers_of(record):
    """Returns what a round's record says in numbers, without who was left out."""
    return {name: value for name, value in record.items() if name != "not_finite_clients"}


def _risk_weights(raw):
    """Yields the entries of the matrix A of a finished run, if it has one."""
    if not (raw / "server.npz").exists():  # A run of a version that did not write it.
        return
    with np.load(raw / "server.npz") as server:
        if "risk_weights" in server:
            for (client, other), weight in np.ndenumerate(server["risk_weights"]):
                yield {"client": client, "other": other, "weight": f"{weight:.6g}"}


def read_json(path: pathlib.Path) -> dict:
    """Returns the content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))
