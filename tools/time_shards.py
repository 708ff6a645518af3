"""Measures the seconds of rounds on several shards of a cluster on this machine.

python tools/time_shards.py [--json=results/shards.json] [--repeats=6]

The shards are dealt out to the nodes of the cluster, at most two, and have one thread each; what
nodes send to each other is encrypted, as on machines of their own. docs/scale.md shows the file.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import local_cluster
import numpy as np
import ray
import tensorflow as tf
from benchmark_work import federation, simulation_of, spread

from tf_pflego import models
from tf_pflego.program import terminal
from tf_pflego.ray.cluster import RayCluster
from tf_pflego.ray.options import RayOptions

SHARDS = (1, 2, 4)
# name -> (clients, examples of each, shape of an example, units, participants, shards)
NETWORKS = {
    "13k": (20_000, 20, (8, 8, 1), 200, (20, 200, 2000, 5000), SHARDS),
    "157k": (100, 600, (28, 28, 1), 200, (20,), SHARDS),
    "11M": (8, 600, (28, 28, 1), 14_000, (4,), (1, 2)),
}
_MOST_NODES = 2  # More, on two cores, do not start in time.
_WARM_UP = 2


def on_cluster(num_shards, repeats):
    """Returns the measured rounds of a cluster with so many shards."""
    nodes = min(num_shards, _MOST_NODES)
    with (
        local_cluster.LocalCluster(nodes, cpus=num_shards // nodes) as cluster,
        tempfile.TemporaryDirectory() as directory,
    ):
        file = pathlib.Path(directory) / "rounds.json"
        # A process of its own, as a connection to Ray takes its keys from the environment.
        flags = (f"--json={file}", f"--repeats={repeats}", f"--shards={num_shards}")
        subprocess.run([sys.executable, __file__, *flags], env=cluster.environment, check=True)
        return json.loads(file.read_text(encoding="utf-8"))


def measure(num_shards, repeats):
    """Yields the measured rounds of the cluster that the environment names."""
    with RayCluster(RayOptions(num_shards=num_shards, address="auto")) as cluster:
        for network, (count, size, shape, units, participants, shards) in NETWORKS.items():
            if num_shards not in shards:
                continue
            clients = federation([size] * count, [1] * count, 2, shape)
            body = models.mlp(shape, 0, units=units)
            for per_round in participants:
                # Short rounds are timed more often; rounds of the largest network take seconds.
                turns = 5 * repeats if per_round <= 200 else repeats
                turns = repeats // 2 if network == "11M" else turns
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
    """Returns the table of what was measured."""
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


def main():
    """Measures, writes the file and shows the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", default="results/shards.json", help="file to write")
    parser.add_argument("--repeats", type=int, default=6, help="rounds of each kind")
    parser.add_argument("--shards", type=int, help="the part of a process that measures")
    options = parser.parse_args()
    tf.get_logger().setLevel("ERROR")
    file = pathlib.Path(options.json)
    if options.shards:
        rounds = list(measure(options.shards, options.repeats))
        file.write_text(json.dumps(rounds), encoding="utf-8")
        return
    rounds = [row for shards in SHARDS for row in on_cluster(shards, options.repeats)]
    versions = {"tensorflow": tf.__version__, "ray": ray.__version__}
    report = {"cores": os.cpu_count(), **versions, "rounds": rounds}
    file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    terminal.show(table_of(report))


if __name__ == "__main__":
    terminal.prepare()
    main()
