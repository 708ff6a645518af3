"""The directory of a run: its configuration, partition, metrics, clients and, last, summary.

One process at a time uses it: a lock on the file `.lock` ends with the process, however that ends.

A run that replaces another one works in `.new_run` inside the directory. When it is whole, the old
files move to `.old_run`, `.new_run` becomes `.whole_run`, its files take their places, and the old
ones are removed. Each of these steps is a rename, and the next run in the directory first goes on
with them where they were interrupted, so that at any instant all files of the old or of the new run
are there.
"""

import contextlib
import csv
import io
import json
import math
import os
import pathlib
import stat
import zlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np

from tf_pflego.core import nests
from tf_pflego.core.optimizers import CONSTANT
from tf_pflego.data.clients import ClientData
from tf_pflego.runs import partition_file, reader
from tf_pflego.runs.client_table import client_columns, new_client_columns
from tf_pflego.runs.reader import OWN_CLIENTS
from tf_pflego.simulation.checkpoint import CheckpointError, Checkpoints, DamagedError
from tf_pflego.simulation.evaluation import Evaluation
from tf_pflego.simulation.simulation import Simulation
from tf_pflego.system import durable, terminal
from tf_pflego.system.lock import DirectoryLock, InUseError

_SUMMARY, _METRICS, _CONFIG = "summary.json", "metrics.jsonl", "config.json"
_CHECKPOINTS, _TENSORBOARD = "checkpoints", "tensorboard"
# What a run makes, the last first. A directory that has a summary has all that belongs to it.
_RESULTS = (_SUMMARY, "new_clients.csv", "server.npz", "clients.csv")
_FILES = (*_RESULTS, _CHECKPOINTS, _TENSORBOARD, _METRICS, partition_file.NAME, _CONFIG)
_STEPS = (".new_run", ".whole_run", ".old_run")


class RunDirectoryError(ValueError):
    """The output directory cannot be used."""


def holds_run(path: pathlib.Path) -> bool:
    """Returns whether there is a run in a directory, or what an interrupted one has left."""
    return any((path / name).exists() for name in (*_STEPS, _CHECKPOINTS, _CONFIG))


class RunDirectory:
    """Writes the files of one run. Close it after use, or use it in a `with` statement.

    The run may take the place of another one if it may `overwrite`, or go on with the one that is
    there if it is to `resume`. Anything else in the way is a RunDirectoryError.

    Args:
      path: The directory; it is made if it does not exist.
      configuration: Every setting and hyper-parameter of the run.
      overwrite: Whether the run may take the place of another one.
      resume: Whether the run goes on with the one in the directory, if there is one.
      kept: How many checkpoints stay.
      defaults: Of the hyper-parameters; earlier versions left out some that had them.

    Attributes:
      path: The directory.
      events: Where the files of TensorBoard are, while the run is under way.
      finished: The summary, if `resume` was asked for and the run has ended.
    """

    def __init__(
        self,
        path: str,
        configuration: dict[str, Any],
        overwrite: bool = False,
        resume: bool = False,
        kept: int = 2,
        defaults: Mapping[str, Any] = MappingProxyType({}),
    ):
        self.path = pathlib.Path(path).expanduser()
        self.finished: dict[str, Any] | None = None
        self._configuration = configuration
        self._defaults = defaults
        self._metrics: BinaryIO = io.BytesIO()  # until `begin` opens the file
        self._checkpoint: dict[str, Any] | None = None  # that the run goes on from
        self._lock = self._locked()
        try:
            self._refuse_links()
            self._work = self._place(overwrite, resume)
            self.events = self._work / _TENSORBOARD
            self._checkpoints = Checkpoints(self._work / _CHECKPOINTS, kept)
            if resume:
                self._find_earlier()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(self, *unused):
        self.close()

    def close(self) -> None:
        """Frees the directory for other runs. If nothing was written, nothing is left there."""
        with contextlib.suppress(OSError):  # What could not be written has been reported.
            self._metrics.close()
        self._lock.release()

    def refuse_other_clients(self, clients: ClientData) -> None:
        """Raises ValueError if the run that goes on had other clients; see `partition_file`."""
        partition_file.refuse_others(self._work, clients)

    def begin(
        self, simulation: Simulation, clients: ClientData, versions: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Starts the run or restores the state from which it goes on; returns the rounds done.

        `clients` are all clients, also those that take no part.
        """
        self._client_names = clients.client_names
        if self._checkpoint is not None:
            return self._go_on(simulation, versions)
        durable.remove(self.path / ".new_run")
        self._work.mkdir(exist_ok=True)
        for name in _FILES:
            durable.remove(self._work / name)
        self._write_json(_CONFIG, self._configuration | {"versions": versions})
        are_own = self._configuration["partition"] == OWN_CLIENTS
        partition_file.write(self._work, clients, are_own)
        self._metrics = open(self._work / _METRICS, "xb")
        self._written = {"bytes": 0, "crc32": 0}
        self._round, self._checkpoint_round = 0, -1
        return []

    def add_round(self, record: dict[str, Any]) -> None:
        """Appends a line to metrics.jsonl and flushes it, so that others can read it.

        A metric that is not finite becomes null, here and in summary.json.
        """
        line = (json.dumps(_finite_or_none(record), allow_nan=False) + "\n").encode()
        with durable.naming(self._work / _METRICS):
            self._metrics.write(line)
            self._metrics.flush()
        size, crc32 = self._written["bytes"], self._written["crc32"]
        self._written = {"bytes": size + len(line), "crc32": zlib.crc32(line, crc32)}
        self._round = record["round"]

    def save_checkpoint(self, simulation: Simulation) -> None:
        """Writes a checkpoint, unless it is there or the metrics do not fit the simulation.

        They do not fit if a signal came at one of the few instants between the end of a round and
        the end of its line in metrics.jsonl. The checkpoint before then is still there.
        """
        number = simulation.round_number
        if simulation.in_round or number != self._round or number == self._checkpoint_round:
            return
        about = {"configuration": self._configuration, "metrics": self._written}
        simulation.save_to(self._checkpoints, about, [self._work / _METRICS])
        self._checkpoint_round = number

    def go_back(self, simulation: Simulation) -> list[dict[str, Any]]:
        """Goes back to the newest checkpoint; returns the metrics of the rounds before it."""
        self._metrics.close()
        content = self._checkpoints.newest(self._check_metrics)
        if content is None:
            raise CheckpointError(f"{self._work} must hold a checkpoint; it has none.")
        return self._restore(simulation, content)

    def finish(
        self,
        summary: dict[str, Any],
        evaluations: dict[str, Evaluation],
        data: ClientData,
        server_state: nests.Structure,
        new_clients: Sequence[Evaluation] = (),
    ) -> None:
        """Writes the files of a finished run; the last is summary.json, which marks a whole run.

        `new_clients` are evaluated after 0, 1, .. epochs; their ids follow those of `data`.
        """
        durable.to_disk(self._work / _METRICS)
        columns = client_columns(evaluations, data)
        self._write_csv("clients.csv", columns, zip(*columns.values(), strict=True))
        leaves = nests.named(server_state).items()
        with durable.batch() as files:
            arrays = ((name, np.asarray(leaf)) for name, leaf in leaves)
            files.npz(self._work / "server.npz", arrays)
        if new_clients:
            parts = [
                new_client_columns(evaluation, epoch, data.num_clients, self._client_names)
                for epoch, evaluation in enumerate(new_clients)
            ]
            rows = [row for part in parts for row in zip(*part.values(), strict=True)]
            self._write_csv("new_clients.csv", parts[0], rows)
        self._write_json(_SUMMARY, _finite_or_none(summary))
        self._replace()

    def _locked(self):
        try:
            return DirectoryLock(self.path)
        except InUseError as error:
            raise RunDirectoryError(
                f"`output_dir` must not be in use; another run writes to {self.path} ({error}). "
                "Wait for its end, or choose another `output_dir`."
            ) from None
        except OSError as error:
            raise RunDirectoryError(
                f"`output_dir` must be a directory that can be written; {self.path} is not "
                f"({error.strerror}). Choose another `output_dir`."
            ) from error

    def _refuse_links(self):
        """Raises RunDirectoryError if a write or a rename would reach what is not the run's."""
        for place in (self.path, *(self.path / name for name in _STEPS)):
            for path in (place / name for name in (*_FILES, *_STEPS)):
                try:
                    mode = path.lstat().st_mode
                except (FileNotFoundError, NotADirectoryError):
                    continue
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    what = "a link" if stat.S_ISLNK(mode) else "neither"
                    raise RunDirectoryError(
                        f"`output_dir` must have plain files and directories of a run; {path} is "
                        f"{what}. Remove it, or choose another `output_dir`."
                    )

    def _place(self, overwrite, resume):
        """Returns the directory in which the run works."""
        self._replace()
        new = self.path / ".new_run"
        present = [name for name in _FILES if (self.path / name).exists()]
        if resume:
            return new if new.exists() else self.path
        if (present or new.exists()) and not overwrite:
            raise RunDirectoryError(
                f"`output_dir` must not hold another run; {self.path} has "
                f"{', '.join(reversed(present)) or new.name}. Choose another `output_dir`, go on "
                "with that run with `resume=True`, or replace it with `overwrite=True`."
            )
        return new if present else self.path

    def _find_earlier(self):
        """Finds out where the run in the directory goes on, and whether it may."""
        self._checkpoint = self._checkpoints.newest(self._check_metrics)
        config = self._work / _CONFIG
        if self._checkpoint is not None:
            earlier = self._checkpoint["configuration"]
        elif config.exists():
            earlier = _read_json(config)
            if earlier is None:
                raise RunDirectoryError(
                    f"`resume` needs the configuration of the run in {self._work}; {_CONFIG} is "
                    "damaged, and there is no checkpoint. Start anew with `overwrite=True`."
                )
            earlier.pop("versions", None)
        else:
            return
        self._refuse_another(reader.of_today(earlier))
        summary, metrics = self._work / _SUMMARY, self._work / _METRICS
        wanted = self._configuration["num_rounds"]
        # A summary that is damaged is written again, from the newest checkpoint.
        content = _read_json(summary)
        # A callback may have ended the run before the rounds that it was made for.
        if content is not None and wanted in (content.get("round"), earlier.get("num_rounds")):
            self.finished = content
            return
        if self._checkpoint is None:
            if metrics.exists() and metrics.stat().st_size:
                raise RunDirectoryError(
                    f"`resume` needs a checkpoint; {self._work} has none. Choose another "
                    "`output_dir`, or replace the run with `overwrite=True`; leave out "
                    "`checkpoint_every=0`."
                )
        elif self._checkpoint["round"] > wanted:
            raise RunDirectoryError(
                f"`num_rounds` must be at least {self._checkpoint['round']}, the rounds that the "
                f"run in {self._work} has; got {wanted}. Raise `num_rounds`."
            )

    def _refuse_another(self, earlier):
        own = self._configuration
        differing = reader.differences(earlier, own, self._defaults)
        rounds, _ = differing.pop("num_rounds", (own["num_rounds"], None))
        if differing:
            pairs = [f"`{n}`: expected {one!s}, got {two!s}" for n, (one, two) in differing.items()]
            raise RunDirectoryError(
                f"`resume` needs the settings of the run in {self._work}; {'; '.join(pairs)}. "
                "Correct them, or choose another `output_dir`."
            )
        falls = own.get("server_schedule", CONSTANT) != CONSTANT and not own["schedule_rounds"]
        if falls and own["num_rounds"] != rounds:
            raise RunDirectoryError(
                f"`num_rounds` must be {rounds}, over which the learning rate of the run in "
                f"{self._work} falls; got {own['num_rounds']}. Correct it, or start a run whose "
                "`schedule_rounds` are more than its first `num_rounds`."
            )

    def _check_metrics(self, content):
        if "metrics" not in content:
            raise DamagedError("it is not the checkpoint of a run")
        expected, path = content["metrics"], self._work / _METRICS
        if not path.exists() or path.stat().st_size < expected["bytes"]:
            raise DamagedError(f"{path.name} is missing or was cut off")
        if durable.crc32_of(path, expected["bytes"]) != expected["crc32"]:
            raise DamagedError(f"{path.name} is not what was written")

    def _go_on(self, simulation, versions):
        """Restores the simulation; only then is anything removed."""
        config = _read_json(self._work / _CONFIG)
        records = self._restore(simulation, self._checkpoint)
        known = None if config is None else config.get("versions")
        if not isinstance(known, dict):
            terminal.say(
                f"tf_pflego: {_CONFIG} of the run in {self._work} is damaged and is written again; "
                f"with which versions its first {self._round} rounds were run is lost"
            )
            known = {f"from_round_{self._round + 1}": versions}
        *_, last = [known, *(version for version in known.values() if isinstance(version, dict))]
        if any(last.get(name) != version for name, version in versions.items()):
            terminal.say(
                f"tf_pflego: the run in {self._work} goes on with other versions than {last}; its "
                "results may differ in the last digits"
            )
            known[f"from_round_{self._round + 1}"] = versions
        self._write_json(_CONFIG, self._configuration | {"versions": known})
        return records

    def _restore(self, simulation, content):
        """Restores a checkpoint, and returns the metrics of the rounds up to it."""
        simulation.restore_from(self._checkpoints, content)
        for name in _RESULTS:
            durable.remove(self._work / name)
        path = self._work / _METRICS
        with open(path, "rb") as file:
            lines = file.read(content["metrics"]["bytes"])
        # A copy of the run may share the file by a hard link, and must keep what it has.
        with durable.batch() as files, files.open(path) as stream:
            stream.write(lines)
        self._metrics = open(path, "ab", opener=lambda p, flags: os.open(p, flags | os.O_NOFOLLOW))
        self._written = content["metrics"]
        self._round = self._checkpoint_round = content["round"]
        return [json.loads(line) for line in lines.splitlines()]

    def _replace(self):
        """Puts a new run that is whole in the place of the old one, or goes on with that."""
        new, whole, old = (self.path / name for name in _STEPS)
        if (new / _SUMMARY).exists():
            old.mkdir(exist_ok=True)
            _move(self.path, old, _FILES)
            new.rename(whole)
        if whole.exists():
            _move(whole, self.path, reversed(_FILES))
            durable.remove(whole)
        durable.remove(old)

    def _write_csv(self, name, columns, rows):
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(columns)
        writer.writerows(rows)
        with durable.batch() as files, files.open(self._work / name) as stream:
            stream.write(text.getvalue().encode())

    def _write_json(self, name, content):
        with durable.batch() as files:
            files.json(self._work / name, content)


def _read_json(path):
    """Returns what a file holds, or None if it is absent or damaged."""
    try:
        return reader.json_object(path)
    except (FileNotFoundError, reader.DamagedFileError):
        return None


def _finite_or_none(metrics):
    """Returns metrics with None, which is JSON, in the place of inf and NaN, which are not."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in metrics.items()
    }


def _move(source, target, names):
    for name in names:
        if (source / name).exists():
            (source / name).rename(target / name)
    for directory in (source, target):
        durable.to_disk(directory)
