"""How a run uses a Ray cluster. Ray itself is not imported here."""

import dataclasses
import re
import socket
from typing import Any

from tf_pflego.engines.engine import WorkerError
from tf_pflego.system import values

LARGEST_NUMBER_OF_SHARDS = 10_000
_ANSWER_SECONDS = 5.0
_LEAST_PART = 0.0001  # of a resource, in which Ray counts.


@dataclasses.dataclass(frozen=True)
class RayOptions:
    """The shards of a run, and the cluster that they are on.

    Attributes:
      num_shards: S, the number of shards. The result of a run depends on it in the last digits,
        since sums are added shard by shard, and not on the shards' machines.
      address: The address of a running cluster, as `ray start` shows it, or `auto` for this
        machine's cluster. If it is empty, a cluster on only this machine is started, and ends with
        the run.
      cpus_per_shard: Cores that the cluster keeps for a shard. Without an address, the shards
        share the machine's.
      gpus_per_shard: GPUs, or a fraction if several shards share a GPU.
      node_timeout: How long to wait for nodes that can take a shard.
      compiles: Whether XLA compiles the training of small clients, as `InProcess` says it.

    Raises:
      ValueError: A value is out of its range.

    Example, explained in docs/cluster.md:
      >>> place = pfl.RayOptions(num_shards=8, address="auto")  # for the argument `engine`
      >>> place.num_shards
      8
    """

    num_shards: int = 2
    address: str = ""
    cpus_per_shard: float = 1.0
    gpus_per_shard: float = 0.0
    node_timeout: float = 600.0
    compiles: bool = False

    @classmethod
    def of(cls, settings: Any) -> "RayOptions":
        """Returns the options that the settings of a run name."""
        return cls(
            settings.num_shards,
            check_address("ray_address", settings.ray_address),
            settings.cpus_per_shard,
            settings.gpus_per_shard,
            settings.node_timeout,
            settings.compile == "on",
        )

    def __post_init__(self):
        checked = {
            "num_shards": values.whole("num_shards", self.num_shards, 1, LARGEST_NUMBER_OF_SHARDS),
            "address": check_address("address", self.address),
            "cpus_per_shard": check_amount("cpus_per_shard", self.cpus_per_shard),
            "gpus_per_shard": check_amount("gpus_per_shard", self.gpus_per_shard),
            "node_timeout": values.number("node_timeout", self.node_timeout, above=0),
            "compiles": values.truth("compiles", self.compiles),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)


def refuse_empty_shards(num_shards: int, num_clients: int) -> None:
    """Raises ValueError if there are more shards than clients."""
    if num_shards > num_clients:
        raise ValueError(
            f"`num_shards` must be at most the {num_clients} clients; got {num_shards}. Lower "
            "`num_shards`."
        )


def refuse_unreachable(address: str) -> None:
    """Raises WorkerError without an answer at HOST:PORT; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
    except OSError as error:
        raise no_cluster(address, error.strerror or str(error)) from error


def no_cluster(address: str, reason: str) -> WorkerError:
    """Returns the error about a missing cluster at an address."""
    return WorkerError(
        f"`ray_address` must be a running cluster's, or empty; got {address!r} ({reason}). "
        "Start one with `ray start --head`, or correct `ray_address`."
    )


def check_address(name: str, value: str) -> str:
    """Returns the address of a cluster; raises ValueError unless it is HOST:PORT, `auto` or ""."""
    address = values.text(name, value).strip()
    host, _, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    if address in ("", "auto") or (is_port and re.fullmatch(r"[\w.-]+|\[[0-9a-fA-F:.]+\]", host)):
        return address
    raise ValueError(
        f"`{name}` must be HOST:PORT, auto or empty; got {address!r}. Write it as `ray start "
        f"--head` shows it, e.g. `{name}='10.0.0.1:6379'`."
    )


def check_amount(name: str, value: float) -> float:
    """Returns a shard's amount of a resource; raises ValueError unless Ray supports it."""
    amount = values.number(name, value, at_least=0)
    if (amount > 1 and amount != int(amount)) or 0 < amount < _LEAST_PART:
        raise ValueError(
            f"`{name}` must be a whole number, or a part of one from {_LEAST_PART} on; got "
            f"{value}. Correct `{name}`."
        )
    return amount
