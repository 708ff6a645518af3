"""Kills runs again and again, resumes them, and compares their ends with those of undisturbed runs.

  python tools/kill_runs.py [--kills=40] [--engines=in_process,tff] [--methods=pflego,...]
                            [--data_dir=DIR] [--seed=0]

For each method and engine, a small run on digits that checkpoints every round is killed (SIGKILL):
in one case of four at a random time after its start, else at a random time after its first round.
Before each resumption a file of the newest checkpoint is cut off in one case of four. When the
case's share of the kills is used up, or the run has ended, it must have the weights, the clients'
states, the metrics apart from seconds, and the clients.csv of a run that nothing disturbed. A table
says what was done; the exit code is 1 if an end differs. It takes some minutes.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import csv
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np
from experiments import ROOT

from tf_pflego import console

_FLAGS = (
    *("--dataset=digits", "--num_clients=20", "--clients_per_round=5", "--num_rounds=150"),
    *("--eval_every=5", "--checkpoint_every=1"),
)
_COLUMNS = ("method", "engine", "kills", "rounds at the kills", "cut off", "passed over", "the end")


def main(arguments: list[str]) -> int:
    """Runs the campaign and prints a row per method and engine."""
    options = _options(arguments)
    rng = random.Random(options.seed)
    cases = [(m, e) for m in options.methods.split(",") for e in options.engines.split(",")]
    left, good = options.kills, True
    console.show("| " + " | ".join(_COLUMNS) + " |\n" + "|---" * len(_COLUMNS) + "|")
    with tempfile.TemporaryDirectory(prefix="tf_pflego_kill_") as scratch:
        for place, (method, engine) in enumerate(cases):
            # The kills that are left are shared among the cases that are left.
            share = -(-left // (len(cases) - place))
            row = _case(method, engine, share, pathlib.Path(scratch), options.data_dir, rng)
            left -= row["kills"]
            good = good and row["the end"] == "the same"
            console.show("| " + " | ".join(str(row[name]) for name in _COLUMNS) + " |")
    return 0 if good else 1


def _case(method, engine, kills, scratch, data_dir, rng):
    undisturbed, killed = (scratch / f"{method}_{engine}_{kind}" for kind in ("whole", "killed"))
    flags = [f"--algorithm={method}", f"--engine={engine}", *_FLAGS, f"--data_dir={data_dir}"]
    started = time.time()
    _finish(_start(flags, undisturbed))
    first, last = (
        (undisturbed / name).stat().st_mtime for name in ("config.json", "metrics.jsonl")
    )
    row = dict.fromkeys(("kills", "cut off", "passed over"), 0)
    row |= {"method": method, "engine": engine, "rounds at the kills": []}
    while row["kills"] < kills:
        running = _start([*flags, "--resume"], killed)
        if rng.random() < 0.25:
            delay = rng.uniform(0, first - started)
        else:
            _wait_for_a_round(running, killed / "metrics.jsonl")
            delay = rng.uniform(0, (last - first) / kills)
        try:
            running.wait(delay)
        except subprocess.TimeoutExpired:
            running.kill()
            row["kills"] += 1
        row["passed over"] += "is damaged" in running.communicate()[1]
        metrics = killed / "metrics.jsonl"
        rounds = len(metrics.read_bytes().splitlines()) if metrics.exists() else 0
        row["rounds at the kills"].append(rounds)
        if (killed / "summary.json").exists():
            break
        row["cut off"] += rng.random() < 0.25 and _cut_off(killed, rng)
    row["passed over"] += "is damaged" in _finish(_start([*flags, "--resume"], killed))
    row["rounds at the kills"] = " ".join(map(str, row["rounds at the kills"]))
    row["the end"] = "the same" if _end(killed) == _end(undisturbed) else "DIFFERENT"
    shutil.rmtree(undisturbed)
    shutil.rmtree(killed)
    return row


def _start(flags, output):
    command = [sys.executable, "-m", "tf_pflego.main", *flags, f"--output_dir={output}"]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, **pipes)


def _wait_for_a_round(running, metrics):
    """Returns when the file has grown, or the run has ended."""
    size = metrics.stat().st_size if metrics.exists() else 0
    while running.poll() is None:
        now = metrics.stat().st_size if metrics.exists() else 0
        if now > size:
            return
        size = now  # A run that goes on may first make the file shorter.
        time.sleep(0.002)


def _finish(running):
    _, errors = running.communicate()
    if running.returncode:
        raise RuntimeError(f"a run must end with code 0; got {running.returncode}:\n{errors}")
    return errors


def _checkpoints(output):
    paths = (output / "checkpoints").glob("checkpoint-*.json")
    return sorted(paths, key=lambda path: int(path.stem.split("-")[1]))


def _cut_off(output, rng):
    """Cuts off a file that only the newest of two checkpoints needs, if there are two."""
    paths = _checkpoints(output)
    if len(paths) < 2:
        return False
    number = paths[-1].stem.split("-")[1]
    own = [paths[-1], *(output / "checkpoints").glob(f"*-{number}.npz")]
    path = rng.choice(own)
    with open(path, "r+b") as file:
        file.truncate(rng.randrange(path.stat().st_size))
    return True


def _end(output):
    """Returns what a run ends with, apart from the time that it took."""
    text = (output / "metrics.jsonl").read_text(encoding="utf-8")
    records = [json.loads(line) for line in text.splitlines()]
    for record in records:
        del record["seconds"]
    with open(output / "clients.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    content = json.loads(_checkpoints(output)[-1].read_text(encoding="utf-8"))["content"]
    clients = {}
    for segment in content["clients"]:
        arrays = _arrays(output / "checkpoints" / segment["file"])
        for place, client in enumerate(arrays.pop("ids").tolist()):
            state = {name: leaf[place].tobytes() for name, leaf in arrays.items()}
            clients.setdefault(client, state)
    server = {name: leaf.tobytes() for name, leaf in _arrays(output / "server.npz").items()}
    return records, rows, clients, server


def _arrays(path):
    with np.load(path) as arrays:
        return dict(arrays)


def _options(arguments):
    from tf_pflego.algorithms import REGISTRY

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=40, help="how many in all (default 40)")
    parser.add_argument("--engines", default="in_process,tff", help="default both")
    parser.add_argument("--methods", default=",".join(REGISTRY), help="default all")
    parser.add_argument("--data_dir", default="", help="the TFDS data directory")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random times (default 0)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    console.prepare()
    sys.exit(main(sys.argv[1:]))
