"""Functions that run in processes of a Ray cluster in parallel."""

from collections.abc import Callable
from typing import Any

import ray
from ray import exceptions

from tf_pflego.engines.engine import WorkerError
from tf_pflego.ray import connection


class Tasks:
    """A connection to a cluster with processes that run functions, each on some cores."""

    def __init__(self, address: str, cores: int):
        self._cores = cores
        connection.connect(address)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Returns the result of a remote function; raises WorkerError if its process has ended."""
        # A task is not run again: whoever calls says what is to be done about it.
        remote = ray.remote(num_cpus=self._cores, max_retries=0)(function)
        try:
            return connection.result_of(remote.remote(*arguments))
        except exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from error
        except exceptions.RayError as error:
            raise WorkerError(f"a process of the cluster has ended ({error})") from error

    def close(self) -> None:
        """Ends the calls, and leaves the cluster."""
        ray.shutdown()
