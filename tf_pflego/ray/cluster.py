"""Processes on a Ray cluster for the shards of federations, one shard each.

A program that does not use the engine `ray` does not need Ray.
"""

import contextlib
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray import exceptions

from tf_pflego.core.algorithm import Algorithm
from tf_pflego.core.nests import Structure
from tf_pflego.data.clients import ClientData
from tf_pflego.engines.engine import ShardLostError, WorkerError
from tf_pflego.ray.connection import POLL_SECONDS, connect, result_of
from tf_pflego.ray.host import Host, Opened
from tf_pflego.ray.options import RayOptions, refuse_empty_shards
from tf_pflego.ray.ray_engine import RayEngine
from tf_pflego.system import log

_ATTEMPTS = 3  # to open a federation while hosts end
# A process on a machine that is busy takes as long as this to start.
_PATIENCE_SECONDS = 30.0
_SILENT = {"TF_CPP_MIN_LOG_LEVEL": "3"}
# Those that are open in this process, the newest last; it has one connection for all of them.
OPEN_CLUSTERS: list["RayCluster"] = []


class RayCluster(contextlib.AbstractContextManager):
    """The hosts of `num_shards` shards, for one simulation after the other.

    There may be no such cluster, or it cannot be started, or has no place: then it is a
    `WorkerError`. With `closes_when_idle`, it closes when its last federation does.
    """

    def __init__(self, options: RayOptions, closes_when_idle: bool = False):
        self._options = options
        self._closes_when_idle = closes_when_idle
        self.num_shards, self.compiles = options.num_shards, options.compiles
        self._hosts: list[Any] = [None] * self.num_shards
        self._opened: dict[int, Callable[[int], Any]] = {}
        self._last_key = 0
        self._lost = set(range(self.num_shards))
        if not OPEN_CLUSTERS:
            connect(options.address)
        OPEN_CLUSTERS.append(self)
        try:
            self.replace_lost()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *unused):
        self.close()

    def close(self) -> None:
        """Ends the hosts. The last one that is closed leaves the cluster, or ends its own."""
        if self not in OPEN_CLUSTERS:
            return
        for host in self._hosts:
            if host is not None:
                ray.kill(host)
        self._hosts = [None] * self.num_shards
        OPEN_CLUSTERS.remove(self)
        if not OPEN_CLUSTERS:
            ray.shutdown()

    def engine(
        self, algorithm: Algorithm, clients: ClientData, server_state: Structure, seed: int
    ) -> RayEngine:
        """Returns the engine of a federation, which is open on all hosts."""
        try:
            refuse_empty_shards(self.num_shards, clients.num_clients)
            return RayEngine(algorithm, clients, server_state, seed, self)
        except BaseException:
            self.close_if_idle()
            raise

    def open(self, part_of: Callable[[int], Opened]) -> int:
        """Opens a federation on all hosts, and on each that takes a place later.

        `part_of` returns the arguments of a shard's host. Calls name the federation by the returned
        key.
        """
        self._last_key += 1
        key = self._last_key
        self._opened[key] = part_of
        shards = range(self.num_shards)
        try:
            for attempt in range(_ATTEMPTS):
                try:
                    if not attempt:
                        calls = [self.call(shard, "open", key, part_of(shard)) for shard in shards]
                        self.wait(calls)
                    else:
                        self.mark_lost()
                        self.replace_lost()
                    return key
                except ShardLostError as error:
                    lost = error
            raise lost
        except BaseException:
            self.close_one(key)
            raise

    def close_one(self, key: int) -> None:
        """Lets the hosts forget a federation."""
        self._opened.pop(key, None)
        for shard, host in enumerate(self._hosts):
            if host is not None and shard not in self._lost:
                host.close.remote(key)
        self.close_if_idle()

    def close_if_idle(self) -> None:
        """Closes a cluster that closes with its last federation, if none is open."""
        if self._closes_when_idle and not self._opened:
            self.close()

    def call(self, shard: int, method: str, *arguments: Any) -> Any:
        """Starts a call of a host's method, after the host's earlier calls, and returns at once."""
        return getattr(self._hosts[shard], method).remote(*arguments)

    def wait(self, calls: Sequence[Any], shards: Sequence[int] | None = None) -> list[Any]:
        """Returns the results of calls of these shards, or of all; raises ShardLostError."""
        shards = range(len(calls)) if shards is None else shards
        lost, results = {}, []
        for shard, call in zip(shards, calls, strict=True):
            if shard in self._lost:  # Its call may wait for a place that there never is.
                lost[shard] = "it has not been replaced"
                continue
            try:
                results.append(result_of(call))
            except exceptions.RayTaskError as error:
                # A host's error comes up as if this process had raised it.
                raise (error.cause if isinstance(error.cause, Exception) else error) from error
            except exceptions.RayError as error:
                lost[shard] = type(error).__name__
        if lost:
            self._lost |= lost.keys()
            which = ", ".join(f"{shard} ({why})" for shard, why in lost.items())
            raise ShardLostError(f"the cluster has lost shard {which}")
        return results

    def mark_lost(self) -> None:
        """Finds out which hosts have ended, so that `replace_lost` replaces them all."""
        for shard, host in enumerate(self._hosts):
            try:
                if shard not in self._lost:
                    result_of(host.process_id.remote())
            except exceptions.RayError:
                self._lost.add(shard)

    def replace_lost(self) -> None:
        """Starts new hosts in the places of those that have ended, with the same shards' data."""
        lost = sorted(self._lost)
        for shard in lost:
            if self._hosts[shard] is not None:
                ray.kill(self._hosts[shard])
            self._hosts[shard] = self._new_host()
        self._wait_for_places({shard: self._hosts[shard].process_id.remote() for shard in lost})
        # One that has ended already is found by the next call.
        self._lost.clear()
        for key, part_of in self._opened.items():
            calls = [self.call(shard, "open", key, part_of(shard)) for shard in lost]
            self.wait(calls, lost)

    def _new_host(self):
        options, of_machine = self._options, os.cpu_count() or 1
        # Twice its share: shards with more participants use the cores of those that have finished.
        cores: float = min(of_machine, math.ceil(2 * of_machine / self.num_shards))
        wanted: dict[str, Any] = {"num_cpus": 0}
        if options.address:  # On one machine there is nothing to distribute.
            cores = options.cpus_per_shard
            wanted = {"num_cpus": options.cpus_per_shard, "num_gpus": options.gpus_per_shard}
        # A process that Ray restarted would have lost its states, and nobody would know.
        actor = ray.remote(Host).options(
            **wanted, max_restarts=0, runtime_env={"env_vars": _SILENT}
        )
        return actor.remote(cores, options.gpus_per_shard)

    def _wait_for_places(self, calls):
        started, said = time.monotonic(), False
        patience = min(_PATIENCE_SECONDS, self._options.node_timeout / 2)
        waiting = dict(calls)
        while waiting:
            names = ", ".join(map(str, waiting))
            done, _ = ray.wait(list(waiting.values()), timeout=POLL_SECONDS)
            for shard in [shard for shard, call in waiting.items() if call in done]:
                _refuse_unfit_node(waiting.pop(shard))
            seconds = time.monotonic() - started
            if waiting and seconds > self._options.node_timeout:
                raise WorkerError(
                    f"the cluster has had no place for shards {names} in "
                    f"{seconds:.0f} s. Add nodes to it, or lower `num_shards`, `cpus_per_shard` or "
                    "`gpus_per_shard`."
                )
            if waiting and not said and seconds > patience:
                log.warning(
                    f"waiting for nodes that can take shards {names}, up to "
                    f"{self._options.node_timeout:.0f} s"
                )
                said = True


def _refuse_unfit_node(call):
    """Raises WorkerError if a host could not begin. A host that has ended since is another case."""
    try:
        result_of(call)
    except exceptions.ActorDiedError as error:
        if getattr(error, "_actor_init_failed", False):
            *_, reason = [line for line in str(error).splitlines() if line.strip()]
            raise WorkerError(
                f"a node must be able to run a shard; one cannot ({reason.strip()[:300]}). Give "
                "all nodes the same versions of Python, TensorFlow and this package."
            ) from error
    except exceptions.RayError:
        pass
