"""The directory of a run: its configuration, partition, metrics, clients and, last, summary.

One process at a time uses it: a lock on the file `.lock` ends with the process in all cases.

A run that replaces an earlier run works in `.new_run` inside the directory. When it is whole, the
old files move to `.old_run`, `.new_run` becomes `.whole_run`, its files move to their places, and
the old files are removed. Each of these steps is a rename, and the next run in the directory first
completes interrupted steps. At any instant all files of the old or of the new run exist.
"""

import contextlib
import dataclasses
import io
import json
import os
import pathlib
import re
import zlib
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from tf_pflego.core import nests
from tf_pflego.core.settings import named_as_today
from tf_pflego.data.clients import ClientData
from tf_pflego.runs import partition_file, reader, tensorboard
from tf_pflego.runs.client_table import Columns, client_columns, new_client_columns
from tf_pflego.runs.earlier_run import PREPROCESSING
from tf_pflego.runs.plan import Plan
from tf_pflego.runs.reader import OWN_CLIENTS
from tf_pflego.runs.resumption import RunDirectoryError, is_private, refuse_another
from tf_pflego.simulation import feature_files
from tf_pflego.simulation.checkpoint import CheckpointError, Checkpoints, DamagedError
from tf_pflego.simulation.evaluation import Evaluation
from tf_pflego.simulation.records import BLOCK_FILES, CHECKPOINT_FILES, PERSONALIZED, PERSONALIZING
from tf_pflego.simulation.simulation import Simulation
from tf_pflego.system import durable, limited_files, lock, log, values

_SUMMARY, _METRICS, _CONFIG = "summary.json", "metrics.jsonl", "config.json"
_CHECKPOINTS, TENSORBOARD = "checkpoints", "tensorboard"
# The files that a run writes, the last first. A directory with a summary has them all.
_RESULTS = (
    _SUMMARY,
    PERSONALIZED,
    "new_clients.csv",
    "server.npz",
    "predictions.csv",
    "clients.csv",
)
_INPUTS = (partition_file.NAME, PREPROCESSING, _CONFIG)
_FILES = (*_RESULTS, PERSONALIZING, _CHECKPOINTS, TENSORBOARD, _METRICS, *_INPUTS)
_OF_RUN = re.compile(rf"(\.?)({'|'.join(map(re.escape, _FILES))})(\.partial)?")
_DIRECTORIES = {
    _CHECKPOINTS: CHECKPOINT_FILES,
    TENSORBOARD: tensorboard.EVENTS,
    PERSONALIZING: BLOCK_FILES,
}
_NEW = ".new_run"
_STEPS = (_NEW, ".whole_run", ".old_run")


def holds_run(path: pathlib.Path) -> bool:
    """Returns whether a directory contains a run, or an interrupted run's files."""
    return any((path / name).exists() for name in (*_STEPS, _CHECKPOINTS, _CONFIG))


def where_it_goes_on(path: pathlib.Path) -> pathlib.Path:
    """Returns the place of the run that `resume` would go on with."""
    return path / _NEW if (path / _NEW).exists() else path


class RunDirectory(contextlib.AbstractContextManager["RunDirectory"]):
    """Writes the files of one run. Close it after use, or use it in a `with` statement.

    With `overwrite` the planned run may replace an earlier run, and with `resume` it may continue
    it. The summary of a finished run is then in `finished`. Any other contents are a
    RunDirectoryError. Until the run is complete, its files are in `work`.
    """

    def __init__(self, plan: Plan):
        overwrite, resume = plan.settings.overwrite, plan.settings.resume
        self.path = pathlib.Path(plan.settings.output_dir).expanduser()
        self.finished: dict[str, Any] | None = None
        self._plan = plan
        self._configuration = dict(plan.configuration)
        self._metrics: BinaryIO = io.BytesIO()  # until `begin` opens the file
        self._checkpoint: dict[str, Any] | None = None  # that the run goes on from
        self._lock = lock.taken(self.path, "run", RunDirectoryError)
        try:
            self._refuse_links()
            self.work = self._place(overwrite, resume)
            self._checkpoints = Checkpoints(self.work / _CHECKPOINTS)
            if resume:
                self._find_earlier()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *unused):
        self.close()

    def close(self) -> None:
        """Frees the directory for other runs. An unused directory stays empty."""
        with contextlib.suppress(OSError):  # What could not be written has been reported.
            self._metrics.close()
        self._lock.release()

    @property
    def _mode(self):
        """The permissions of files on single clients, which in private runs are their owner's."""
        return 0o600 if is_private(self._configuration) else 0o666

    @property
    def goes_on(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return self._checkpoint is not None

    @property
    def plan(self) -> Plan:
        """The plan, with what an earlier part of the run has chosen."""
        return self._plan.but(compile=self._configuration["compile"])

    def begin(
        self, simulation: Simulation, clients: ClientData, versions: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Starts a run of all `clients`, or restores a resumed run; returns the finished rounds."""
        self._configuration["clients_per_round"] = simulation.participation.clients_per_round
        if self._checkpoint is not None:
            return self._go_on(simulation, versions)
        self._refuse_others()
        durable.remove(self.path / _NEW)
        self.work.mkdir(exist_ok=True)
        for name in _FILES:
            durable.remove(self.work / name)
        are_own = self._configuration["partition"] == OWN_CLIENTS
        if clients.preprocessing is not None:  # The table's file may change.
            are_own = True
            self._write_json(PREPROCESSING, dataclasses.asdict(clients.preprocessing))
        task = simulation.algorithm.model.task
        about = self._configuration
        # No other run may start from a private one.
        earlier = None if is_private(about) else about["start_from"]
        partition_file.write(self.work, clients, are_own, task, earlier, self._mode)
        # Where this is, the clients are known; see `training.run`.
        self._write_json(_CONFIG, self._configuration | {"versions": versions})
        self._metrics = open(self.work / _METRICS, "xb")
        self._written = {"bytes": 0, "crc32": 0}
        self._round, self._checkpoint_round = 0, -1
        return []

    def add_round(self, record: dict[str, Any]) -> None:
        """Appends a line to metrics.jsonl and flushes it, so that others can read it.

        A metric that is not finite becomes null, here and in summary.json.
        """
        line = (json.dumps(values.finite_or_none(record), allow_nan=False) + "\n").encode()
        with durable.naming(self.work / _METRICS):
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
        simulation.save_to(self._checkpoints, about, [self.work / _METRICS])
        self._checkpoint_round = number

    def go_back(self, simulation: Simulation) -> list[dict[str, Any]]:
        """Returns to the newest checkpoint, and returns the metrics of the earlier rounds."""
        self._metrics.close()
        content = self._checkpoints.newest(self._check_metrics)
        if content is None:
            raise CheckpointError(f"{self.work} must have a checkpoint; it has none.")
        return self._restore(simulation, content)

    def finish(
        self,
        summary: dict[str, Any],
        evaluations: dict[str, Evaluation],
        predicted: Columns | None,
        simulation: Simulation,
        new_clients: Sequence[Evaluation],
        clients: ClientData,
    ) -> None:
        """Writes the files of a finished run. The last is summary.json, which marks a whole run.

        `new_clients` are evaluated after 0, 1, .. epochs. In `clients`, all of them, they come
        after the simulation's.
        """
        data = simulation.data
        durable.to_disk(self.work / _METRICS)
        tables = {"clients.csv": [client_columns(evaluations, data)]}
        if predicted:
            tables["predictions.csv"] = [predicted]
        if new_clients:
            new = clients.part(data.num_clients, clients.num_clients)
            tables["new_clients.csv"] = [
                new_client_columns(evaluation, epoch, data.num_clients, new)
                for epoch, evaluation in enumerate(new_clients)
            ]
        with durable.batch() as files:
            for name, parts in tables.items():
                rows = [row for part in parts for row in zip(*part.values(), strict=True)]
                files.csv(self.work / name, parts[0], rows, self._mode)
            leaves = nests.named(simulation.algorithm.published(simulation.server_state)).items()
            arrays = ((name, np.asarray(leaf)) for name, leaf in leaves)
            files.npz(self.work / "server.npz", arrays)
        self._write_json(_SUMMARY, values.finite_or_none(summary))
        self._replace()

    def _refuse_links(self):
        """Raises RunDirectoryError if a write or a rename would leave the run's directory."""
        directories = (*_DIRECTORIES, *_STEPS, feature_files.NAME)
        for place in (self.path, *(self.path / name for name in _STEPS)):
            for path in (place / name for name in {*_FILES, *directories}):
                is_own = path.is_dir() if path.name in directories else path.is_file()
                if path.is_symlink() or (path.exists() and not is_own):
                    raise _refusal(path, "a link" if path.is_symlink() else "of another kind")

    def _refuse_others(self):
        """Raises RunDirectoryError if anything that no run has written would be removed."""
        places = [self.path, *(self.path / name for name in _STEPS)]
        names = dict.fromkeys(places[1:], _OF_RUN)
        names |= {place / name: known for place in places for name, known in _DIRECTORIES.items()}
        for directory, known in names.items():
            for path in directory.iterdir() if directory.exists() else ():
                if not (path.name in _DIRECTORIES or durable.is_plain(path, known)):
                    raise _refusal(path, "of none")
        there = [name for name in _FILES if (self.path / name).exists()]
        if there and not _is_run(self.path, there):
            raise _refusal(self.path / there[-1], "of none")

    def _place(self, overwrite, resume):
        """Returns the directory of the run's work."""
        self._replace()
        new = self.path / _NEW
        present = [name for name in _FILES if (self.path / name).exists()]
        if resume:
            return where_it_goes_on(self.path)
        if (present or new.exists()) and not overwrite:
            raise RunDirectoryError(
                f"`output_dir` must not contain another run; {self.path} has "
                f"{', '.join(reversed(present)) or new.name}. Choose another `output_dir`, "
                "continue that run with `resume=True`, or replace it with `overwrite=True`."
            )
        self._refuse_others()
        return new if present else self.path

    def _find_earlier(self):
        """Finds the run in the directory to go on with, and checks whether it may."""
        self._checkpoint = self._checkpoints.newest(self._check_metrics)
        config = self.work / _CONFIG
        if self._checkpoint is not None:
            earlier = self._checkpoint["configuration"]
        elif config.exists():
            earlier = _read_json(config)
            if earlier is None:
                raise RunDirectoryError(
                    f"`resume` needs the configuration of the run in {self.work}; {_CONFIG} is "
                    "damaged, and there is no checkpoint. Start again with `overwrite=True`."
                )
            earlier.pop("versions", None)
        else:
            return
        earlier = named_as_today(earlier)
        earlier.setdefault("compile", "off")  # Versions before this one compiled nothing.
        if self._plan.settings.compile == "auto":  # Other rounds do not change it.
            self._configuration["compile"] = earlier["compile"]
        refuse_another(earlier, self._configuration, self.work)
        summary, metrics = self.work / _SUMMARY, self.work / _METRICS
        wanted = self._configuration["num_rounds"]
        # A summary that is damaged is written again, from the newest checkpoint.
        content = _read_json(summary)
        # A callback, or an epsilon that was spent, may have ended the run before its rounds.
        ended = earlier.get("dp_epsilon") == self._configuration.get("dp_epsilon")
        ended = ended and wanted == earlier.get("num_rounds")
        if content is not None and (ended or wanted == content.get("round")):
            self.finished = content
            return
        if self._checkpoint is None:
            if metrics.exists() and metrics.stat().st_size:
                raise RunDirectoryError(
                    f"`resume` needs a checkpoint; {self.work} has none. Choose another "
                    "`output_dir`, or replace the run with `overwrite=True`, without "
                    "`checkpoint_every=0`."
                )
        elif self._checkpoint["round"] > wanted:
            raise RunDirectoryError(
                f"`num_rounds` must be at least {self._checkpoint['round']}, the rounds that the "
                f"run in {self.work} has; got {wanted}. Raise `num_rounds`."
            )

    def _check_metrics(self, content):
        if "metrics" not in content:
            raise DamagedError("it is not the checkpoint of a run")
        expected, path = content["metrics"], self.work / _METRICS
        if not path.exists() or path.stat().st_size < expected["bytes"]:
            raise DamagedError(f"{path.name} is missing or was cut off")
        if limited_files.crc32_of(path, expected["bytes"]) != expected["crc32"]:
            raise DamagedError(f"{path.name} has changed since it was written")

    def _go_on(self, simulation, versions):
        """Restores the simulation, and removes files only after that."""
        config = _read_json(self.work / _CONFIG)
        records = self._restore(simulation, self._checkpoint)
        known = None if config is None else config.get("versions")
        if not isinstance(known, dict):
            log.warning(
                f"{_CONFIG} of the run in {self.work} is damaged and is written again, without "
                f"the versions of its first {self._round} rounds"
            )
            known = {f"from_round_{self._round + 1}": versions}
        *_, last = [known, *(version for version in known.values() if isinstance(version, dict))]
        if any(last.get(name) != version for name, version in versions.items()):
            log.warning(
                f"the run in {self.work} continues with other versions than {last}. Its "
                "results may differ in the last digits"
            )
            known[f"from_round_{self._round + 1}"] = versions
        self._write_json(_CONFIG, self._configuration | {"versions": known})
        return records

    def _restore(self, simulation, content):
        """Restores a checkpoint, and returns the metrics of the rounds up to it."""
        simulation.restore_from(self._checkpoints, content)
        for name in (*_RESULTS, PERSONALIZING):
            durable.remove(self.work / name)
        path = self.work / _METRICS
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
        """Replaces the old run by a complete new run, or continues replacing it."""
        new, whole, old = (self.path / name for name in _STEPS)
        if (new / _SUMMARY).exists() or whole.exists() or old.exists():
            self._refuse_others()
        if (new / _SUMMARY).exists():
            old.mkdir(exist_ok=True)
            durable.move(self.path, old, _FILES)
            new.rename(whole)
        if whole.exists():
            durable.move(whole, self.path, reversed(_FILES))
            durable.remove(whole)
        durable.remove(old)

    def _write_json(self, name, content):
        with durable.batch() as files:
            files.json(self.work / name, content)


def _read_json(path):
    """Returns the contents of a file, or None if it is absent or damaged."""
    try:
        return reader.json_object(path)
    except (FileNotFoundError, reader.DamagedFileError):
        return None


def _is_run(path, names):
    if partition_file.is_in(path):  # The configuration, which comes next, may be damaged.
        return _CONFIG in names or {*names} <= {*_INPUTS}
    with contextlib.suppress(OSError, limited_files.DamagedFileError):
        return b'"algorithm"' in limited_files.content(path / _CONFIG)
    return False


def _refusal(path, what):
    return RunDirectoryError(
        f"`output_dir` must have plain files and directories of a run; {path} is {what}. Remove "
        "it, or choose another `output_dir`."
    )
