"""Kills and stops the TFF workers of runs, and compares their ends with those of undisturbed runs.

  python tools/fault_runs.py [--kills=20] [--stops=5] [--methods=pflego,...] [--data_dir=DIR]
                             [--seed=0]

A small run of each method on digits is left alone, and a second one has its worker killed (SIGKILL)
or stopped (SIGSTOP) at random times: in one case of four soon after the last time, when the new
worker may still be starting, else after another round. The run must go on with another worker, say
so in a line, and have the end that `tools/kill_runs.py` compares. A table says what was done; the
exit code is 1 if an end differs. It takes some minutes.
"""

import argparse
import contextlib
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from kill_runs import FLAGS, end, finish, rounds_of, start, wait_for_round

from tf_pflego.system import terminal

_START_SECONDS = 1.0  # about as long as a worker takes to start
_METHODS = "pflego,fedavg,ditto,pgfed,fedfomo"
_COLUMNS = ("method", "kills", "stops", "lines", "rounds then", "seconds", "the end")


def main(arguments: list[str]) -> int:
    """Runs the campaign and prints a row per method."""
    options = _options(arguments)
    rng = random.Random(options.seed)
    methods = options.methods.split(",")
    faults = [signal.SIGKILL] * options.kills + [signal.SIGSTOP] * options.stops
    rng.shuffle(faults)
    good = True
    terminal.show("| " + " | ".join(_COLUMNS) + " |\n" + "|---" * len(_COLUMNS) + "|")
    with tempfile.TemporaryDirectory(prefix="tf_pflego_fault_") as scratch:
        for place, method in enumerate(methods):
            own = faults[place :: len(methods)]
            row = _case(method, own, pathlib.Path(scratch), options.data_dir, rng)
            good = good and row["the end"] == "the same"
            terminal.show("| " + " | ".join(str(row[name]) for name in _COLUMNS) + " |")
    return 0 if good else 1


def _case(method, faults, scratch, data_dir, rng):
    undisturbed, disturbed = (scratch / f"{method}_{kind}" for kind in ("whole", "disturbed"))
    flags = [f"--algorithm={method}", "--engine=tff", *FLAGS, f"--data_dir={data_dir}"]
    finish(start(flags, undisturbed))
    first, last = (
        (undisturbed / name).stat().st_mtime for name in ("config.json", "metrics.jsonl")
    )
    started = time.time()
    running, metrics, rounds = start(flags, disturbed), disturbed / "metrics.jsonl", []
    for fault in faults:
        if not rounds or rng.random() < 0.75:
            wait_for_round(running, disturbed, rounds_of(disturbed) + 1)
            longest = (last - first) / len(faults)
        else:
            longest = _START_SECONDS
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(rng.uniform(0, longest))
        worker = _worker(running)
        if worker is None:
            break
        with contextlib.suppress(ProcessLookupError):  # It has just failed, or its program ended.
            os.kill(worker, fault)
        rounds.append(len(metrics.read_bytes().splitlines()))
    errors = finish(running)
    row = {"method": method, "seconds": f"{time.time() - started:.0f}"}
    row |= {"kills": 0, "stops": 0, "rounds then": " ".join(map(str, rounds))}
    for fault in faults[: len(rounds)]:
        row["kills" if fault == signal.SIGKILL else "stops"] += 1
    row["lines"] = errors.count("runs the exchange again")
    row["the end"] = "the same" if end(disturbed) == end(undisturbed) else "DIFFERENT"
    shutil.rmtree(undisturbed)
    shutil.rmtree(disturbed)
    return row


def _worker(running):
    """Returns the worker of a program, as soon as it has one; None if the program has ended."""
    children = pathlib.Path(f"/proc/{running.pid}/task/{running.pid}/children")
    while running.poll() is None:
        for child in children.read_text().split():
            with contextlib.suppress(FileNotFoundError):
                if "worker_binary" in pathlib.Path(f"/proc/{child}/cmdline").read_text():
                    return int(child)
        time.sleep(0.002)
    return None


def _options(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20, help="how many in all (default 20)")
    parser.add_argument("--stops", type=int, default=5, help="how many in all (default 5)")
    parser.add_argument("--methods", default=_METHODS, help=f"default {_METHODS}")
    parser.add_argument("--data_dir", default="", help="the TFDS data directory")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random times (default 0)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    terminal.prepare()
    sys.exit(main(sys.argv[1:]))
