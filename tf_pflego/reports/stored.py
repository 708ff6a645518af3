"""The directory of a run, read without TensorFlow, also during the run."""

import collections
import dataclasses
import functools
import itertools
import os
import pathlib
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_pflego.core.statistic_names import first_of, of_metric
from tf_pflego.runs import reader
from tf_pflego.simulation.records import BOOKKEEPING, PERSONALIZED, method_title
from tf_pflego.system import limited_files, texts

_TEXTS = ("name", "classes")
# Larger metrics are drawn no more than those that are not finite: what a float32 cannot hold.
_LARGEST = float(np.finfo(np.float32).max)
_MOST_CLIENTS, _LARGEST_CLASS, _MOST_COUNTED = 2_000_000, 1_000_000, 2**53
_LONGEST_PRINT = 64


class RunError(ValueError):
    """A directory is not a run's, or is damaged."""


@dataclasses.dataclass(frozen=True)
class Holdings:
    """The holdings of clients, from partition.npz."""

    classes: tuple[np.ndarray, ...]  # for each client its classes, ascending
    train_sizes: np.ndarray  # [I] numbers of training examples
    test_sizes: np.ndarray  # [I] numbers of test examples
    class_counts: np.ndarray  # [sum |classes_i|] training examples of each client and class
    # Equal for two runs whose clients hold the same examples of the same dataset, those that a user
    # gave in any order.
    identity: tuple
    names: list[str] | None  # of the clients, if they have any
    class_names: list[str] | None  # of the global classes, in their order, if they have any
    # [I] by what a client is known again: of clients that a user gave, text that follows from their
    # examples; else their ids, which say something within the same `identity` alone.
    keys: np.ndarray


@dataclasses.dataclass(frozen=True)
class ReportedRun:
    """A run as far as it is."""

    path: pathlib.Path
    configuration: dict[str, Any]  # every flag and hyper-parameter
    # Columns over the rounds that are done, [T] floats: bookkeeping and metrics; NaN where a round
    # has no value, or none that is finite.
    rounds: dict[str, np.ndarray]
    # The columns of clients.csv, [I] floats, but for text in `name` and `classes`; None if the run
    # has not ended.
    clients: dict[str, np.ndarray] | None
    new_clients: dict[str, np.ndarray] | None = None  # the columns of new_clients.csv, if any
    # The columns of predictions.csv, [m] floats, if labels are quantities or counts.
    predictions: dict[str, np.ndarray] | None = None
    personalized: dict[str, np.ndarray] | None = None  # the columns of personalized.csv, if any
    holdings: Holdings | None = None  # None if partition.npz is not there yet
    finished: bool = True  # whether it has all the rounds that it was made for, and its last files
    versions: dict[str, Any] = dataclasses.field(default_factory=dict)  # of the program and others
    # For each metric, how many rounds have a value that is not finite.
    lost: dict[str, int] = dataclasses.field(default_factory=dict)
    left_out: Sequence[int] = ()  # how many participants each round had to leave out

    @property
    def num_rounds(self) -> int:
        """The number of finished rounds."""
        return len(self.rounds["round"])

    @property
    def algorithm(self) -> str:
        """The name of its algorithm."""
        return method_title(str(self.configuration.get("algorithm", "unknown")))

    @property
    def client_keys(self) -> np.ndarray:
        """[n], the keys that identify the clients in `clients` (see `Holdings.keys`)."""
        if self.clients is None:
            return np.zeros(0, int)
        ids = self.clients["client"].astype(int)
        return ids if self.holdings is None else self.holdings.keys[ids]


def read(path: str | pathlib.Path) -> ReportedRun:
    """Reads the directory of a run, or raises RunError if it is none, or damaged."""
    path = pathlib.Path(path).expanduser()
    if not os.path.isdir(path):
        what = "is a file" if os.path.exists(path) else "does not exist"
        raise RunError(
            f"a run must be given by its directory; {path} {what}. Give the output directory of a "
            "run."
        )
    missing = [
        name for name in ("config.json", "metrics.jsonl") if not os.path.lexists(path / name)
    ]
    if missing:
        raise RunError(
            f"the directory of a run must have config.json and metrics.jsonl; {path} lacks "
            f"{' and '.join(missing)}. {_remedy(path)}"
        )
    try:
        return _read(path)
    except reader.DamagedFileError as error:
        raise _damaged(error.path, error) from None
    except FileNotFoundError as error:
        raise _damaged(pathlib.Path(error.filename), "is missing") from None
    except OSError as error:
        raise RunError(
            f"the files of a run must be readable; {error.filename or path} is not "
            f"({error.strerror}). Correct its permissions, or leave {path} out."
        ) from error


def _remedy(path):
    interrupted = [name for name in (".whole_run", ".old_run") if (path / name).is_dir()]
    if interrupted:
        return (
            f"The replacement of its run was interrupted ({interrupted[0]} is still there); the "
            "program goes on with it when it is to resume the run in this directory."
        )
    below = sorted(child.parent for child in path.glob("*/config.json"))
    if below:
        return f"Perhaps you mean a run inside it, such as {below[0]}."
    return "Give the output directory of a run that has begun."


def _read(path):
    configuration = reader.configuration(path / "config.json")
    versions = configuration.pop("versions", {})
    records = reader.records(path / "metrics.jsonl")
    rounds, lost = _columns(records)

    def read_if_there(name, read):
        return read(path / name) if os.path.lexists(path / name) else None

    summary = read_if_there("summary.json", reader.json_object) or {}
    finished = summary.get("round") == len(records)
    clients = new_clients = predictions = personalized = None
    if finished:
        clients = _table(("client", "train_examples", "test_examples"), path / "clients.csv")
        of_new = functools.partial(_table, ("epoch", "client"))
        new_clients = read_if_there("new_clients.csv", of_new)
        compared = functools.partial(_table, ("client", "output"), others=("true", "predicted"))
        predictions = read_if_there("predictions.csv", compared)
        of_all = functools.partial(_table, ("client", "steps", "at_limit", "is_fitted"))
        personalized = read_if_there(PERSONALIZED, of_all)
    of_dataset = functools.partial(_holdings, configuration.get("dataset"))
    holdings = read_if_there("partition.npz", of_dataset)
    if clients and holdings and not np.isin(clients["client"], range(len(holdings.keys))).all():
        what = "has a client that partition.npz has not"
        raise reader.DamagedFileError(path / "clients.csv", what)
    return ReportedRun(
        path,
        configuration,
        rounds,
        clients,
        new_clients,
        predictions,
        personalized,
        holdings,
        finished,
        versions if isinstance(versions, dict) else {},
        lost,
        [record.get("not_finite", 0) for record in records],
    )


def _damaged(path, what):
    return RunError(
        f"{path.name} of a run must be as the program wrote it; {path} {what}. Restore the file, "
        "make the run again, or leave it out."
    )


def _columns(records):
    """Returns the columns with numbers in some round, and their counts of other values."""
    columns, lost = {name: np.zeros(0) for name in BOOKKEEPING}, {}
    for name in dict.fromkeys(name for record in records for name in record):
        cells = [record.get(name, "") for record in records]
        if any(cell is None or reader.is_number(cell) for cell in cells):
            values = np.array([v if reader.is_number(v) else np.nan for v in cells], float)
            values[np.abs(values) > _LARGEST] = np.nan
            present = np.array([name in record for record in records])
            lost[name] = int(np.count_nonzero(present & np.isnan(values)))
            columns[name] = values
    return columns, lost


def _table(numbers, path, others=()):
    """Returns the columns of a table: ids and counts, and `others`, by default a statistic."""
    columns, table = reader.columns(path), {}
    needed = (*numbers, *(others or [f"test_{first_of(columns).name}"]))
    with limited_files.reading(path, ValueError):
        if not set(needed) <= set(columns) or not columns[needed[0]]:
            raise ValueError(f"it needs the columns {', '.join(needed)} and a row")
        for name, cells in columns.items():
            if (
                name in _TEXTS
            ):  # As objects, since else each text would take as much as the longest.
                table[name] = np.array(cells, object)
                continue
            table[name] = values = np.array([float(cell or "nan") for cell in cells])
            whole = np.all((values >= 0) & (values < _MOST_COUNTED) & (values == np.trunc(values)))
            if name in numbers and not whole:
                raise ValueError(f"{name} has a cell that is no whole number")
            if of_metric(name).is_share and np.any((values < 0) | (values > 1)):
                raise ValueError(f"{name} has a cell that is no share")
            values[np.abs(values) > _LARGEST] = np.nan
    return table


def _holdings(dataset, path):
    arrays = limited_files.arrays(path)
    with limited_files.reading(path, ValueError, KeyError, IndexError):
        parts, checksum = {}, 0
        for name in ("classes", "train_indices", "test_indices"):
            values, offsets = (_row(arrays, key, "iu") for key in (name, f"{name}_offsets"))
            if offsets[0] != 0 or offsets[-1] != len(values) or np.any(offsets[1:] < offsets[:-1]):
                raise ValueError(f"the offsets of {name} do not fit")
            if not 1 < len(offsets) == len(arrays["classes_offsets"]) <= _MOST_CLIENTS:
                raise ValueError(f"{name} are of {len(offsets) - 1} clients")
            parts[name] = values, offsets
            for array in (values, offsets):
                checksum = zlib.crc32(np.ascontiguousarray(array), checksum)
        for name in ("renamings", "shifts"):  # Of clients that disagree: the data are others then.
            if name in arrays:
                checksum = zlib.crc32(np.ascontiguousarray(arrays[name]), checksum)
        values, offsets = parts["classes"]
        num_clients = len(offsets) - 1
        if not len(values) or values.max() > _LARGEST_CLASS:
            raise ValueError(f"the classes are none, or above {_LARGEST_CLASS}")
        counts = _row(arrays, "class_counts", "iu")
        if len(counts) != len(values) or not counts.any():
            raise ValueError("class_counts does not fit the classes")
        names, class_names = (
            _row(arrays, name, "U").tolist() if name in arrays else None
            for name in ("names", "class_names")
        )
        if class_names is not None and len(class_names) <= values.max():
            raise ValueError("the names of the classes are too few")
        if names is not None and (len(names) != num_clients or any(map(texts.unseen, names))):
            raise ValueError("the names do not fit the clients")
        keys = np.arange(num_clients)
        if "fingerprints" in arrays:
            keys = _keys(arrays["fingerprints"], num_clients)
            checksum = zlib.crc32("".join(sorted(keys)).encode())
    return Holdings(
        tuple(values[a:b] for a, b in itertools.pairwise(offsets)),
        np.diff(parts["train_indices"][1]),
        np.diff(parts["test_indices"][1]),
        counts,
        (dataset, num_clients, checksum),
        names,
        class_names,
        keys,
    )


def _row(arrays, name, kinds):
    """Returns a row of whole numbers from 0 on, or of texts."""
    values = arrays[name]
    if values.ndim != 1 or values.dtype.kind not in kinds or (kinds == "iu" and np.any(values < 0)):
        raise ValueError(f"{name} is no row of {'whole numbers' if kinds == 'iu' else 'texts'}")
    return values


def _keys(prints, num_clients):
    """Returns keys from the clients' examples. Several clients may have the same."""
    if prints.dtype != np.uint8 or prints.ndim != 2 or len(prints) != num_clients:
        raise ValueError("the fingerprints do not fit the clients")
    if prints.shape[1] > _LONGEST_PRINT:
        raise ValueError("the fingerprints are too long")
    times: collections.Counter[str] = collections.Counter()
    keys = []
    for row in prints:
        key = row.tobytes().hex()
        times[key] += 1
        keys.append(f"{key} {times[key]}")
    return np.array(keys)
