"""Kills shards, nodes and programs of runs on a Ray cluster, and compares the runs' ends.

  python tools/kill_ray_runs.py [--methods=pflego,...] [--data_dir=DIR] [--seed=0]
                                [--results=results/ray_kills.json]

A cluster of two nodes on this machine takes all runs. For each method a small run on digits is left
alone, and a second one, which has the same two shards, is killed (SIGKILL): once, and every third
one twice. What is killed takes turns: the process of a shard, the program, which is then resumed,
or the second node, in whose place another one joins. It is killed at a random time within a random
round, or between the messages by which the shards are told to commit a random round (the first of
the next round), when the first shard has been told and the second has not. Each run must end with
the weights, the clients' states, the metrics apart from seconds, and the clients.csv of the run
that was left alone.

Methods that the results have already are passed over, so that an interrupted campaign goes on. A
table says what was done; the exit code is 1 if an end differs. It takes about an hour on two cores.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import contextlib
import json
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from experiments import ROOT
from kill_runs import end, rounds_of
from local_cluster import LocalCluster, ended_by_signals, processes_of

from tf_pflego.algorithms import REGISTRY
from tf_pflego.runs.training import source_commit
from tf_pflego.system import terminal

_ROUNDS, _SHARDS = 24, 2
_FLAGS = (
    *("--engine=ray", f"--num_shards={_SHARDS}", "--ray_address=auto"),
    *("--dataset=digits", "--num_clients=20", "--clients_per_round=10"),
    *(f"--num_rounds={_ROUNDS}", "--eval_every=6", "--checkpoint_every=4", "--resume"),
)
_WITHIN, _BETWEEN = "within a round", "between commits"
_KINDS = [(what, when) for when in (_BETWEEN, _WITHIN) for what in ("shard", "program", "node")]
_COLUMNS = ("method", "killed", "losses said", "the end")
# Kills that the program does itself, as JSON, and the file in which it says that it has.
_TRAPS, _SPRUNG = "KILL_RAY_RUNS_TRAPS", "sprung"


def main(arguments: list[str]) -> int:
    """Runs the campaign, and prints a row per method."""
    options = _options(arguments)
    results = pathlib.Path(options.results)
    rows = json.loads(results.read_text(encoding="utf-8")) if results.exists() else []
    done = {row["method"] for row in rows}
    wanted = [method for method in options.methods.split(",") if method not in done]
    terminal.show("| " + " | ".join(_COLUMNS) + " |\n" + "|---" * len(_COLUMNS) + "|")
    if wanted:
        # With one core each, every node has one shard.
        with (
            ended_by_signals(),
            tempfile.TemporaryDirectory(prefix="tf_pflego_kill_") as scratch,
            LocalCluster(nodes=_SHARDS, cpus=1) as cluster,
        ):
            for method in wanted:
                rng = random.Random(f"{options.seed} {method}")
                number = list(REGISTRY).index(method)
                kinds = [_KINDS[number % len(_KINDS)]]
                if number % 3 == 0:
                    kinds.append(rng.choice(_KINDS))
                case = _Case(cluster, method, options.data_dir, pathlib.Path(scratch), rng)
                rows.append(case.row(kinds))
                results.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
                _print(rows[-1])
    kills = sum(len(row["kills"]) for row in rows)
    good = all(row["the_same"] for row in rows)
    terminal.show(f"{kills} kills; {'all ends are the same' if good else 'ENDS DIFFER'}")
    return 0 if good else 1


def _print(row):
    kills = "; ".join(f"{kill['what']} {kill['when']}, {kill['round']}" for kill in row["kills"])
    cells = (row["method"], kills, row["losses"], "the same" if row["the_same"] else "DIFFERENT")
    terminal.show("| " + " | ".join(map(str, cells)) + " |")


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
        while (found := self._disturbed(kinds)) is None:
            shutil.rmtree(self._killed)  # It came to its end before it was killed often enough.
        kills, said = found
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
        return subprocess.Popen(
            [sys.executable, __file__, *self._flags, f"--output_dir={output}"],
            env=environment | {_TRAPS: json.dumps(traps)},
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _ended(self, running):
        """Waits for the end of a program, which must be good, and returns what it has said."""
        self._wait(running, lambda: False)
        said = running.communicate()[1]
        if running.returncode:
            raise RuntimeError(f"a run must end with code 0; got {running.returncode}:\n{said}")
        return said

    def _wait(self, running, condition):
        """Waits until a condition holds, and returns whether it did before the program ended.

        In the place of the second node, when it is gone, another one joins.
        """
        while True:
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
        hosts = [_host_of(node) for node in nodes]
        if running.poll() is not None or None in hosts:
            return False
        if what == "program":
            running.kill()
        elif what == "node":
            nodes[-1].kill()
        else:
            os.kill(self._rng.choice(hosts), signal.SIGKILL)
        return True


def _host_of(node):
    """Returns the process on a node that has a shard, or None."""
    for process in processes_of(node.leader):
        with contextlib.suppress(OSError):
            if pathlib.Path(f"/proc/{process}/cmdline").read_bytes().startswith(b"ray::Host"):
                return process
    return None


def _program(arguments, traps):
    """Runs the program, which does some of the kills itself."""
    from tf_pflego.engines.ray.ray_cluster import RayCluster
    from tf_pflego.main import main as program

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


def _options(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", default=",".join(REGISTRY), help="default all")
    parser.add_argument("--data_dir", default="", help="the TFDS data directory")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random times (default 0)")
    default = str(ROOT / "results" / "ray_kills.json")
    parser.add_argument("--results", default=default, help=f"default {default}")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    if _TRAPS in os.environ:
        sys.exit(_program(sys.argv[1:], json.loads(os.environ.pop(_TRAPS))))
    terminal.prepare()
    sys.exit(main(sys.argv[1:]))
