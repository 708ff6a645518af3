"""Processes on a Ray cluster that hold the shards of federations, one shard each.

Ray is imported here alone. A program that does not use the engine `ray` does not need it.
"""

import atexit
import contextlib
import math
import os

# Of what is lost a run says a line, to which Ray would add its own. It reads this at its import.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")

import functools
import pathlib
import secrets
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray import exceptions
from ray._private import services

from tf_pflego.engines.engine import ShardLostError, WorkerError
from tf_pflego.engines.ray import ray_options
from tf_pflego.engines.ray.host import Host, Opened
from tf_pflego.engines.ray.ray_options import RayOptions
from tf_pflego.system import leftovers, temporary, terminal
from tf_pflego.system.signals import Interrupted

_POLL_SECONDS = 1.0
_SILENT_SECONDS = 10.0  # after which the first node counts as gone
_ATTEMPTS = 3  # to open a federation while hosts end
# A process on a machine that is busy takes as long as this to start.
_PATIENCE_SECONDS = 30.0
_SILENT = {"TF_CPP_MIN_LOG_LEVEL": "3"}
# Those that are open in this process, which has one connection for all of them.
_CLUSTERS: list["RayCluster"] = []
_DIRECTORIES: list[Callable[[], None]] = []  # what removes that of a cluster of its own


class RayCluster:
    """The hosts of `num_shards` shards, for one simulation after the other.

    Args:
      options: The shards, and the cluster that they are on.

    Attributes:
      num_shards: S.

    Raises:
      WorkerError: There is no such cluster, or it cannot be started, or has no place for them.
    """

    def __init__(self, options: RayOptions | None = None):
        self._options = RayOptions() if options is None else options
        self.num_shards = self._options.num_shards
        self._hosts: list[Any] = [None] * self.num_shards
        self._opened: dict[int, Callable[[int], Any]] = {}
        self._last_key = 0
        self._lost = set(range(self.num_shards))
        _connect(self._options.address)
        _CLUSTERS.append(self)
        try:
            self.replace_lost()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "RayCluster":
        return self

    def __exit__(self, *unused):
        self.close()

    def close(self) -> None:
        """Ends the hosts. The last one that is closed leaves the cluster, or ends its own."""
        if self not in _CLUSTERS:
            return
        for host in self._hosts:
            if host is not None and not _first_node.gone:
                ray.kill(host)
        self._hosts = [None] * self.num_shards
        _CLUSTERS.remove(self)
        if not _CLUSTERS:
            _disconnect()

    def open(self, part_of: Callable[[int], Opened]) -> int:
        """Opens a federation on all hosts, and on each that takes a place later.

        Args:
          part_of: (shard) -> what its host is given.

        Returns:
          The key by which calls name the federation.
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

    def has_federations(self) -> bool:
        """Returns whether any is open."""
        return bool(self._opened)

    def close_one(self, key: int) -> None:
        """Lets the hosts forget a federation."""
        self._opened.pop(key, None)
        for shard, host in enumerate(self._hosts):
            if host is not None and not _first_node.gone and shard not in self._lost:
                host.close.remote(key)

    def call(self, shard: int, method: str, *arguments: Any) -> Any:
        """Starts a call of a host's method, which is waited for by `wait`.

        Calls of one host run in the order in which they are started.
        """
        return getattr(self._hosts[shard], method).remote(*arguments)

    def wait(self, calls: Sequence[Any], shards: Sequence[int] | None = None) -> list[Any]:
        """Returns the results of calls, in order.

        Args:
          calls: What `call` has returned.
          shards: The shards that were called; all of them, in order, if this is None.

        Raises:
          ShardLostError: A host has ended.
        """
        shards = range(len(calls)) if shards is None else shards
        lost, results = {}, []
        _first_node.refuse_gone()
        for shard, call in zip(shards, calls, strict=True):
            if shard in self._lost:  # Its call may wait for a place that there never is.
                lost[shard] = "it has not been replaced"
                continue
            try:
                results.append(_result_of(call))
            except exceptions.RayTaskError as error:
                raise _cause_of(error) from error
            except exceptions.RayError as error:
                lost[shard] = type(error).__name__
        if lost:
            self._lost |= lost.keys()
            which = ", ".join(f"{shard} ({why})" for shard, why in lost.items())
            raise ShardLostError(f"the cluster has lost shard {which}")
        return results

    def slow_one(self, calls: Sequence[Any], times: float, seconds: float) -> tuple[int, float]:
        """Waits until at most one of some calls has no result, and for that one for a while.

        Args:
          calls: What `call` has returned.
          times: How many times as long as the others one may take.
          seconds: How long one may take in any case.

        Returns:
          The position of the one that is not done by then, or -1, and the seconds that the others
          have taken.
        """
        started = time.monotonic()
        if len(calls) < 2 or self._lost:
            return -1, 0.0
        left = list(calls)
        while len(left) > 1:  # With a time limit, Ctrl-C is heard.
            _first_node.refuse_gone()
            _, left = ray.wait(left, num_returns=len(left) - 1, timeout=_POLL_SECONDS)
        usual = time.monotonic() - started
        allowed = max(times * usual, seconds) - usual
        if left and not ray.wait(left, timeout=allowed)[0]:
            return list(calls).index(left[0]), usual
        return -1, usual

    def mark_lost(self) -> None:
        """Finds out which hosts have ended, so that `replace_lost` replaces them all."""
        _first_node.wait()
        for shard, host in enumerate(self._hosts):
            try:
                if shard not in self._lost:
                    _result_of(host.is_alive.remote())
            except exceptions.RayError:
                self._lost.add(shard)

    def replace_lost(self) -> None:
        """Starts new hosts in the places of those that have ended, with the same shards' data.

        Raises:
          WorkerError: The cluster had no place for them until the deadline.
        """
        lost = sorted(self._lost)
        _first_node.wait()
        for shard in lost:
            if self._hosts[shard] is not None:
                ray.kill(self._hosts[shard])
            self._hosts[shard] = self._new_host()
        self._wait_for_places({shard: self._hosts[shard].is_alive.remote() for shard in lost})
        # One that has ended already is found by the next call.
        self._lost.clear()
        for key, part_of in self._opened.items():
            calls = [self.call(shard, "open", key, part_of(shard)) for shard in lost]
            self.wait(calls, lost)

    def _new_host(self):
        options = self._options
        wanted, cores = {"num_cpus": 0}, self._shared_cores()
        if options.address:  # On one machine there is nothing to distribute.
            cores = options.cpus_per_shard
            wanted = {
                "num_cpus": options.cpus_per_shard,
                "num_gpus": options.gpus_per_shard,
                "resources": options.named_resources(),
            }
        # A process that Ray restarted would have lost its states, and nobody would know.
        actor = ray.remote(Host).options(
            **wanted, max_restarts=0, runtime_env={"env_vars": _SILENT}
        )
        return actor.remote(cores, options.gpus_per_shard)

    def _shared_cores(self):
        """Returns how many cores a shard may use at once on a machine that has no other.

        It is twice its share, so that shards with more participants use the cores of those that
        have finished.
        """
        cores = os.cpu_count() or 1
        return min(cores, math.ceil(2 * cores / self.num_shards))

    def _wait_for_places(self, calls):
        started, said = time.monotonic(), False
        patience = min(_PATIENCE_SECONDS, self._options.deadline_seconds / 2)
        waiting = dict(calls)
        while waiting:
            _first_node.refuse_gone()
            done, _ = ray.wait(list(waiting.values()), timeout=_POLL_SECONDS)
            for shard in [shard for shard, call in waiting.items() if call in done]:
                _refuse_unfit_node(waiting.pop(shard))
            seconds = time.monotonic() - started
            if waiting and seconds > self._options.deadline_seconds:
                raise WorkerError(
                    f"the cluster has had no place for shards {_names(waiting)} in "
                    f"{seconds:.0f} s. Add nodes to it, or lower `num_shards` or what a shard "
                    "takes (`cpus_per_shard`, `gpus_per_shard`, `shard_resources`)."
                )
            if waiting and not said and seconds > patience:
                terminal.say(
                    f"tf_pflego: waiting for nodes that can take shards {_names(waiting)}, up to "
                    f"{self._options.deadline_seconds:.0f} s"
                )
                said = True


def open_clusters() -> list[RayCluster]:
    """Returns the clusters that are open in this process, the newest last."""
    return list(_CLUSTERS)


def _names(shards):
    return ", ".join(map(str, shards))


def _connect(address):
    """Connects this process to a cluster, unless it is connected already."""
    if _CLUSTERS:
        return
    quiet = {"logging_level": "FATAL", "log_to_driver": False}
    if address and os.environ.get("RAY_AUTH_MODE") != "token":
        terminal.say(
            "tf_pflego: the cluster is used without a token, so that whoever reaches its ports can "
            "run code on it; set RAY_AUTH_MODE=token and RAY_USE_TLS=1 on all nodes"
        )
    try:
        with _own_signals():
            if address:
                # Ray would try for two minutes to reach an address where nothing answers.
                found = services.canonicalize_bootstrap_address(address) or ""
                ray_options.refuse_unreachable(found)
                ray.init(address=address, **quiet)
                _first_node.address = found
            else:
                # Without `local` it would join a cluster that somebody has started here.
                _make_token()
                own = {"_temp_dir": _own_directory(), "include_dashboard": False}
                ray.init(address="local", **own, **quiet)
                _first_node.address = ""
    except WorkerError:
        raise
    except SystemExit:  # That is Ray's answer to a signal which came while it started.
        _disconnect()
        signal.raise_signal(signal.SIGTERM)
        raise Interrupted from None
    except (ConnectionError, ValueError, RuntimeError, OSError, exceptions.RayError) as error:
        _disconnect()
        raise ray_options.no_cluster(address, " ".join(str(error).split())[:300]) from error
    except BaseException:
        _disconnect()
        raise


def _make_token():
    """Makes the token without which Ray lets nobody use a cluster of its own.

    Ray would leave one in a file in the home directory, which others on the machine may be able to
    read.
    """
    in_home = pathlib.Path.home() / ".ray" / "auth_token"
    given = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if not given and not in_home.exists():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _disconnect():
    """Leaves the cluster, and ends it and removes its files if it is one of its own."""
    if _first_node.gone:  # It would wait for an answer, and so would Ray's own call at the end.
        atexit.unregister(ray.shutdown)
    else:
        ray.shutdown()
    while _DIRECTORIES:
        remove = _DIRECTORIES.pop()
        remove()
        leftovers.forget(remove)


def _own_directory():
    """Makes the directory in which a cluster of its own has its sockets and logs.

    Ray lets everybody write to it and to those below (mode 0777). It is in one of mode 0700, by
    which nobody else passes.
    """
    # The path of a socket has 107 bytes at most, of which Ray takes 64 and a process id.
    path = temporary.make_directory("/tmp")
    remove = functools.partial(temporary.remove_directory, path)
    leftovers.add(remove)
    _DIRECTORIES.append(remove)
    return os.path.join(path, "r")


def _refuse_unfit_node(call):
    """Raises WorkerError if a host could not begin; one that has ended since is another matter."""
    try:
        _result_of(call)
    except exceptions.ActorDiedError as error:
        if getattr(error, "_actor_init_failed", False):
            *_, reason = [line for line in str(error).splitlines() if line.strip()]
            raise WorkerError(
                f"a node must be able to hold a shard; one cannot ({reason.strip()[:300]}). Give "
                "all nodes the same versions of Python, TensorFlow and this package."
            ) from error
    except exceptions.RayError:
        pass


def _cause_of(error):
    """Returns what a host has raised, as it would have come up in this process."""
    return error.cause if isinstance(error.cause, Exception) else error


@contextlib.contextmanager
def _own_signals():
    """Keeps this process's answers to signals, in whose place Ray puts others."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in signals}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if handler is not None:
                signal.signal(number, handler)


def _result_of(call):
    while True:  # With a time limit, Ctrl-C is heard.
        try:
            return ray.get(call, timeout=_POLL_SECONDS)
        except exceptions.GetTimeoutError:
            _first_node.refuse_gone()


class _FirstNode:
    """The node with which a cluster ends.

    Ray ends this process without a word a minute after that node is gone.
    """

    def __init__(self):
        self.address = ""
        self.gone = False
        self._heard = self._asked = 0.0

    def refuse_gone(self) -> None:
        """Raises WorkerError if the node has not answered for some seconds."""
        now = time.monotonic()
        if now - self._asked < _POLL_SECONDS and not self.gone:
            return
        if now - self._asked > _SILENT_SECONDS:  # Nobody has asked for so long.
            self._heard = now
        self._asked = now
        try:
            if not self.gone:
                ray_options.refuse_unreachable(self.address)
                self._heard = now
        except WorkerError:
            self.gone = now - self._heard > _SILENT_SECONDS
        if self.gone:
            raise WorkerError(
                f"the first node of the cluster, {self.address}, does not answer any more, and the "
                "cluster has ended with it. Start the cluster again, and go on with `resume=True`."
            )

    def wait(self) -> None:
        """Waits until the node answers, before a call of Ray that would wait for it in silence."""
        started = time.monotonic()
        while not self.gone:
            try:
                ray_options.refuse_unreachable(self.address)
                return
            except WorkerError:
                self.gone = time.monotonic() - started > _SILENT_SECONDS
                time.sleep(_POLL_SECONDS)
        self.refuse_gone()


_first_node = _FirstNode()
