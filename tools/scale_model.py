"""Models the seconds of a round on several shards, from rounds that it measures on this machine.

python tools/scale_model.py [--json=results/scale_model.json] [--repeats=6]

A round of PFLEGO with r participants on S shards, where the server's message has B bytes and so has
the sum that a shard returns, is taken to last

  T = driver + slowest shard
  driver = fixed + per_shard S + per_participant r + per_byte B + per_byte_and_shard B S
  slowest shard = fixed + per_participant E[max n]

E[max n] is the expected largest number of participants that one of the S shards has. The constants
are fitted to some of the rounds that are measured. The others show how well the model predicts.

The shards are dealt out to the nodes of a cluster on this machine, at most two, and have one thread
each; what nodes send to each other is encrypted, as on machines of their own.

The file --json holds the measured rounds, the constants and the predictions, which docs/scale.md
shows.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import functools
import json
import pathlib
import subprocess
import sys
import tempfile

import benchmark_work
import local_cluster
import numpy as np
import ray
import scipy.optimize
import tensorflow as tf
import timing

from tf_pflego import models
from tf_pflego.core.algorithm import num_bytes
from tf_pflego.program import terminal
from tf_pflego.ray.cluster import RayCluster
from tf_pflego.ray.options import RayOptions

SHARDS = (1, 2, 4)
# The constants are fitted to rounds with so many shards and participants only.
FITTED_SHARDS, FITTED_PARTICIPANTS = (1, 2), (4, 20, 2000)
# name -> (clients, examples of each, shape of an example, units, participants, shards)
NETWORKS = {
    "13k": (20_000, 20, (8, 8, 1), 200, (20, 200, 2000, 5000), SHARDS),
    "157k": (100, 600, (28, 28, 1), 200, (20,), SHARDS),
    "11M": (8, 600, (28, 28, 1), 14_000, (4,), (1, 2)),
}
_DRAWS = 1000
_MOST_NODES = 2  # More, on two cores, do not start in time.
_WARM_UP = 2
_DRIVER = (
    "fixed_milliseconds",
    "milliseconds_per_shard",
    "microseconds_per_participant",
    "nanoseconds_per_byte",
    "nanoseconds_per_byte_and_shard",
)
_UNITS = np.array([1e-3, 1e-3, 1e-6, 1e-9, 1e-9])


def measured(num_shards, repeats):
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
            clients = benchmark_work.federation([size] * count, [1] * count, 2, shape)
            body = models.mlp(shape, 0, units=units)
            for per_round in participants:
                # Short rounds are timed more often, and those of the largest network take seconds.
                turns = 5 * repeats if per_round <= 200 else repeats
                turns = repeats // 2 if network == "11M" else turns
                row = {"network": network, "clients": count, "participants": per_round}
                seconds = measure_rounds(clients, body, per_round, cluster, turns)
                yield row | {"shards": num_shards} | seconds


def measure_rounds(clients, body, per_round, cluster, repeats):
    """Returns the seconds of rounds, of what they take besides the slowest shard, and of shards."""
    rounds, shards = [], []
    with benchmark_work.simulation_of(clients, body, "pflego", cluster, per_round) as simulation:
        theta = num_bytes(simulation.algorithm.model.initial_weights().theta)
        for _ in range(_WARM_UP + repeats):
            rounds.append(simulation.run_round()["seconds"])
            shards.append(simulation._engine.seconds_of_shards)
    rounds, shards = np.array(rounds[_WARM_UP:]), np.array(shards[_WARM_UP:])
    slowest = shards.max(axis=1)
    return {
        "bytes": theta,
        "seconds": timing.spread(rounds),
        "outside_seconds": timing.spread(rounds - slowest),
        "slowest_shard_seconds": timing.spread(slowest),
        "all_shards_seconds": timing.spread(shards.sum(axis=1)),
    }


def is_fitted(row):
    """Returns whether the constants are fitted to these rounds."""
    return row["shards"] in FITTED_SHARDS and row["participants"] in FITTED_PARTICIPANTS


@functools.cache
def largest_share(clients, participants, shards):
    """Returns the expected number of participants in the shard that has the most.

    They are drawn uniformly without replacement, and each shard has an equal part of the clients.
    """
    of_shard = [len(range(shard, clients, shards)) for shard in range(shards)]
    draws = np.random.default_rng(0).multivariate_hypergeometric(
        of_shard, participants, size=_DRAWS, method="marginals"
    )
    return float(draws.max(axis=1).mean())


def fit(rounds):
    """Returns the constants, fitted to rounds so that relative errors are small."""
    rounds = [row for row in rounds if is_fitted(row)]
    outside = np.array([row["outside_seconds"]["median"] for row in rounds])
    terms = np.array([terms_of(row["shards"], row["participants"], row["bytes"]) for row in rounds])
    driver, _ = scipy.optimize.nnls(terms * _UNITS / outside[:, None], np.ones(len(rounds)))
    constants = {
        f"driver/{name}": float(value) for name, value in zip(_DRIVER, driver, strict=True)
    }
    # Both constants of a shard are seen where few participants and many were timed; the fixed part
    # belongs to the call, whichever the network.
    small = [row for row in rounds if row["network"] == "13k"]
    terms = np.array([[1e-3 * row["shards"], 1e-6 * row["participants"]] for row in small])
    work = np.array([row["all_shards_seconds"]["median"] for row in small])
    (fixed, each), _ = scipy.optimize.nnls(terms / work[:, None], np.ones(len(small)))
    constants["shard/fixed_milliseconds"] = float(fixed)
    constants["shard/13k/microseconds_per_participant"] = float(each)
    for network in ("157k", "11M"):
        each = [
            (row["all_shards_seconds"]["median"] - 1e-3 * fixed * row["shards"])
            / row["participants"]
            for row in rounds
            if row["network"] == network
        ]
        constants[f"shard/{network}/microseconds_per_participant"] = float(np.mean(each)) * 1e6
    return constants


def terms_of(shards, participants, size):
    """Returns what the constants of the driver are multiplied by."""
    return [1, shards, participants, size, size * shards]


def predict(constants, network, clients, participants, shards, size, cores):
    """Returns the parts of a round's seconds, by the constants that `fit` returns.

    `cores` are those that the shards share, or None if each has one.
    """
    driver = [constants[f"driver/{name}"] for name in _DRIVER] * _UNITS
    fixed = constants["shard/fixed_milliseconds"] * 1e-3
    each = constants[f"shard/{network}/microseconds_per_participant"] * 1e-6
    slowest = fixed + each * largest_share(clients, participants, shards)
    if cores is not None:
        # More shards than cores take turns: all work is done at the pace of the cores.
        slowest = max(slowest, (fixed * min(shards, participants) + each * participants) / cores)
    parts = {
        "driver_seconds": float(driver @ terms_of(shards, participants, size)),
        "slowest_shard_seconds": slowest,
    }
    return parts | {"seconds": sum(parts.values())}


def report_of(rounds, cores):
    """Returns the report: the constants, and the measured rounds beside their predictions."""
    constants = fit(rounds)
    report = {"cores": cores, "tensorflow": tf.__version__, "ray": ray.__version__, **constants}
    report["rounds"] = []
    for row in rounds:
        known = (row[name] for name in ("network", "clients", "participants", "shards", "bytes"))
        predicted = predict(constants, *known, cores)
        error = predicted["seconds"] / row["seconds"]["median"] - 1
        more = {"fitted": is_fitted(row), "predicted": predicted, "error": error}
        report["rounds"].append(row | more)
    return report


def table_of(report):
    """Returns the table of what was measured beside what the model says."""
    lines = [
        "| weights | participants | shards | measured, s | predicted, s | error | fitted to |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in report["rounds"]:
        lines.append(
            f"| {row['network']} | {row['participants']:,} | {row['shards']} "
            f"| {row['seconds']['median']:.3f} | {row['predicted']['seconds']:.3f} "
            f"| {row['error']:+.0%} | {'yes' if row['fitted'] else 'no'} |"
        )
    return "\n".join(lines) + "\n"


def main():
    """Measures, predicts, writes the file and shows the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", default="results/scale_model.json", help="file to write")
    parser.add_argument("--repeats", type=int, default=6, help="rounds of each kind")
    parser.add_argument("--shards", type=int, help="the part of a process that measures")
    options = parser.parse_args()
    tf.get_logger().setLevel("ERROR")
    file = pathlib.Path(options.json)
    if options.shards:
        rounds = list(measure(options.shards, options.repeats))
        file.write_text(json.dumps(rounds), encoding="utf-8")
        return
    rounds = [row for shards in SHARDS for row in measured(shards, options.repeats)]
    report = report_of(rounds, os.cpu_count())
    file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    terminal.show(table_of(report))


if __name__ == "__main__":
    terminal.prepare()
    main()
