"""What the directory of a run holds, read without TensorFlow, also while the run still goes on."""

import dataclasses
import itertools
import os
import pathlib
import zlib
from typing import Any

import numpy as np

from tf_pflego.runs import reader
from tf_pflego.simulation.records import BOOKKEEPING, method_title
from tf_pflego.system import limited_files

_TEXTS = ("name", "classes")
# Larger metrics are drawn no more than those that are not finite: what a float32 cannot hold.
_LARGEST = float(np.finfo(np.float32).max)
_MOST_CLIENTS, _LARGEST_CLASS, _MOST_COUNTED = 2_000_000, 1_000_000, 2**53
_LONGEST_PRINT = 64


class RunError(ValueError):
    """A directory is not that of a run, or is damaged."""


@dataclasses.dataclass(frozen=True)
class Holdings:
    """Who holds what, from partition.npz.

    Attributes:
      classes: For each client its classes, ascending.
      train_sizes: [I] numbers of training examples.
      test_sizes: [I] numbers of test examples.
      class_counts: [sum |classes_i|] training examples of each client and class; None if the run
        was made by a version that did not keep them.
      identity: Equal for two runs whose clients hold the same examples of the same dataset, those
        that a user gave in any order.
      names: What the clients are called; None if they have no names.
      class_names: What the global classes are called, in their order; None if they have no names.
      keys: [I] by what a client is known again: of clients that a user gave, text that follows from
        their examples; else their ids, which say something within the same `identity` alone.
    """

    classes: tuple[np.ndarray, ...]
    train_sizes: np.ndarray
    test_sizes: np.ndarray
    class_counts: np.ndarray | None
    identity: tuple
    names: list[str] | None
    class_names: list[str] | None
    keys: np.ndarray


@dataclasses.dataclass(frozen=True)
class ReportedRun:
    """A run as far as it is.

    Attributes:
      path: Its directory.
      configuration: Every flag and hyper-parameter.
      versions: Those of the program and of what it uses.
      rounds: Columns over the rounds that are done, [T] floats: bookkeeping and metrics; NaN where
        a round has no value, or none that is finite.
      lost: For each metric, how many rounds have it as a value that is not finite.
      left_out: [T] how many participants each round had to leave out.
      clients: The columns of clients.csv, [I] floats, but for text in `name` and `classes`; None if
        the run has not ended.
      new_clients: The columns of new_clients.csv; None if there are none.
      holdings: Who holds what; None if partition.npz is not there yet.
      finished: Whether the run has all the rounds that it was made for, and its last files.
    """

    path: pathlib.Path
    configuration: dict[str, Any]
    versions: dict[str, Any]
    rounds: dict[str, np.ndarray]
    lost: dict[str, int]
    left_out: np.ndarray
    clients: dict[str, np.ndarray] | None
    new_clients: dict[str, np.ndarray] | None
    holdings: Holdings | None
    finished: bool

    @property
    def num_rounds(self) -> int:
        """How many rounds are done."""
        return len(self.rounds["round"])

    @property
    def algorithm(self) -> str:
        """The name of its algorithm."""
        return method_title(str(self.configuration.get("algorithm", "unknown")))

    @property
    def client_keys(self) -> np.ndarray:
        """[n] by what the clients in `clients` are known again; see `Holdings.keys`."""
        if self.clients is None:
            return np.zeros(0, int)
        ids = self.clients["client"].astype(int)
        return ids if self.holdings is None else self.holdings.keys[ids]


def read(path: str | pathlib.Path) -> ReportedRun:
    """Reads the directory of a run.

    Raises:
      RunError: It is not one, or a file in it is damaged or cannot be read.
    """
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
    configuration = _whole(reader.configuration, path / "config.json")
    versions = configuration.pop("versions", {})
    records = _whole(reader.records, path / "metrics.jsonl")
    rounds, lost = _columns(records)
    finished = False
    if os.path.lexists(path / "summary.json"):
        summary = _whole(reader.json_object, path / "summary.json")
        finished = summary.get("round") == len(records)
    clients = new_clients = None
    if finished:
        clients = _table(path / "clients.csv", ("client", "train_examples", "test_examples"))
        if os.path.lexists(path / "new_clients.csv"):
            new_clients = _table(path / "new_clients.csv", ("epoch", "client"))
    holdings = None
    if os.path.lexists(path / "partition.npz"):
        holdings = _holdings(path / "partition.npz", configuration)
        if clients is not None and not np.isin(clients["client"], range(len(holdings.keys))).all():
            raise _damaged(path / "clients.csv", "has a client that partition.npz has not")
    left_out = np.array([record.get("not_finite", 0) for record in records], int)
    return ReportedRun(
        path,
        configuration,
        versions if isinstance(versions, dict) else {},
        rounds,
        lost,
        left_out,
        clients,
        new_clients,
        holdings,
        finished,
    )


def _whole(read, path):
    """Returns what a function of `run_files` reads from a file."""
    try:
        return read(path)
    except reader.DamagedFileError as error:
        raise _damaged(path, error) from None


def _damaged(path, what):
    return RunError(
        f"{path.name} of a run must be as the program wrote it; {path} {what}. Restore the file, "
        "make the run again, or leave it out."
    )


def _columns(records):
    names = dict.fromkeys(
        name
        for record in records
        for name, value in record.items()
        if value is None or reader.is_number(value)
    )
    columns, lost = {name: np.zeros(0) for name in BOOKKEEPING}, {}
    for name in names:
        cells = [record.get(name) for record in records]
        values = np.array([v if reader.is_number(v) else np.nan for v in cells], float)
        values[np.abs(values) > _LARGEST] = np.nan
        present = np.array([name in record for record in records])
        lost[name] = int(np.count_nonzero(present & np.isnan(values)))
        columns[name] = values
    return columns, lost


def _table(path, numbers):
    """Returns the columns of a table; `numbers` have ids and counts, and it has accuracies."""
    columns = _whole(reader.columns, path)
    needed = (*numbers, "test_accuracy")
    try:
        if not set(needed) <= set(columns) or not columns[needed[0]]:
            raise ValueError(f"it needs the columns {', '.join(needed)} and a row")
        table = {
            # As objects, since else each text would take the place of the longest.
            name: np.array(cells, object)
            if name in _TEXTS
            else np.array([float(cell or "nan") for cell in cells])
            for name, cells in columns.items()
        }
        for name, values in table.items():
            if name in _TEXTS:
                continue
            whole = np.all((values >= 0) & (values < _MOST_COUNTED) & (values == np.trunc(values)))
            if name in numbers and not whole:
                raise ValueError(f"{name} has what is no whole number")
            if name.endswith("test_accuracy") and np.any((values < 0) | (values > 1)):
                raise ValueError(f"{name} has what is no share")
    except ValueError as error:
        raise _damaged(path, f"cannot be read ({error})") from None
    return table


def _holdings(path, configuration):
    arrays = _whole(limited_files.arrays, path)
    try:
        parts, checksum = {}, 0
        for name in ("classes", "train_indices", "test_indices"):
            values, offsets = (_whole_numbers(arrays, key) for key in (name, f"{name}_offsets"))
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
        if not len(values) or values.max() > _LARGEST_CLASS:
            raise ValueError(f"the classes are none, or above {_LARGEST_CLASS}")
        counts = _whole_numbers(arrays, "class_counts") if "class_counts" in arrays else None
        if counts is not None and (len(counts) != len(values) or not counts.any()):
            raise ValueError("class_counts does not fit the classes")
        class_names = _texts(arrays, "class_names")
        if class_names is not None and len(class_names) <= values.max():
            raise ValueError("the names of the classes are too few")
        keys, names = _who(arrays, len(offsets) - 1)
        if keys.dtype.kind == "U":
            checksum = zlib.crc32("".join(sorted(keys)).encode())
    except (ValueError, KeyError, IndexError) as error:
        raise _damaged(path, f"cannot be read ({error})") from None
    return Holdings(
        tuple(values[a:b] for a, b in itertools.pairwise(offsets)),
        np.diff(parts["train_indices"][1]),
        np.diff(parts["test_indices"][1]),
        counts,
        (configuration.get("dataset"), len(offsets) - 1, checksum),
        names,
        class_names,
        keys,
    )


def _whole_numbers(arrays, name):
    values = arrays[name]
    if values.ndim != 1 or values.dtype.kind not in "iu" or np.any(values < 0):
        raise ValueError(f"{name} is no row of whole numbers")
    return values


def _texts(arrays, name):
    """Returns a row of texts as a list; None if there is none."""
    if name not in arrays:
        return None
    if arrays[name].ndim != 1 or arrays[name].dtype.kind != "U":
        raise ValueError(f"{name} is no row of texts")
    return arrays[name].tolist()


def _who(arrays, num_clients):
    """Returns the keys of the clients, and their names or None."""
    names, prints = _texts(arrays, "names"), arrays.get("fingerprints")
    if names is not None and (len(names) != num_clients or not all(map(str.isprintable, names))):
        raise ValueError("the names do not fit the clients")
    if prints is None:
        return np.arange(num_clients), names
    if (
        prints.dtype != np.uint8
        or prints.ndim != 2
        or len(prints) != num_clients
        or prints.shape[1] > _LONGEST_PRINT
    ):
        raise ValueError("the fingerprints do not fit the clients")
    times: dict[str, int] = {}  # Clients may hold the same examples.
    keys = []
    for row in prints:
        key = row.tobytes().hex()
        times[key] = times.get(key, 0) + 1
        keys.append(f"{key} {times[key]}")
    return np.array(keys), names
