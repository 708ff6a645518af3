"""The ledger of a private simulation: a file with its checkpoints that lists all its releases.

A line has the number of a round and a digest of the server's state that follows from its sums. It
is on the disk before anything of the round is sent, and stays: a simulation that continues from an
older checkpoint with other participants releases another sum, and both are counted. A simulation
that computes the same sum again releases no new information.
"""

import hashlib
import pathlib
import re
from typing import Any

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Algorithm
from tf_pflego.core.nests import Structure
from tf_pflego.simulation.records import LEDGER
from tf_pflego.system import durable, limited_files

_LINE = re.compile(r"(\d{1,9}) ([0-9a-f]{32})")


class Ledger:
    """The releases of a simulation's `algorithm`. An algorithm that is not private has none."""

    def __init__(self, algorithm: Algorithm):
        self._algorithm = algorithm
        self._released: dict[tuple[int, str], None] = {}
        self._places: set[pathlib.Path] = set()

    def keep_in(self, directory: pathlib.Path) -> None:
        """Adopts the count in a directory of checkpoints, and counts there from now on."""
        place = directory / LEDGER
        if self._algorithm.release.claim is None or place in self._places:
            return
        try:
            text = limited_files.content(place).decode(errors="replace")
        except FileNotFoundError:
            text = ""
        there = {(int(number), digest): None for number, digest in _LINE.findall(text)}
        is_new = bool(self._released.keys() - there.keys())
        self._released |= there
        self._places.add(place)
        if is_new:
            self._write()

    def more(self, number: int) -> int:
        """Returns the number of releases in addition to the rounds up to a number, each once."""
        with_line = {one for one, _ in self._released if one <= number}
        return len(self._released) - len(with_line)

    def count(self, number: int, server_state: Structure) -> dict[str, Any]:
        """Counts a round's releases, and returns the metrics of privacy that they change.

        Without a directory there is no checkpoint to return to, and the count is empty.
        """
        if not self._places:
            return {}
        leaves = tf.nest.flatten(self._algorithm.published(server_state))
        digest = hashlib.blake2b(digest_size=16)
        for leaf in leaves:
            digest.update(np.asarray(leaf).tobytes())
        self._released[number, digest.hexdigest()] = None
        self._write()
        more = self.more(number)
        if not more:
            return {}
        first, *others = server_state.wrapper
        first = first._replace(releases=first.releases + more * len(server_state.wrapper))
        counted = server_state._replace(wrapper=(first, *others))
        return dict(self._algorithm.measures(counted))

    def _write(self):
        text = "".join(f"{number} {digest}\n" for number, digest in self._released)
        for place in self._places:
            with durable.batch() as files, files.open(place, 0o600) as stream:
                stream.write(text.encode())
