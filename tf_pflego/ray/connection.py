"""This process's connection to a Ray cluster."""

import contextlib
import os
import secrets
import signal
import threading
from typing import Any

import ray
from ray import exceptions

from tf_pflego.engines.engine import WorkerError
from tf_pflego.ray.options import no_cluster, refuse_unreachable
from tf_pflego.system import log
from tf_pflego.system.signals import Interrupted

POLL_SECONDS = 1.0


def connect(address: str) -> None:
    """Connects this process to a cluster, or starts a cluster."""
    quiet: dict[str, Any] = {"logging_level": "FATAL", "log_to_driver": False}
    if address and os.environ.get("RAY_AUTH_MODE") != "token":
        log.warning(
            "the cluster is used without a token. Any program that reaches its ports can run code "
            "on it. Set RAY_AUTH_MODE=token and RAY_USE_TLS=1 on all nodes"
        )
    try:
        with _own_signals():
            if address:
                # Ray would try for two minutes to reach an address where nothing answers.
                refuse_unreachable(address)
                ray.init(address=address, **quiet)
            else:
                if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
                    # Ray would keep one for all runs, in a file that other users may read.
                    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
                # Without `local` it would join a cluster that somebody has started here.
                ray.init(address="local", include_dashboard=False, **quiet)
    except WorkerError:
        raise
    except SystemExit:  # That is Ray's answer to a signal which came while it started.
        ray.shutdown()
        signal.raise_signal(signal.SIGTERM)
        raise Interrupted from None
    except (ConnectionError, ValueError, RuntimeError, OSError, exceptions.RayError) as error:
        ray.shutdown()
        raise no_cluster(address, " ".join(str(error).split())[:300]) from error
    except BaseException:
        ray.shutdown()
        raise


@contextlib.contextmanager
def _own_signals():
    """Keeps this process's signal handlers, which Ray replaces."""
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
    """Returns the result of a call."""
    while True:
        with contextlib.suppress(exceptions.GetTimeoutError):
            return ray.get(call, timeout=POLL_SECONDS)  # With a time limit, Ctrl-C is heard.
