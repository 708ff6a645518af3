"""How a run uses a Ray cluster. Ray itself is not imported here."""

import dataclasses

from tf_pflego.core import values

LARGEST_NUMBER_OF_SHARDS = 10_000


@dataclasses.dataclass(frozen=True)
class RayOptions:
    """The shards of a run, and the cluster that they are on.

    Attributes:
      num_shards: S, into how many shards the clients are dealt. The result of a run depends on it
        in the last digits, since sums are added shard by shard, and does not depend on where the
        shards are.
      address: Of a running cluster, as `ray start` shows it, or `auto` for the one that this
        machine belongs to. If it is empty, a cluster of this machine alone is started, and ends
        with the run.
      cpus_per_shard: Cores that the cluster keeps for a shard. Without an address, the shards
        share those of the machine.
      gpus_per_shard: GPUs; a part of one if several shards share it.
      resources: Other resources of the cluster that a shard takes, by name: NAME=NUMBER,... With
        one that only some nodes have, shards are on the nodes that have the data.
      deadline_seconds: How long to wait for nodes that can take a shard.

    Raises:
      ValueError: A value is out of its range.
    """

    num_shards: int = 2
    address: str = ""
    cpus_per_shard: float = 1.0
    gpus_per_shard: float = 0.0
    resources: str = ""
    deadline_seconds: float = 600.0

    def __post_init__(self):
        values.whole("num_shards", self.num_shards, 1, LARGEST_NUMBER_OF_SHARDS)
        values.number("cpus_per_shard", self.cpus_per_shard, at_least=0)
        values.number("gpus_per_shard", self.gpus_per_shard, at_least=0)
        values.number("deadline_seconds", self.deadline_seconds, above=0)
        self.named_resources()

    def named_resources(self) -> dict[str, float]:
        """Returns `resources` by name."""
        found = {}
        for item in filter(None, self.resources.split(",")):
            name, _, amount = item.partition("=")
            try:
                found[name.strip()] = float(amount)
            except ValueError:
                raise ValueError(
                    f"`shard_resources` must be NAME=NUMBER,...; got {self.resources!r}. Set e.g. "
                    "`shard_resources='data=1'`."
                ) from None
        return found
