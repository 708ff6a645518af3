"""A process of a Ray cluster for shards: it stores clients' data and states, and runs them.

It runs the engine `in_process` on its own clients. A call names a federation by its key, and the
clients by their numbers in the shard.
"""

import operator
import os
import time
import zlib
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Algorithm
from tf_pflego.core.nests import Structure
from tf_pflego.data.clients import ClientData, Origin
from tf_pflego.engines.in_process import InProcessEngine
from tf_pflego.system import errors


class Opened(NamedTuple):
    """The part of a federation that a host is given."""

    algorithm: Algorithm
    clients: ClientData | Origin  # of the shard: the data, or where to load them
    all_examples: int | None  # training examples of all clients of the federation
    checksum: int  # of the shard's labels, as `checksum_of` gives it
    server_state: Structure
    seed: int
    compiles: bool  # see `InProcess`


class Call(NamedTuple):
    """A call of a method. Ray takes its time for each argument: this is one."""

    key: int  # of the federation
    keep: bool | None  # whether to keep what is staged; None to leave it staged
    method: str  # such as `evaluate` or `states.named_leaf`
    arguments: tuple  # what the method takes besides the key and what the shards share


class Host:
    """An actor with one shard of each open federation, and its cores and GPUs."""

    def __init__(self, cpus: float, gpus: float):
        # So that the bits of a result do not depend on how many cores there are.
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(max(1, int(cpus)))
        if not gpus:
            tf.config.set_visible_devices([], "GPU")
        tf.get_logger().setLevel("ERROR")
        self._engines: dict[int, InProcessEngine] = {}
        self._server_states: dict[int, Structure] = {}  # the first ones

    def process_id(self) -> int:
        """Returns the number of its process, as a sign that it runs."""
        return os.getpid()

    @errors.marked
    def open(self, key: int, opened: Opened) -> None:
        """Takes a shard of a federation. Missing or different data are an error."""
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
                f"the data of {clients.dataset} on {os.uname().nodename} must be the run's; "
                "their labels differ. Give all nodes the same data directory."
            )
        self._engines[key] = InProcessEngine(
            opened.algorithm, clients, opened.server_state, opened.seed, opened.compiles
        )
        self._server_states[key] = opened.server_state

    def close(self, key: int) -> None:
        """Frees the shard."""
        self._server_states.pop(key, None)
        if key in self._engines:
            self._engines.pop(key).close()

    @errors.marked
    def settle_and_call(self, call: Call, *shared: Any) -> Any:
        """Settles staged results, and calls a method; all shards share its last arguments."""
        if call.keep is not None:
            engine = self._engines[call.key]
            settle = engine.commit if call.keep else engine.roll_back
            settle()
        if hasattr(self, call.method):
            return getattr(self, call.method)(call.key, *call.arguments, *shared)
        method = operator.attrgetter(call.method)(self._engines[call.key])
        return method(*call.arguments, *shared)

    def run_exchange(self, key, position, cohort, round_, evaluate, message, start):
        """Runs the exchange at this position of the round at participants of this shard.

        `start` has the leaves of the server's state for first states, and None for the rest. It is
        None if no participant is new. It returns the outcome, as arrays, and the seconds that it
        took.
        """
        started = time.perf_counter()
        engine = self._engines[key]
        exchange = engine.algorithm.exchanges[position]
        server_state = None if start is None else self._server_state_with(key, start)
        outcome = engine.run_exchange(exchange, message, cohort, server_state, round_, evaluate)
        outcome = outcome._replace(
            summed=tf.nest.map_structure(np.asarray, outcome.summed),
            individual=tf.nest.map_structure(np.asarray, outcome.individual),
        )
        return outcome, time.perf_counter() - started

    def _server_state_with(self, key, leaves):
        """Returns the server's state of these leaves. Missing leaves are never read."""
        first = self._server_states[key]
        pairs = zip(tf.nest.flatten(first), leaves, strict=True)
        return tf.nest.pack_sequence_as(first, [a if b is None else b for a, b in pairs])


def checksum_of(clients: ClientData) -> int:
    """Returns a number that distinguishes the data of some clients from other data."""
    checksum = 0
    for split in clients.splits.values():
        for array in (split.sizes, split.labels):
            checksum = zlib.crc32(np.ascontiguousarray(array), checksum)
    return checksum
