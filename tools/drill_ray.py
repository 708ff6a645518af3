"""Drills on clusters of nodes on this machine: kills of shards, nodes and programs, and placement.

Between the messages by which shards are told to commit a round, the program kills by itself: then
this file runs it.
"""

import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import time
import zlib

from drill_runs import ROOT, end, finish, rounds_of, start
from local_cluster import LocalCluster, processes_of

from tf_pflego.runs.training import source_commit

_ROUNDS, _SHARDS = 24, 2
_ON_RAY = ("--engine=ray", "--ray_address=auto", "--dataset=digits")
_FLAGS = (
    *(*_ON_RAY, f"--num_shards={_SHARDS}", "--num_clients=20", "--clients_per_round=10"),
    *(f"--num_rounds={_ROUNDS}", "--eval_every=6", "--checkpoint_every=4", "--resume"),
)
_FLAGS_OF_NODES = (
    *(*_ON_RAY, "--num_clients=40", "--clients_per_round=20", "--num_rounds=20"),
    "--eval_every=5",
)
_WITHIN, _BETWEEN = "within a round", "between commits"
_KINDS = [(what, when) for when in (_BETWEEN, _WITHIN) for what in ("shard", "program", "node")]
# Kills that the program does itself, as JSON, and the file in which it says that it has.
_TRAPS = "DRILL_RAY_TRAPS"


def kill_shards(options):
    """Kills something of a run of each method, and of every third one a second time.

    Kills take turns: the process of a shard, the program, which is then resumed, or the
    second node, in whose place another one joins. It is killed at a random time within a random
    round, or between the messages by which the shards are told to commit a random round (the first
    of the next round), when the first shard has been told and the second has not. Methods that the
    results have already are passed over, so that an interrupted campaign goes on.
    """
    from tf_pflego.algorithms import REGISTRY

    results = pathlib.Path(options.results)
    rows = json.loads(results.read_text(encoding="utf-8")) if results.exists() else []
    done = {row["method"] for row in rows}
    # With one core each, every node has one shard.
    with LocalCluster(nodes=_SHARDS, cpus=1) as cluster:
        for method in options.methods.split(","):
            if method in done:
                continue
            rng = random.Random(f"{options.seed} {method}")
            number = list(REGISTRY).index(method)
            kinds = [_KINDS[number % len(_KINDS)]]
            if number % 3 == 0:
                kinds.append(rng.choice(_KINDS))
            case = _Case(cluster, method, options.data_dir, pathlib.Path(options.scratch), rng)
            rows.append(case.row(kinds))
            results.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            killed = "; ".join("{what} {when}, {round}".format(**one) for one in rows[-1]["kills"])
            row = {"method": method, "killed": killed, "losses said": rows[-1]["losses"]}
            same = rows[-1]["the_same"]
            yield row | {"the end": "the same" if same else "DIFFERENT"}, same


class _Case:
    """The runs of a method."""

    def __init__(self, cluster, method, data_dir, scratch, rng):
        self._cluster = cluster
        self._method = method
        self._flags = [f"--algorithm={method}", *_FLAGS, f"--data_dir={data_dir}"]
        self._whole, self._killed = (scratch / f"{method}_{kind}" for kind in ("whole", "killed"))
        self._sprung = scratch / "sprung"
        self._rng = rng

    def row(self, kinds):
        """Returns what was done, and whether the ends are the same."""
        started = time.monotonic()
        self._ended(self._start(self._whole))
        undisturbed = time.monotonic() - started
        while (disturbed := self._disturbed(kinds)) is None:
            shutil.rmtree(self._killed)  # It came to its end before it was killed often enough.
        kills, said = disturbed
        losses = said.count("goes on from its last checkpoint")
        same = end(self._killed) == end(self._whole)
        # Two kills that are close to each other may be found as one loss.
        is_said = losses > 0 or all(kill["what"] == "program" for kill in kills)
        seconds = time.monotonic() - started - undisturbed
        for directory in (self._whole, self._killed):
            shutil.rmtree(directory)
        return {
            "method": self._method,
            "commit": source_commit(),
            "kills": kills,
            "losses": losses,
            "the_same": same and is_said,
            "seconds": round(seconds, 1),
            "seconds_undisturbed": round(undisturbed, 1),
        }

    def _disturbed(self, kinds):
        """Returns the kills and what the programs said, or None if the run was too fast."""
        rounds = sorted(self._rng.sample(range(1, _ROUNDS - 2), len(kinds)))
        kills = [
            {"what": what, "when": when, "round": at}
            for (what, when), at in zip(kinds, rounds, strict=True)
        ]
        self._sprung.unlink(missing_ok=True)
        running, said = None, ""
        for number, kill in enumerate(kills):
            running = running or self._start(self._killed, kills[number:])
            if kill["when"] == _BETWEEN:
                before = sum(other["when"] == _BETWEEN for other in kills[:number])
                killed = self._wait(running, lambda count=before: self._traps_sprung() > count)
            else:
                at = kill["round"]
                killed = self._wait(running, lambda at=at: rounds_of(self._killed) >= at)
                time.sleep(self._rng.uniform(0, 0.3))
                killed = killed and self._kill(running, kill["what"])
            if killed and kill["what"] == "program":
                said += running.communicate()[1]
                running = None
            if not killed:
                self._ended(running)
                return None
        return kills, said + self._ended(running or self._start(self._killed))

    def _start(self, output, kills=()):
        traps = {
            "kills": [kill for kill in kills if kill["when"] == _BETWEEN],
            "sprung": str(self._sprung),
            "output": str(output),
            "first_node": self._cluster.nodes[0].leader,
        }
        environment = self._cluster.environment | {"PYTHONPATH": str(ROOT)}
        traps = environment | {_TRAPS: json.dumps(traps)}
        return start(self._flags, output, traps, (__file__,))

    def _ended(self, running):
        """Waits for the end of a program, which must be good, and returns what it has said."""
        self._wait(running, lambda: False)
        return finish(running)

    def _wait(self, running, condition):
        """Waits until a condition holds, and returns whether it did before the program ended."""
        while True:  # Meanwhile another node takes the place of the second one when that is gone.
            if not any(node.is_running() for node in self._cluster.nodes[1:]):
                self._cluster.add_node()
            if condition():
                return True
            if running.poll() is not None:
                return condition()
            time.sleep(0.02)

    def _traps_sprung(self):
        return self._sprung.read_bytes().count(b"\n") if self._sprung.exists() else 0

    def _kill(self, running, what):
        """Kills one, and returns whether it was there."""
        nodes = [node for node in self._cluster.nodes if node.is_running()]
        hosts = [host for node in nodes for host in _hosts_of(node)]
        if running.poll() is not None or len(hosts) < len(nodes):
            return False
        if what == "program":
            running.kill()
        elif what == "node":
            nodes[-1].kill()
        else:
            os.kill(self._rng.choice(hosts), signal.SIGKILL)
        return True


def _hosts_of(node):
    """Returns the processes on a node that have a shard."""
    hosts = []
    for process in processes_of(node.leader):
        with contextlib.suppress(OSError):
            if pathlib.Path(f"/proc/{process}/cmdline").read_bytes().startswith(b"ray::Host"):
                hosts.append(process)
    return hosts


def compare_nodes(options):
    """Makes a run of each method on each cluster, whose end must have the bits of the first one.

    A cluster has as many cores as the shards need, and half a gigabyte of memory per shard.
    """
    rows, checksums = [], {}
    for nodes in map(int, options.nodes.split(",")):
        cpus = -(-options.shards // nodes)
        with LocalCluster(nodes, cpus) as cluster:
            for method in options.methods.split(","):
                row = _row_of_nodes(cluster, method, options)
                rows.append(row)
                checksum = row["checksum"]
                yield row, checksums.setdefault(method, checksum) == checksum
    pathlib.Path(options.results).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def _row_of_nodes(cluster, method, options):
    started = time.monotonic()
    output = pathlib.Path(options.scratch) / f"{method}_{len(cluster.nodes)}"
    flags = [*_FLAGS_OF_NODES, f"--algorithm={method}", f"--data_dir={options.data_dir}"]
    flags.append(f"--num_shards={options.shards}")
    running = start(flags, output, cluster.environment | {"PYTHONPATH": str(ROOT)})
    most = [0] * len(cluster.nodes)
    while running.poll() is None:  # Before the run ends, so that its processes can be counted.
        most = max(most, [len(_hosts_of(node)) for node in cluster.nodes], key=sum)
        time.sleep(0.5)
    finish(running)
    return {
        "method": method,
        "shards": options.shards,
        "nodes": len(cluster.nodes),
        "shards_on_nodes": " ".join(map(str, most)),
        "seconds": round(time.monotonic() - started, 1),
        "checksum": f"{zlib.crc32(repr(end(output)).encode()):08x}",
    }


def _program(arguments, traps):
    """Runs the program, which does some of the kills itself."""
    from tf_pflego.main import main as program
    from tf_pflego.ray.cluster import RayCluster

    call, waiting, output = RayCluster.call, traps["kills"], pathlib.Path(traps["output"])

    def with_traps(cluster, shard, method, *others):
        (asked, *_) = others or (None,)
        commits = method == "settle_and_call" and asked.keep
        is_last = commits and shard == cluster.num_shards - 1
        if is_last and waiting and rounds_of(output) + 1 >= waiting[0]["round"]:
            kill = waiting.pop(0)
            with open(traps["sprung"], "a", encoding="utf-8") as file:
                file.write(f"{kill['round']}\n")
            _spring(cluster, kill, traps["first_node"])
        return call(cluster, shard, method, *others)

    RayCluster.call = with_traps
    return program(["tf_pflego", *arguments])


def _spring(cluster, kill, first_node):
    if kill["what"] == "program":
        os.kill(os.getpid(), signal.SIGKILL)
    shards = range(cluster.num_shards)
    hosts = cluster.wait([cluster.call(shard, "process_id") for shard in shards])
    if kill["what"] == "shard":  # The one that has been told to commit, or the other one.
        os.kill(hosts[kill["round"] % len(hosts)], signal.SIGKILL)
        return
    for host in hosts:
        node = os.getsid(host)
        if node != first_node:
            for process in processes_of(node):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            return


if __name__ == "__main__":
    sys.exit(_program(sys.argv[1:], json.loads(os.environ.pop(_TRAPS))))
