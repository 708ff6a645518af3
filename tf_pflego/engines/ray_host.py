"""A process of a Ray cluster that holds shards: clients' data and states, and runs their part.

It runs the engine `in_process` on its own clients. A call names a federation by its key, and the
clients by their numbers in the shard.
"""

import os
import time
import zlib
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.core import origins
from tf_pflego.core.algorithm import Algorithm
from tf_pflego.core.nests import Structure
from tf_pflego.data.clients import ClientData, Origin
from tf_pflego.engines.engine import Cohort, Outcome, Statistics
from tf_pflego.engines.in_process import InProcessEngine


class Opened(NamedTuple):
    """What a host is given of a federation."""

    algorithm: Algorithm
    clients: ClientData | Origin  # of the shard: the data, or where to load them
    all_examples: int  # training examples of all clients of the federation
    checksum: int  # of the shard's labels, as `checksum_of` gives it
    server_state: Structure
    seed: int


class Host:
    """An actor with one shard of each federation that is open.

    Args:
      cpus: Its cores. Operations take one thread each, so that the bits of a result do not depend
        on how many cores there are.
      gpus: Its GPUs; without any it uses none.
    """

    def __init__(self, cpus: float, gpus: float):
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(max(1, int(cpus)))
        if not gpus:
            tf.config.set_visible_devices([], "GPU")
        tf.get_logger().setLevel("ERROR")
        self._engines: dict[int, InProcessEngine] = {}

    def is_alive(self) -> bool:
        """Returns that it runs."""
        return True

    def process_id(self) -> int:
        """Returns the number of its process, by which a test of failures ends it."""
        return os.getpid()

    @origins.marked
    def open(self, key: int, opened: Opened) -> None:
        """Takes a shard of a federation.

        Raises:
          ValueError: The data on this machine cannot be loaded, or are not those of the run.
        """
        clients = opened.clients
        if isinstance(clients, Origin):
            try:
                clients = clients.load().shard(clients.clients, opened.all_examples)
            except (ValueError, OSError) as error:
                raise ValueError(
                    f"{os.uname().nodename} must have the data of the run, as every node; {error}"
                ) from error
        if checksum_of(clients) != opened.checksum:
            raise ValueError(
                f"the data of {clients.dataset} on {os.uname().nodename} must be those of the run; "
                "their labels differ. Give all nodes the same data directory."
            )
        self._engines[key] = InProcessEngine(
            opened.algorithm, clients, opened.server_state, opened.seed
        )

    def close(self, key: int) -> None:
        """Frees the shard."""
        engine = self._engines.pop(key, None)
        if engine is not None:
            engine.close()

    @origins.marked
    def run_exchange(
        self,
        key: int,
        position: int,
        message: Structure,
        cohort: Cohort,
        server_state: Structure | None,
        round_: Structure,
        evaluate: bool,
    ) -> tuple[Outcome, float]:
        """Runs an exchange at participants of this shard.

        Args:
          key: The federation.
          position: Of the exchange in the round.
          message: What the server sends to all.
          cohort: The participants in this shard.
          server_state: The server's state; None if none of them starts from it.
          round_: The round.
          evaluate: As in `Engine.run_exchange`.

        Returns:
          The outcome, as arrays, and the seconds that it took.
        """
        started = time.perf_counter()
        engine = self._engines[key]
        exchange = engine.algorithm.exchanges[position]
        outcome = engine.run_exchange(exchange, message, cohort, server_state, round_, evaluate)
        outcome = outcome._replace(
            summed=tf.nest.map_structure(np.asarray, outcome.summed),
            individual=tf.nest.map_structure(np.asarray, outcome.individual),
        )
        return outcome, time.perf_counter() - started

    @origins.marked
    def commit(self, key: int) -> None:
        """See `Engine.commit`."""
        self._engines[key].commit()

    def roll_back(self, key: int) -> None:
        """See `Engine.roll_back`."""
        self._engines[key].roll_back()

    @origins.marked
    def evaluate(
        self, key: int, ids: np.ndarray, seeds: np.ndarray, server_state: Structure, losses: bool
    ) -> dict[str, Statistics]:
        """See `Engine.evaluate`."""
        return self._engines[key].evaluate(ids, seeds, server_state, losses)

    @origins.marked
    def read_states(self, key: int, ids: np.ndarray, server_state: Structure) -> Structure:
        """See `Engine.read_states`."""
        return self._engines[key].read_states(ids, server_state)

    @origins.marked
    def write_states(self, key: int, ids: np.ndarray, states: Structure) -> None:
        """See `Engine.write_states`."""
        self._engines[key].write_states(ids, states)

    @origins.marked
    def named_leaf(self, key: int, ids: np.ndarray, name: str) -> np.ndarray:
        """See `ClientStates.named_leaf`."""
        return self._engines[key].states.named_leaf(name, ids)

    @origins.marked
    def set_named(self, key: int, ids: np.ndarray, leaves: dict[str, np.ndarray]) -> None:
        """See `ClientStates.set_named`."""
        self._engines[key].states.set_named(ids, leaves)

    @origins.marked
    def forget(self, key: int) -> None:
        """Leaves all its clients without a state, and nothing staged."""
        engine = self._engines[key]
        engine.roll_back()
        engine.states.forget()


def checksum_of(clients: ClientData) -> int:
    """Returns a number by which the data of some clients are told from others."""
    found = 0
    for split in (clients.train, clients.test):
        found = zlib.crc32(np.ascontiguousarray(split.sizes), found)
        found = zlib.crc32(np.ascontiguousarray(split.labels), found)
    return found
