"""The directory of a client on its own machine: everything for continuing after any end.

  definition.json    what the client was told to expect
  client.json        its name, and what was agreed to that it sends
  examples.npz       a copy of its examples, so that they stay the same over the run
  network.keras      a copy of its network, if the definition names a file; features of its frozen
                     part are in features
  state-N.npz        its state with the number N, which the server gave it
  served.npz         what it was last tested with of the server's state, for an export without it
  socket, .lock      while it runs

A file is whole or absent, and on the disk before the server learns of it.
"""

import contextlib
import math
import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tf_pflego.devices import messages
from tf_pflego.devices.definition import NETWORK, Definition
from tf_pflego.models import networks
from tf_pflego.runs.reader import CLIENT
from tf_pflego.system import durable, limited_files, texts, values
from tf_pflego.system.lock import DirectoryLock, InUseError

SOCKET = "socket"
MOST_STATES = 100  # that a client keeps, whatever it is asked
_DEFINITION, _EXAMPLES, _SERVED = "definition.json", "examples.npz", "served.npz"
_BASE = "base"  # of a state: the number of the one that it came out of
_PARTIAL = re.compile(
    r"\.(definition\.json|client\.json|examples\.npz|network\.keras|served\.npz|state-\d+\.npz)\.partial"
)
_STATE = re.compile(r"state-([1-9][0-9]{0,17})\.npz")


class JournalError(RuntimeError):
    """A client's directory is invalid; the message contains the remedy."""


class Journal:
    """A client's directory; `locked` returns a directory that only this process writes to."""

    def __init__(self, path: str | os.PathLike):
        self.path = pathlib.Path(values.path("state_dir", path, may_be_empty=False)).expanduser()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the directory, only for this user, and locks it against other processes."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.path.stat().st_mode & 0o077:  # The examples will be there.
            raise JournalError(
                f"`state_dir` must be open to you only (mode 700); {self.path} is not. Do `chmod "
                f"700 {self.path}`, or name another."
            )
        try:
            lock = DirectoryLock(self.path)
        except InUseError as error:
            raise JournalError(
                f"`state_dir` must belong to one client; {error} runs a client in {self.path}. "
                "Give each client its own directory, or end that process."
            ) from error
        with lock:
            durable.remove_files(self.path, _PARTIAL)
            yield

    @property
    def is_new(self) -> bool:
        """Whether no client has ever begun here."""
        return not (self.path / CLIENT).exists()

    def begin(
        self,
        definition: Definition,
        name: str,
        arrays: messages.Arrays,
        agreed_to: Sequence[str] = (),
    ) -> None:
        """Stores the client's name and the lines that were agreed to, and copies its examples."""
        definition.save(self.path / _DEFINITION)
        with durable.batch() as files:
            files.npz(self.path / _EXAMPLES, arrays.items())
            files.json(self.path / CLIENT, {"name": name, "agreed_to": list(agreed_to)})

    def definition(self) -> Definition:
        """Returns the federation's definition."""
        return Definition.load(self.path / _DEFINITION)

    def keep_network(self, path: str | os.PathLike) -> None:
        """Copies the network of a client that begins."""
        content = networks.content_of_file(os.fspath(path))
        with durable.batch() as files, files.open(self.path / NETWORK) as stream:
            stream.write(content)

    @property
    def network(self) -> str:
        """The path of the client's network, or empty if it needs no file."""
        path = self.path / NETWORK
        return str(path) if path.exists() else ""

    @property
    def name(self) -> str:
        """The client's name."""
        with self._reading(CLIENT):
            return limited_files.json_object(self.path / CLIENT)["name"]

    def examples(self) -> messages.Arrays:
        """Returns the arrays of the client's start."""
        return self._arrays(_EXAMPLES)

    def numbers(self) -> list[int]:
        """Returns the numbers of the states that there are, ascending."""
        matches = map(_STATE.fullmatch, os.listdir(self.path))
        return sorted(int(match[1]) for match in matches if match)

    def read(self, number: int, specs: Sequence[Any]) -> list[np.ndarray]:
        """Returns the leaves of a state."""
        return self._leaves(f"state-{number}.npz", "state", specs)

    def write(self, number: int, leaves: Sequence[Any], base: int, oldest: int) -> None:
        """Writes a state that follows the state `base` to the disk, and then removes old states.

        The newest of its earlier states up to `oldest` stays, and all with a number above:
        100 in all at most. That may be of a round that was taken back, but also of one that counts,
        if this request has come late. If the disk is full, it is an OSError, and all is as it was.
        """
        with durable.batch() as files:
            arrays = messages.numbered("state", leaves) | {_BASE: np.asarray(base)}
            files.npz(self.path / f"state-{number}.npz", arrays.items())
        needed = base
        while needed > oldest:
            needed = self._base_of(needed)
        numbers = self.numbers()
        for one in numbers:
            if one < needed or one in numbers[:-MOST_STATES]:
                (self.path / f"state-{one}.npz").unlink()

    def _base_of(self, number):
        """Returns the base of a state; 0 if it is damaged, which keeps all other states."""
        try:
            return int(self._arrays(f"state-{number}.npz")[_BASE])
        except (JournalError, KeyError, TypeError, ValueError):
            return 0

    def serve(self, leaves: Sequence[Any], number: int, round_number: int) -> None:
        """Stores the server's state of the client's last test, beside the client's own state."""
        arrays = messages.numbered("served", leaves)
        arrays["numbers"] = np.array([number, round_number], np.int64)
        with durable.batch() as files:
            files.npz(self.path / _SERVED, arrays.items())

    def served(self, specs: Sequence[Any]) -> tuple[list[np.ndarray], int, int]:
        """Returns the leaves that `serve` has kept, and the state's and the round's numbers."""
        if not (self.path / _SERVED).exists():
            raise JournalError(
                f"`run` must be the directory of a client that has been tested; {self.path} has no "
                f"{_SERVED}. Let the server evaluate it first."
            )
        number, round_number = self._arrays(_SERVED)["numbers"].tolist()
        return self._leaves(_SERVED, "served", specs), number, round_number

    def _leaves(self, name, prefix, specs):
        arrays = self._arrays(name)
        with self._reading(name):
            return messages.leaves(arrays, prefix, specs)

    def _arrays(self, name):
        with self._reading(name):
            return limited_files.arrays(self.path / name, math.inf)

    @contextlib.contextmanager
    def _reading(self, name):
        """Adds the name of the file to an error of any kind."""
        try:
            yield
        except Exception as error:
            raise JournalError(
                f"{name} in {self.path} must be as a client wrote it; it is damaged or missing "
                f"({texts.reason(error)}). Get it from a copy."
            ) from error
