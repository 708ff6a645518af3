"""The directory of a run: its configuration, partition, metrics, clients and, last, summary."""

import csv
import json
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_pflego.core import nests
from tf_pflego.core.nests import Structure
from tf_pflego.data.clients import ClientData
from tf_pflego.data.partition import Partition
from tf_pflego.training.evaluation import Evaluation

_FILES = (
    "summary.json",
    "new_clients.csv",
    "server.npz",
    "clients.csv",
    "metrics.jsonl",
    "partition.npz",
    "config.json",
)


class RunDirectoryError(ValueError):
    """The output directory cannot be used."""


class RunDirectory:
    """Writes the files of one run.

    Args:
      path: The directory; it is made if it does not exist.
      overwrite: Whether the files of another run in the directory may be replaced. Nothing is
        removed before `start`.

    Raises:
      RunDirectoryError: The directory holds another run, or cannot be written.
    """

    def __init__(self, path: str, overwrite: bool = False):
        self.path = pathlib.Path(path).expanduser()
        held = [name for name in _FILES if (self.path / name).exists()]
        if held and not overwrite:
            raise RunDirectoryError(
                f"`output_dir` must not hold another run; {self.path} has "
                f"{', '.join(reversed(held))}. Choose another --output_dir, or replace that run "
                "with --overwrite."
            )
        # A file is written where the directory will be made, to find out before a run costs time
        # whether that works. Nothing is left there.
        existing = next(
            parent for parent in (self.path, *self.path.absolute().parents) if parent.exists()
        )
        try:
            tempfile.TemporaryFile(dir=existing).close()
        except OSError as error:
            raise RunDirectoryError(
                f"`output_dir` must be a directory that can be written; {existing} is not "
                f"({error.strerror}). Choose another --output_dir."
            ) from error
        self._metrics = None

    def start(self, config: dict[str, Any], partition: Partition) -> None:
        """Removes the files of an earlier run, and writes the configuration and the partition."""
        self.path.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            (self.path / name).unlink(missing_ok=True)
        self._write_json("config.json", config)
        partition.save(self.path / "partition.npz")
        self._metrics = open(self.path / "metrics.jsonl", "w", encoding="utf-8")

    def add_round(self, record: dict[str, Any]) -> None:
        """Appends a line to metrics.jsonl and flushes it, so that others can read it."""
        self._metrics.write(json.dumps(record) + "\n")
        self._metrics.flush()

    def finish(
        self,
        summary: dict[str, Any],
        evaluations: dict[str, Evaluation],
        data: ClientData,
        server_state: Structure,
        new_clients: Sequence[Evaluation] = (),
    ) -> None:
        """Writes the files of a finished run; the last is summary.json, which marks a whole run.

        Args:
          summary: What `training.summarize` returns.
          evaluations: What `Simulation.evaluate_all` returns.
          data: The clients' data.
          server_state: The server's state.
          new_clients: The evaluations of clients that never took part, after 0, 1, .. epochs of
            their own training. Their ids follow those of `data`.
        """
        self._metrics.close()
        first = next(iter(evaluations.values()))
        classes = data.classes
        columns = {
            "client": range(data.num_clients),
            "train_examples": first.train_examples,
            "test_examples": first.test_examples,
            "num_classes": [len(own) for own in classes],
            "classes": [" ".join(map(str, own)) for own in classes],
        }
        for position, (name, evaluation) in enumerate(evaluations.items()):
            prefix = f"{name}/" if position else ""
            accuracy = evaluation.test_hits / evaluation.test_examples
            columns[f"{prefix}train_loss"] = [f"{loss:.6g}" for loss in evaluation.train_loss]
            columns[f"{prefix}test_accuracy"] = [f"{share:.6g}" for share in accuracy]
        self._write_csv("clients.csv", columns, zip(*columns.values(), strict=True))
        arrays = {name: np.asarray(leaf) for name, leaf in nests.named(server_state).items()}
        np.savez(self.path / "server.npz", **arrays)
        if new_clients:
            columns = ("epoch", "client", "train_examples", "test_examples", "test_accuracy")
            rows = [
                (epoch, data.num_clients + k, train, test, f"{hits / test:.6g}")
                for epoch, found in enumerate(new_clients)
                for k, (train, hits, test) in enumerate(zip(*found[1:], strict=True))
            ]
            self._write_csv("new_clients.csv", columns, rows)
        self._write_json("summary.json", summary)

    def _write_csv(self, name, columns, rows):
        with open(self.path / name, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(rows)

    def _write_json(self, name, content):
        partial = self.path / f".{name}.partial"
        partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        os.replace(partial, self.path / name)


def source_commit(package: pathlib.Path = pathlib.Path(__file__).parents[1]) -> str | None:
    """Returns the commit of a package's source tree, or None if git has none.

    If the package differs from its commit, "+changes" is appended. Files outside the package, such
    as results, do not count, since they do not change the program. A repository that merely
    surrounds the package is not its source tree; for example, the package may be installed into an
    environment that lies in the repository of another project.
    """

    def git(*arguments):
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if not git("ls-files", "--", "."):
            return None
        return git("rev-parse", "--short=12", "HEAD") + (
            "+changes" if git("status", "--porcelain", "--", ".") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return None
