"""Kills runs, resumes them, and compares their ends with those of undisturbed runs.

  python tools/kill_runs.py [--runs=40] [--engines=in_process,tff] [--methods=pflego,...]
                            [--data_dir=DIR] [--seed=0]

The runs are shared among the methods and engines; 40 are one for each of the 20 methods on each of
the two engines. Each is a small run on digits that checkpoints every round. It is killed (SIGKILL)
and resumed, and every third run is killed and resumed once more. A kill comes at a random time
after the start in one case of four, else at a random time within a random round. Before each
resumption a file of the newest checkpoint is cut off in one case of four. In the end each run must
have the weights, the clients' states, the metrics apart from seconds, and the clients.csv of a run
that nothing disturbed. A table says what was done; the exit code is 1 if an end differs. It takes
about half an hour on two cores.
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

from tf_pflego.system import terminal

_ROUNDS = 150
FLAGS = (
    *("--dataset=digits", "--num_clients=20", "--clients_per_round=5", f"--num_rounds={_ROUNDS}"),
    *("--eval_every=5", "--checkpoint_every=1"),
)
_COUNTS = ("runs", "killed twice", "cut off", "passed over")
_COLUMNS = ("method", "engine", *_COUNTS, "rounds at the kills", "the end")


def main(arguments: list[str]) -> int:
    """Runs the campaign, and prints a row per method and engine and one of the sums."""
    options = _options(arguments)
    rng = random.Random(options.seed)
    cases = [(m, e) for m in options.methods.split(",") for e in options.engines.split(",")]
    done, sums, same = 0, dict.fromkeys(_COUNTS, 0), []
    terminal.show("| " + " | ".join(_COLUMNS) + " |\n" + "|---" * len(_COLUMNS) + "|")
    with tempfile.TemporaryDirectory(prefix="tf_pflego_kill_") as scratch:
        for place, (method, engine) in enumerate(cases):
            # The runs that are left are shared among the cases that are left.
            share = -(-(options.runs - done) // (len(cases) - place))
            if not share:
                break
            kills = [1 if number % 3 else 2 for number in range(done, done + share)]
            done += share
            row = _case(method, engine, kills, pathlib.Path(scratch), options.data_dir, rng)
            same.append(row["the end"] == "the same")
            sums = {name: sums[name] + row[name] for name in _COUNTS}
            _print(row)
    _print({"method": "all", "engine": "", **sums, "rounds at the kills": "", "the end": ""})
    return 0 if all(same) else 1


def _print(row):
    terminal.show("| " + " | ".join(str(row[name]) for name in _COLUMNS) + " |")


def _case(method, engine, kills, scratch, data_dir, rng):
    """Returns the row of a method on an engine, with one run for each number in `kills`."""
    undisturbed, killed = (scratch / f"{method}_{engine}_{kind}" for kind in ("whole", "killed"))
    flags = [f"--algorithm={method}", f"--engine={engine}", *FLAGS, f"--data_dir={data_dir}"]
    started = time.time()
    finish(start(flags, undisturbed))
    first, last = (
        (undisturbed / name).stat().st_mtime for name in ("config.json", "metrics.jsonl")
    )
    seconds = {"start": first - started, "round": (last - first) / _ROUNDS}
    row = dict.fromkeys(_COUNTS, 0) | {"method": method, "engine": engine}
    row |= {"runs": len(kills), "killed twice": kills.count(2)}
    ends, rounds = [], []
    for wanted in kills:
        while (found := _killed_run(flags, killed, wanted, seconds, rng)) is None:
            shutil.rmtree(killed)  # It came to its end before it was killed often enough.
        rounds.append(" ".join(map(str, found["rounds"])))
        row["cut off"] += found["cut off"]
        row["passed over"] += found["passed over"]
        ends.append(end(killed) == end(undisturbed))
        shutil.rmtree(killed)
    shutil.rmtree(undisturbed)
    same = "the same" if all(ends) else "DIFFERENT"
    return row | {"rounds at the kills": "; ".join(rounds), "the end": same}


def _killed_run(flags, output, kills, seconds, rng):
    """Returns what was done to a run that was killed and resumed, or None if it ended too early."""
    found = {"rounds": [], "cut off": 0, "passed over": 0}
    for number in range(1, kills + 1):
        running = start([*flags, "--resume"], output)
        if rng.random() < 0.25:
            delay = rng.uniform(0, seconds["start"])
        else:
            least = found["rounds"][-1] + 1 if found["rounds"] else 1
            wait_for_round(running, output, rng.randint(least, _ROUNDS * number // kills))
            delay = rng.uniform(0, seconds["round"])
        time.sleep(delay)
        running.kill()
        found["passed over"] += "is damaged" in running.communicate()[1]
        if (output / "summary.json").exists():
            return None
        found["rounds"].append(rounds_of(output))
        found["cut off"] += rng.random() < 0.25 and _cut_off(output, rng)
    found["passed over"] += "is damaged" in finish(start([*flags, "--resume"], output))
    return found


def start(flags, output):
    """Starts the program with these flags."""
    command = [sys.executable, "-m", "tf_pflego.main", *flags, f"--output_dir={output}"]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, **pipes)


def wait_for_round(running, output, wanted):
    """Returns when this round is in the metrics, or the run has ended."""
    while running.poll() is None and rounds_of(output) < wanted:
        time.sleep(0.002)


def rounds_of(output):
    """Returns how many rounds the metrics in a directory have."""
    metrics = output / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def finish(running):
    """Waits for the end of a program, which must be good, and returns its standard error."""
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


def end(output):
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
    parser.add_argument("--runs", type=int, default=40, help="how many in all (default 40)")
    parser.add_argument("--engines", default="in_process,tff", help="default both")
    parser.add_argument("--methods", default=",".join(REGISTRY), help="default all")
    parser.add_argument("--data_dir", default="", help="the TFDS data directory")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random times (default 0)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    terminal.prepare()
    sys.exit(main(sys.argv[1:]))
