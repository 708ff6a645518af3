"""The part of the benchmark that times rounds on several shards of a cluster on this machine.

The shards are distributed to the nodes of the cluster, at most two, and have one thread each.
Messages between nodes are encrypted, as on separate machines. docs/cluster.md shows the file
results/shards.json.
"""

import json
import subprocess
import sys

import numpy as np
from benchmark_work import federation, installed, simulation_of, spread

from tf_pflego import models

SHARDS = (1, 2, 4)
# name -> (clients, examples of each, shape of an example, units, participants, shards)
NETWORKS = {
    "13k": (20_000, 20, (8, 8, 1), 200, (20, 200, 2000, 5000), SHARDS),
    "157k": (100, 600, (28, 28, 1), 200, (20,), SHARDS),
    "11M": (8, 600, (28, 28, 1), 14_000, (4,), (1, 2)),
}
_MOST_NODES = 2  # More, on two cores, do not start in time.
_WARM_UP = 2


def shards(repeats):
    """Times rounds of PFLEGO on clusters of one, two and four shards."""
    if not installed(["ray"]):
        return
    import local_cluster  # It needs Ray.
    import ray

    rows = []
    for count in SHARDS:
        nodes = min(count, _MOST_NODES)
        with local_cluster.LocalCluster(nodes, cpus=count // nodes) as cluster:
            # A process of its own, as a connection to Ray takes its keys from the environment.
            command = [sys.executable, __file__, str(count), str(repeats)]
            done = subprocess.run(
                command, env=cluster.environment, check=True, stdout=subprocess.PIPE
            )
            rows += json.loads(done.stdout.splitlines()[-1])
    yield {"ray": ray.__version__, "rounds": rows}


def measure(num_shards, repeats):
    """Yields the measured rounds of the cluster that the environment names."""
    from tf_pflego.ray.cluster import RayCluster
    from tf_pflego.ray.options import RayOptions

    with RayCluster(RayOptions(num_shards=num_shards, address="auto")) as cluster:
        for network, (count, size, shape, units, participants, shards) in NETWORKS.items():
            if num_shards not in shards:
                continue
            clients = federation([size] * count, [1] * count, 2, shape)
            body = models.mlp(shape, 0, units=units)
            for per_round in participants:
                # Short rounds are timed more often; rounds of the largest network take seconds.
                turns = repeats if per_round <= 200 else max(1, repeats // 5)
                turns = max(1, repeats // 10) if network == "11M" else turns
                row = {"network": network, "participants": per_round, "shards": num_shards}
                yield row | measure_rounds(clients, body, per_round, cluster, turns)


def measure_rounds(clients, body, per_round, cluster, repeats):
    """Returns the seconds of rounds, of the slowest shard, and of all shards together."""
    rounds, shards = [], []
    with simulation_of(clients, body, "pflego", cluster, per_round) as simulation:
        for _ in range(_WARM_UP + repeats):
            rounds.append(simulation.run_round()["seconds"])
            shards.append(simulation._engine.seconds_of_shards)
    shards = np.array(shards[_WARM_UP:])
    return {
        "seconds": spread(rounds[_WARM_UP:]),
        "slowest_shard_seconds": spread(shards.max(axis=1)),
        "all_shards_seconds": spread(shards.sum(axis=1)),
    }


def table_of(report):
    """Returns the table of the measurements."""
    lines = [
        "| weights | participants | shards | round, s | slowest shard, s | all shards, s |",
        "|---|---|---|---|---|---|",
    ]
    for row in report["rounds"]:
        parts = ("seconds", "slowest_shard_seconds", "all_shards_seconds")
        seconds = " | ".join(f"{row[part]['median']:.3f}" for part in parts)
        lines.append(
            f"| {row['network']} | {row['participants']:,} | {row['shards']} | {seconds} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    measured = list(measure(*map(int, sys.argv[1:])))
    sys.stdout.write(f"\n{json.dumps(measured)}\n")
