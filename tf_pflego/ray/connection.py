"""This process's connection to a Ray cluster: its token, its directory, and its first node."""

import atexit
import contextlib
import functools
import os
import pathlib
import secrets
import signal
import threading
import time
from typing import Any

import ray
from ray import exceptions
from ray._private import services

from tf_pflego.engines.engine import WorkerError
from tf_pflego.ray.options import no_cluster, refuse_unreachable
from tf_pflego.system import leftovers, log, temporary
from tf_pflego.system.signals import Interrupted

POLL_SECONDS = 1.0
_SILENT_SECONDS = 10.0  # after which the first node counts as gone
_own_files = contextlib.ExitStack()  # of a cluster of its own, as long as it lasts


def connect(address: str) -> None:
    """Connects this process to a cluster, or starts one of its own."""
    quiet: dict[str, Any] = {"logging_level": "FATAL", "log_to_driver": False}
    if address and os.environ.get("RAY_AUTH_MODE") != "token":
        log.warning(
            "the cluster is used without a token, so that whoever reaches its ports can "
            "run code on it; set RAY_AUTH_MODE=token and RAY_USE_TLS=1 on all nodes"
        )
    try:
        with _own_signals():
            if address:
                # Ray would try for two minutes to reach an address where nothing answers.
                resolved = services.canonicalize_bootstrap_address(address) or ""
                refuse_unreachable(resolved)
                ray.init(address=address, **quiet)
                first_node.address = resolved
            else:
                # Without `local` it would join a cluster that somebody has started here.
                _make_token()
                places: dict[str, Any] = {"_temp_dir": _own_directory(), "include_dashboard": False}
                ray.init(address="local", **places, **quiet)
                first_node.address = ""
    except WorkerError:
        raise
    except SystemExit:  # That is Ray's answer to a signal which came while it started.
        disconnect()
        signal.raise_signal(signal.SIGTERM)
        raise Interrupted from None
    except (ConnectionError, ValueError, RuntimeError, OSError, exceptions.RayError) as error:
        disconnect()
        raise no_cluster(address, " ".join(str(error).split())[:300]) from error
    except BaseException:
        disconnect()
        raise


def _make_token():
    """Makes the token of a cluster of its own, which Ray would leave in a file others may read."""
    in_home = pathlib.Path.home() / ".ray" / "auth_token"
    has_one = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if not has_one and not in_home.exists():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def disconnect() -> None:
    """Leaves the cluster, and ends it and removes its files if it is one of its own."""
    if first_node.gone:  # It would wait for an answer, and so would Ray's own call at the end.
        atexit.unregister(ray.shutdown)
    else:
        ray.shutdown()
    _own_files.close()


def _own_directory():
    """Returns the directory in which a cluster of its own has its sockets and logs."""
    # The path of a socket has 107 bytes at most, of which Ray takes 64 and a process id.
    path = temporary.make_directory("/tmp")
    removal = functools.partial(temporary.remove_directory, path)
    leftovers.add(removal)
    _own_files.callback(leftovers.forget, removal)
    _own_files.callback(removal)
    # Ray opens its own to everybody (mode 0777); nobody else passes the one around it (mode 0700).
    return os.path.join(path, "r")


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


def result_of(call: Any) -> Any:
    """Returns what a call returns; raises WorkerError if the cluster has ended."""
    while True:  # With a time limit, Ctrl-C is heard.
        try:
            return ray.get(call, timeout=POLL_SECONDS)
        except exceptions.GetTimeoutError:
            first_node.refuse_gone()


class _FirstNode:
    """The node with which a cluster ends; Ray ends this process a minute later, without a word."""

    def __init__(self):
        self.address = ""
        self.gone = False
        self._heard = self._asked = 0.0

    def refuse_gone(self) -> None:
        """Raises WorkerError if the node has not answered for some seconds."""
        now = time.monotonic()
        if now - self._asked < POLL_SECONDS and not self.gone:
            return
        if now - self._asked > _SILENT_SECONDS:  # Nobody has asked for so long.
            self._heard = now
        self._asked = now
        try:
            if not self.gone:
                refuse_unreachable(self.address)
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
                refuse_unreachable(self.address)
                return
            except WorkerError:
                self.gone = time.monotonic() - started > _SILENT_SECONDS
                time.sleep(POLL_SECONDS)
        self.refuse_gone()


first_node = _FirstNode()
