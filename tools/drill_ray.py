"""Drills on clusters of nodes on this machine: kills of shards, nodes and programs, and placement.

The program does the kills itself, since it knows the messages that it sends. This file runs it
then.
"""

import contextlib
import functools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zlib

import psutil
from drill_runs import ROOT, end, finish, rounds_of, start, wait_for_round
from local_cluster import LocalCluster, processes_of

from tf_pflego.algorithms import REGISTRY
from tf_pflego.system.source import source_commit

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
_MOST_SECONDS = 0.3  # from the last commit of a round until a kill within the next one
# Kills that the program does, as JSON, and the file in which it says that it has.
_TRAPS = "DRILL_RAY_TRAPS"


def kill_shards(
    scratch,
    data_dir="",
    seed=0,
    methods=tuple(REGISTRY),
    results=ROOT / "results" / "ray_kills.json",
):
    """Kills something of a run of each method, and of every third one a second time.

    Kills take turns: the process of a shard, the program, which is then resumed, or the
    second node, in whose place another one joins. It is killed at a random time within a random
    round, or between the messages by which the shards are told to commit a random round (the first
    of the next round), when the first shard has been told and the second has not. Methods that the
    results have already are passed over, so that an interrupted campaign goes on.
    """
    rows = json.loads(results.read_text(encoding="utf-8")) if results.exists() else []
    done = {row["method"] for row in rows}
    # With one core each, every node has one shard.
    with LocalCluster(nodes=_SHARDS, cpus=1) as cluster:
        for method in methods:
            if method in done:
                continue
            rng = random.Random(f"{seed} {method}")
            number = list(REGISTRY).index(method)
            kinds = [_KINDS[number % len(_KINDS)]]
            if number % 3 == 0:
                kinds.append(rng.choice(_KINDS))
            flags = [f"--algorithm={method}", *_FLAGS, f"--data_dir={data_dir}"]
            row = _row_of_kills(cluster, flags, kinds, scratch / method, rng)
            rows.append({"method": method, "commit": source_commit()} | row)
            results.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            killed = "; ".join("{what} {when}, {round}".format(**one) for one in row["kills"])
            yield {"method": method, "killed": killed, "losses": row["losses"]}, row["the_same"]


def _row_of_kills(cluster, flags, kinds, scratch, rng):
    """Returns what was done to a run, and whether it has ended as without."""
    started = time.monotonic()
    whole, killed = scratch / "whole", scratch / "killed"
    _ended(cluster, flags, whole, [])
    undisturbed = time.monotonic() - started
    said = None
    while said is None:  # It may come to its end before it was killed often enough.
        shutil.rmtree(killed, ignore_errors=True)
        rounds = sorted(rng.sample(range(1, _ROUNDS - 2), len(kinds)))
        kills = [
            {"what": what, "when": when, "round": at}
            for (what, when), at in zip(kinds, rounds, strict=True)
        ]
        said = _ended(cluster, flags, killed, kills)
    losses = said.count("continues from its last checkpoint")
    # Two kills that are close to each other may be found as one loss.
    is_said = losses > 0 or all(kill["what"] == "program" for kill in kills)
    same = end(killed) == end(whole)
    seconds = time.monotonic() - started - undisturbed
    shutil.rmtree(scratch)
    return {
        "kills": kills,
        "losses": losses,
        "the_same": same and is_said,
        "seconds": round(seconds, 1),
        "seconds_undisturbed": round(undisturbed, 1),
    }


def _ended(cluster, flags, output, kills):
    """Returns what the programs of a run have said, or None if not all kills were done.

    A program that is killed is resumed, and another node takes the place of one that is gone.
    """
    said, sprung = "", output.with_name("sprung")
    sprung.parent.mkdir(parents=True, exist_ok=True)
    sprung.write_text("")

    def count_sprung():
        return sprung.read_text().count("\n")

    while True:
        traps = {"kills": kills[count_sprung() :], "sprung": str(sprung), "output": str(output)}
        traps["first_node"] = cluster.nodes[0].leader
        environment = cluster.environment | {"PYTHONPATH": str(ROOT), _TRAPS: json.dumps(traps)}
        running = start(flags, output, environment, (__file__,))
        while running.poll() is None:
            if not any(node.is_running() for node in cluster.nodes[1:]):
                cluster.add_node()
            time.sleep(0.02)
        if running.returncode != -signal.SIGKILL:
            said += finish(running)
            return said if count_sprung() == len(kills) else None
        said += running.communicate()[1]


def _program(arguments, traps):
    """Runs the program, which does the kills itself."""
    from tf_pflego.main import main as program
    from tf_pflego.ray.cluster import RayCluster

    call, waiting, output = RayCluster.call, traps["kills"], pathlib.Path(traps["output"])

    def with_traps(cluster, shard, method, *others):
        (asked, *_) = others or (None,)
        commits = method == "settle_and_call" and asked.keep
        is_last = commits and shard == cluster.num_shards - 1
        if is_last and waiting and rounds_of(output) + 1 >= waiting[0]["round"]:
            kill = waiting.pop(0)
            victims = _victims(cluster, kill, traps["first_node"])
            spring = functools.partial(_spring, traps["sprung"], kill, victims)
            if kill["when"] == _BETWEEN:
                spring()
            else:
                timer = threading.Timer(random.uniform(0, _MOST_SECONDS), spring)
                timer.daemon = True
                timer.start()
        return call(cluster, shard, method, *others)

    RayCluster.call = with_traps
    return program(["tf_pflego", *arguments])


def _victims(cluster, kill, first_node):
    """Returns the processes that a kill is of."""
    if kill["what"] == "program":
        return [os.getpid()]
    hosts = cluster.wait([cluster.call(shard, "process_id") for shard in range(cluster.num_shards)])
    if kill["what"] == "shard":  # The one that has been told to commit, or the other one.
        return [hosts[kill["round"] % len(hosts)]]
    return processes_of(next(node for node in map(os.getsid, hosts) if node != first_node))


def _spring(sprung, kill, victims):
    with open(sprung, "a", encoding="utf-8") as file:
        file.write(f"{kill['round']}\n")
    for process in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def refuse_strangers(scratch, data_dir=""):
    """Starts programs that try to run code on the cluster of a run on one machine.

    Only the one with the run's token may; it shows that the others lack nothing else.
    """
    code = (
        "import pathlib, ray, sys; ray.init(sys.argv[1], logging_level='FATAL'); "
        "ray.get(ray.remote(num_cpus=0)(pathlib.Path.touch).remote(pathlib.Path(sys.argv[2])))"
    )
    tokens = {"none, without authentication": {"RAY_AUTH_MODE": "disabled"}, "none": {}}
    tokens["another"] = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    flags = ["--engine=ray", "--num_shards=2", "--num_rounds=1000000", "--num_clients=20"]
    running = start([*flags, "--dataset=digits", f"--data_dir={data_dir}"], scratch / "run")
    wait_for_round(running, scratch / "run", 1)
    nodes = psutil.Process(running.pid).children(recursive=True)
    found = [re.search(r"--gcs-address=(\S+)", " ".join(node.cmdline())) for node in nodes]
    node, address = next((node, one[1]) for node, one in zip(nodes, found, strict=True) if one)
    tokens["the run's"] = {"RAY_AUTH_MODE": "token"} | {
        name: value for name, value in node.environ().items() if name == "RAY_AUTH_TOKEN"
    }
    for name, token in tokens.items():
        mark, home = scratch / f"mark of {name}", {"HOME": str(scratch)}
        command, before = [sys.executable, "-c", code, address, mark], rounds_of(scratch / "run")
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, env=os.environ | home | token, timeout=60, check=False)
        good = mark.exists() == (name == "the run's") and rounds_of(scratch / "run") > before
        yield {"token": name, "its code ran": "yes" if mark.exists() else "no"}, good
    running.terminate()
    running.wait()


def compare_nodes(
    scratch,
    data_dir="",
    shards=10,
    nodes=("1", "2", "5"),
    methods=("pflego", "ditto"),
    results=ROOT / "results" / "ray_nodes.json",
):
    """Makes a run of each method on each cluster, whose end must have the bits of the first one.

    A cluster has as many cores as the shards need, and half a gigabyte of memory per shard.
    """
    rows, checksums = [], {}
    for count in map(int, nodes):
        with LocalCluster(count, cpus=-(-shards // count)) as cluster:
            for method in methods:
                flags = [*_FLAGS_OF_NODES, f"--algorithm={method}", f"--data_dir={data_dir}"]
                flags.append(f"--num_shards={shards}")
                row = {"method": method, "shards": shards, "nodes": count}
                row |= _run_on_nodes(cluster, flags, scratch / f"{method}_{count}")
                rows.append(row)
                yield row, checksums.setdefault(method, row["checksum"]) == row["checksum"]
    results.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def _run_on_nodes(cluster, flags, output):
    started = time.monotonic()
    running = start(flags, output, cluster.environment | {"PYTHONPATH": str(ROOT)})
    most = [0] * len(cluster.nodes)
    while running.poll() is None:  # Before the run ends, so that its processes can be counted.
        most = max(most, [_count_shards(node) for node in cluster.nodes], key=sum)
        time.sleep(0.5)
    finish(running)
    return {
        "shards_on_nodes": " ".join(map(str, most)),
        "seconds": round(time.monotonic() - started, 1),
        "checksum": f"{zlib.crc32(repr(end(output)).encode()):08x}",
    }


def _count_shards(node):
    """Returns how many processes on a node have a shard."""
    there, found = processes_of(node.leader), psutil.process_iter(["cmdline"])
    commands = [one.info["cmdline"] or [""] for one in found if one.pid in there]
    return sum(command[0].startswith("ray::Host") for command in commands)


if __name__ == "__main__":
    sys.exit(_program(sys.argv[1:], json.loads(os.environ.pop(_TRAPS))))
