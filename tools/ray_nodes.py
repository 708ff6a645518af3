"""Runs the same shards on Ray clusters of 1, 2 and 5 nodes, and compares the bits of the ends.

  python tools/ray_nodes.py [--shards=10] [--nodes=1,2,5] [--methods=pflego,ditto]
                            [--data_dir=DIR] [--results=results/ray_nodes.json]

Each cluster is of nodes on this machine, as `tools/local_cluster.py` starts them, with as many
cores as the shards need. A small run of each method on digits must end with the weights, the
clients' states, the metrics apart from seconds, and the clients.csv that it has on one node. A
table says where the shards were; the exit code is 1 if an end differs. It takes some minutes on
two cores and half a gigabyte per shard.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import zlib

from experiments import ROOT
from kill_runs import end, finish
from local_cluster import LocalCluster, ended_by_signals, processes_of

from tf_pflego.system import terminal

_FLAGS = (
    *("--engine=ray", "--ray_address=auto", "--dataset=digits", "--num_clients=40"),
    *("--clients_per_round=20", "--num_rounds=20", "--eval_every=5"),
)
_COLUMNS = ("method", "shards", "nodes", "shards on each node", "seconds", "checksum of the end")


def main(arguments: list[str]) -> int:
    """Makes the runs, and prints a row for each."""
    options = _options(arguments)
    terminal.show("| " + " | ".join(_COLUMNS) + " |\n" + "|---" * len(_COLUMNS) + "|")
    rows = []
    with ended_by_signals(), tempfile.TemporaryDirectory(prefix="tf_pflego_nodes_") as scratch:
        for nodes in map(int, options.nodes.split(",")):
            with LocalCluster(nodes, cpus=-(-options.shards // nodes)) as cluster:
                for method in options.methods.split(","):
                    output = pathlib.Path(scratch) / f"{method}_{nodes}"
                    rows.append(_row(cluster, method, options, output))
                    terminal.show("| " + " | ".join(map(str, rows[-1].values())) + " |")
    pathlib.Path(options.results).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    same = all(
        len({row["checksum"] for row in rows if row["method"] == method}) == 1
        for method in options.methods.split(",")
    )
    terminal.show("all ends are the same" if same else "ENDS DIFFER")
    return 0 if same else 1


def _row(cluster, method, options, output):
    started = time.monotonic()
    running = subprocess.Popen(
        [
            *(sys.executable, "-m", "tf_pflego.main", *_FLAGS, f"--algorithm={method}"),
            *(f"--num_shards={options.shards}", f"--data_dir={options.data_dir}"),
            f"--output_dir={output}",
        ],
        env=cluster.environment | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    hosts = [0] * len(cluster.nodes)
    while running.poll() is None:  # Before the run ends, so that its processes can be counted.
        found = [_count_hosts(node) for node in cluster.nodes]
        hosts = found if sum(found) >= sum(hosts) else hosts
        time.sleep(0.5)
    finish(running)
    return {
        "method": method,
        "shards": options.shards,
        "nodes": len(cluster.nodes),
        "shards_on_nodes": " ".join(map(str, hosts)),
        "seconds": round(time.monotonic() - started, 1),
        "checksum": f"{zlib.crc32(repr(end(output)).encode()):08x}",
    }


def _count_hosts(node):
    count = 0
    for process in processes_of(node.leader):
        try:
            command = pathlib.Path(f"/proc/{process}/cmdline").read_bytes()
        except OSError:
            continue
        count += command.startswith(b"ray::Host")
    return count


def _options(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shards", type=int, default=10, help="default 10")
    parser.add_argument("--nodes", default="1,2,5", help="of each cluster (default 1,2,5)")
    parser.add_argument("--methods", default="pflego,ditto", help="default pflego,ditto")
    parser.add_argument("--data_dir", default="", help="the TFDS data directory")
    default = str(ROOT / "results" / "ray_nodes.json")
    parser.add_argument("--results", default=default, help=f"default {default}")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    terminal.prepare()
    sys.exit(main(sys.argv[1:]))
