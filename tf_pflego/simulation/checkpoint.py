"""Checkpoints of a simulation: plain arrays and JSON in a directory, which keeps the newest ones.

  checkpoint-ROUND.json   the content of the checkpoint: written last, by a rename
  server-ROUND.npz        the server's state, each leaf by its name, such as `theta/0`
  clients-ROUND.npz       a segment: `ids` [n], and `state/NAME` [n, ...] for each leaf of a state

A checkpoint writes only the states of clients that have changed since the last one. They make a new
segment, and the checkpoint lists all segments, the newest first. The state of a client is in the
first segment with its id. As in a log-structured merge tree, a new segment merges older ones, with
the current states:

* when there are 63 of one level, which makes the number of files grow as the logarithm of the
  number of clients,
* all of them, when they would have more than two rows per client with a state, which makes the
  files take at most about twice the space of the states.

The JSON file has the size and the CRC-32 of each file and of itself. Therefore a checkpoint is
either whole or known to be damaged after any interruption or truncation.

Random draws are pure functions of the seed, the round and the client, and need no record. A client
that has been evaluated but never sampled has no state.
"""

import dataclasses
import json
import os
import pathlib
import re
import zlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.core import nests
from tf_pflego.core.algorithm import num_bytes
from tf_pflego.core.nests import Structure
from tf_pflego.core.settings import named_as_today
from tf_pflego.engines.engine import Engine
from tf_pflego.simulation import checkpoint_checks
from tf_pflego.simulation.checkpoint_checks import DamagedError
from tf_pflego.simulation.records import CHECKPOINT_FILES, LEDGER
from tf_pflego.simulation.trained import Trained
from tf_pflego.system import durable, limited_files, log, rows

_FORMAT = 1
KEPT = 2  # How many checkpoints stay.
_SEGMENTS_PER_LEVEL = 64
_MANIFEST = re.compile(r"checkpoint-(\d+)\.json")


class CheckpointError(ValueError):
    """There is no checkpoint that can be used."""


class _Segment(NamedTuple):
    entry: dict[str, Any]  # the file's name, bytes and CRC-32, and the level
    ids: np.ndarray  # [n] int64


class Checkpoints:
    """The checkpoints of one simulation in one directory, which is made when it is needed.

    The newest `kept` stay.
    """

    def __init__(self, directory: str | os.PathLike, kept: int = KEPT):
        self.directory = pathlib.Path(directory).expanduser()
        self.kept = kept
        self._contents: list[dict[str, Any]] = []  # of the whole checkpoints, the newest last
        self.write_everything_next()

    def write_everything_next(self) -> None:
        """Lets the next checkpoint write all states."""
        self._segments: list[_Segment] = []
        self._commit = 0

    def exist(self) -> bool:
        """Returns whether there are any, whole or damaged."""
        return bool(self._manifests())

    def save(
        self,
        content: dict[str, Any],
        server_state: Structure,
        states: Any,
        also: Iterable[pathlib.Path] = (),
    ) -> None:
        """Writes a checkpoint, then removes files that no remaining checkpoint needs.

        It has `content`, a `round` and other JSON values, and the states. The files `also` must be
        on the disk before it. If it cannot be written, this raises OSError, and the earlier
        checkpoints are as they were.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        number, server = content["round"], nests.named(server_state).items()
        with durable.batch(also) as files:
            arrays = ((name, np.asarray(leaf)) for name, leaf in server)
            entry = self._write(files, "server", number, arrays)
            segments = self._with_new_segment(files, number, states)
            content = {
                "format": _FORMAT,
                **content,
                "server": entry,
                "clients": [segment.entry for segment in segments],
            }
            path = self.directory / f"checkpoint-{number}.json"
            files.json(path, {"crc32": _crc32(content), "content": content})
        self._segments, self._commit = segments, states.num_commits
        # The newest checkpoint is the last round's, also when a simulation has gone back.
        earlier = [before for before in self._contents if before["round"] < number]
        self._contents = [*earlier, content][-self.kept :]
        self._remove_the_rest()

    def newest(self, check: Callable[[dict[str, Any]], None] | None = None) -> dict | None:
        """Returns the content of the newest whole checkpoint, or None if there is none.

        If a newer one is damaged, a line on standard error reports it. If all are damaged, this
        raises `CheckpointError`. `check` raises `DamagedError` if files outside of the checkpoint
        do not fit its content.
        """
        damaged = []
        for path in self._manifests():
            try:
                content = self._verified(path)
                if check is not None:
                    check(content)
            except (DamagedError, OSError) as error:
                damaged.append(f"{path.name}: {error}")
                continue
            if damaged:
                log.warning(
                    f"a checkpoint in {self.directory} is damaged ({'; '.join(damaged)}), and the "
                    f"checkpoint of round {content['round']} is used"
                )
            return content
        if damaged:
            raise CheckpointError(
                f"at least one checkpoint in {self.directory} must be whole; all are damaged "
                f"({'; '.join(damaged)}). Put back a whole copy, or start again in another "
                "directory."
            )
        return None

    def load(
        self,
        content: dict[str, Any],
        server_state: Structure,
        engine: Engine,
        positions: np.ndarray | None = None,
    ) -> Structure:
        """Puts the clients' states of a checkpoint into an engine, and returns the server's.

        If the files do not contain states like these, this raises `CheckpointError` without a
        change. If the checkpoint has other clients, `positions` has for each its number in the
        engine, or -1.
        """
        states, specs = engine.states, nests.named(engine.states.spec)
        num_clients = states.num_clients if positions is None else len(positions)
        spec = {_of_leaf(name): specs[name] for name in states.leaf_names}
        paths = [self.directory / entry["file"] for entry in content["clients"]]
        path = self.directory / content["server"]["file"]
        try:
            server = checkpoint_checks.check_server(path, server_state, num_clients)
            for path in paths:
                for _ in checkpoint_checks.blocks(path, spec, num_clients):
                    pass  # Each is checked when it is read.
        except DamagedError as error:
            raise CheckpointError(
                f"the checkpoint in {self.directory} must contain the state of this simulation; "
                f"{error}. Put back a whole copy, or start again in another directory."
            ) from error
        flat = [tf.constant(server[name]) for name in nests.positions(server_state)]
        states.forget()
        segments = []
        for path, entry in zip(paths, content["clients"], strict=True):
            every = [np.zeros(0, np.int64)]
            for ids, leaves in checkpoint_checks.blocks(path, spec, num_clients):
                every.append(ids)
                numbers = ids if positions is None else positions[ids]
                new = (numbers >= 0) & ~states.have_state(numbers)
                if new.any():
                    nest = tf.nest.pack_sequence_as(states.spec, [leaf[new] for leaf in leaves])
                    engine.write_states(numbers[new], nest)
            segments.append(_Segment(entry, np.concatenate(every)))
        if positions is None:  # What is saved next adds to these files.
            self._segments, self._commit, self._contents = segments, states.num_commits, [content]
        return tf.nest.pack_sequence_as(server_state, flat)

    def _with_new_segment(self, files, round_number, states):
        """Writes the states that have changed, and returns the segments, the newest first."""
        changed = states.written_since(self._commit)
        if not len(changed) or not states.leaf_names:
            return self._segments
        count, level = self._taken_in(len(changed), len(states.written_since(0)))
        merged, older = self._segments[:count], self._segments[count:]
        ids = np.unique(np.concatenate([changed, *(segment.ids for segment in merged)]))

        def blocks_of(name, spec):
            for block in rows.blocks(len(ids), num_bytes(spec)):
                yield states.named_leaf(ids[block], name)

        def arrays():
            yield "ids", ids
            specs = nests.named(states.spec)
            for name in states.leaf_names:
                spec = specs[name]
                shape, dtype = (len(ids), *spec.shape), np.dtype(spec.dtype.as_numpy_dtype)
                yield _of_leaf(name), durable.Blocks(shape, dtype, blocks_of(name, spec))

        entry = self._write(files, "clients", round_number, arrays())
        return [_Segment({**entry, "level": level}, ids), *older]

    def _taken_in(self, new_rows, num_states):
        """Returns the number of newest segments that a new one merges, and its level.

        The levels of the segments do not fall from the newest to the oldest.
        """
        rows = new_rows + sum(len(segment.ids) for segment in self._segments)
        levels = [segment.entry["level"] for segment in self._segments]
        if rows > 2 * num_states:
            return len(levels), max(levels)
        count = level = 0
        while levels.count(level) >= _SEGMENTS_PER_LEVEL - 1:
            count, level = count + levels.count(level), level + 1
        return count, level

    def _write(self, files, kind, round_number, arrays):
        """Writes an .npz file under a new name, and returns its entry in a checkpoint.

        Only its owner may read it: it has the secret and the participants of a private run.
        """
        name, again = f"{kind}-{round_number}.npz", 0
        while (self.directory / name).exists():
            again += 1
            name = f"{kind}-{round_number}.{again}.npz"
        stream = files.npz(self.directory / name, arrays, 0o600)
        return {"file": name, "bytes": stream.size, "crc32": stream.crc32}

    def _manifests(self):
        """Returns the paths of the JSON files, the newest first."""
        if not self.directory.is_dir():
            return []
        matches = [(_MANIFEST.fullmatch(path.name), path) for path in self.directory.iterdir()]
        numbered = [(int(match[1]), path) for match, path in matches if match]
        return [path for _, path in sorted(numbered, reverse=True)]

    def _verified(self, path):
        """Returns the content of a checkpoint, after a check of all its files."""
        try:
            manifest = json.loads(limited_files.content(path))
            content = manifest["content"]
            whole = manifest["crc32"] == _crc32(content)
        except (ValueError, KeyError, TypeError, RecursionError):
            whole = False
        if not whole:
            raise DamagedError("it has changed since it was written")
        if isinstance(content, dict) and json.dumps(content.get("format")) != str(_FORMAT):
            raise CheckpointError(
                f"{path} must have the format {_FORMAT}; it has {content.get('format')!r:.40}. Use "
                "the version of tf_pflego that wrote it."
            )
        checkpoint_checks.check_content(content, int(path.stem.removeprefix("checkpoint-")))
        for entry in [content["server"], *content["clients"]]:
            file = self.directory / entry["file"]
            checkpoint_checks.check_file(file, entry["bytes"])
            try:
                is_whole = limited_files.crc32_of(file, entry["bytes"]) == entry["crc32"]
            except limited_files.DamagedFileError as error:
                raise DamagedError(f"{file.name} {error}") from error
            if not is_whole:
                raise DamagedError(f"{file.name} has changed since it was written")
        return content

    def _remove_the_rest(self):
        needed = {LEDGER}
        for content in self._contents:
            needed.add(f"checkpoint-{content['round']}.json")
            needed |= {entry["file"] for entry in [content["server"], *content["clients"]]}
        for path in self.directory.iterdir():
            if path.name not in needed and durable.is_plain(path, CHECKPOINT_FILES):
                path.unlink()


def _of_leaf(name):
    return f"state/{name}" if name else "state"


def _crc32(content):
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def identity(simulation: Trained) -> dict[str, Any]:
    """Returns as JSON everything that must be equal in simulations that share checkpoints."""
    drawn = dataclasses.asdict(simulation.participation)
    bounds = drawn["clients_per_round_range"]
    drawn["clients_per_round_range"] = list(bounds) if bounds else None
    return {
        "algorithm": simulation.algorithm.name,
        "seed": simulation.seed,
        "num_clients": simulation.data.num_clients,
        "participation": drawn,
        "server_state": _shapes(simulation._spec),
        "client_state": _shapes(simulation._engine.states.spec),
        "data_crc32": _crc32_of_data(simulation.data),
    } | ({"claim": claim} if (claim := simulation.algorithm.release.claim) else {})


def differences(expected: dict[str, Any], got: dict[str, Any]) -> str:
    """Returns in words how a simulation differs from the expected one, "" if it does not."""
    if isinstance(drawn := got.get("participation"), dict):
        got = got | {"participation": named_as_today(drawn)}
    text = "; ".join(
        f"{key}: expected {_short(value, got.get(key))}, got {_short(got.get(key), value)}"
        for key, value in expected.items()
        # Compared as JSON: 1, 1.0 and True are equal in Python but are different settings.
        if json.dumps(got.get(key), sort_keys=True) != json.dumps(value, sort_keys=True)
    )
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _shapes(spec):
    return {
        name: f"{leaf.dtype.name} {leaf.shape.as_list()}"
        for name, leaf in nests.named(spec).items()
    }


def _short(value, other):
    """Returns a value as text, a dictionary without the entries that the other has."""
    if isinstance(value, dict) and isinstance(other, dict):
        parts = [f"{name} {part}" for name, part in value.items() if other.get(name) != part]
        return ", ".join(parts) or "nothing else"
    return value


def _crc32_of_data(clients):
    """Returns a checksum of the clients' examples, labels and classes."""
    checksum = zlib.crc32(np.ascontiguousarray(clients.num_classes))
    if not np.array_equal(clients.identities, np.arange(clients.num_clients)):
        checksum = zlib.crc32(np.ascontiguousarray(clients.identities), checksum)
    if clients.class_mask:
        checksum = zlib.crc32(np.concatenate(clients.classes), zlib.crc32(b"class_mask", checksum))
    if clients.uniform_weights:
        checksum = zlib.crc32(b"uniform_weights", checksum)
    for split in clients.splits.values():
        for array in (split.offsets, split.labels, split.examples):
            checksum = zlib.crc32(np.ascontiguousarray(array), checksum)
    return checksum
