"""Drills that kill programs, which are then resumed, and that harm the TFF workers of programs."""

import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import time

import psutil
from drill_runs import checkpoints, end, finish, rounds_of, start, undisturbed, wait_for_round

from tf_pflego.algorithms import REGISTRY

_ROUNDS = 150
_FLAGS = (
    *("--dataset=digits", "--num_clients=20", "--clients_per_round=5", f"--num_rounds={_ROUNDS}"),
    *("--eval_every=5", "--checkpoint_every=1"),
)
_WORKER_START_SECONDS = 1.0  # about as long as a worker takes to start


def kill_programs(
    scratch, data_dir="", seed=0, runs=42, engines=("in_process", "tff"), methods=tuple(REGISTRY)
):
    """Kills each run at a random time and resumes it, and every third run once more.

    The runs are shared among the methods and engines. A kill comes at a random time after the start
    in one case of four, else at a random time within a random round. Before each resumption a file
    of the newest checkpoint is cut off in one case of four.
    """
    rng = random.Random(seed)
    cases = list(itertools.product(methods, engines))
    for place, (method, engine) in enumerate(cases):
        numbers = range(place, runs, len(cases))
        row = {"method": method, "engine": engine, "runs": len(numbers)}
        if not numbers:
            yield row, None
            continue
        whole, killed = (scratch / name for name in ("whole", "killed"))
        flags = [f"--algorithm={method}", f"--engine={engine}", *_FLAGS, f"--data_dir={data_dir}"]
        seconds = undisturbed(flags, whole)
        harms, goods = [], []
        for number in numbers:
            kills = 1 if number % 3 else 2
            while (harm := _killed_run(flags, killed, kills, seconds, rng)) is None:
                shutil.rmtree(killed)  # It came to its end before it was killed often enough.
            harms.append(harm)
            goods.append(end(killed) == end(whole))
            shutil.rmtree(killed)
        shutil.rmtree(whole)
        row["killed twice"] = sum(len(harm["rounds"]) == 2 for harm in harms)
        row |= {key: sum(harm[key] for harm in harms) for key in ("cut off", "passed over")}
        rounds = (" ".join(map(str, harm["rounds"])) for harm in harms)
        yield row | {"rounds at the kills": "; ".join(rounds)}, all(goods)


def _killed_run(flags, output, kills, seconds, rng):
    """Returns what was done to a run that was killed and resumed, or None if it ended too early."""
    harm = {"rounds": [], "cut off": 0, "passed over": 0}
    before_rounds, of_rounds = seconds
    for number in range(1, kills + 1):
        running = start([*flags, "--resume"], output)
        if rng.random() < 0.25:
            delay = rng.uniform(0, before_rounds)
        else:
            least = harm["rounds"][-1] + 1 if harm["rounds"] else 1
            wait_for_round(running, output, rng.randint(least, _ROUNDS * number // kills))
            delay = rng.uniform(0, of_rounds / _ROUNDS)
        time.sleep(delay)
        running.kill()
        harm["passed over"] += "is damaged" in running.communicate()[1]
        if (output / "summary.json").exists():
            return None
        harm["rounds"].append(rounds_of(output))
        harm["cut off"] += rng.random() < 0.25 and _cut_off(output, rng)
    harm["passed over"] += "is damaged" in finish(start([*flags, "--resume"], output))
    return harm


def _cut_off(output, rng):
    """Cuts off a file that only the newest of two checkpoints needs, if there are two."""
    paths = checkpoints(output)
    if len(paths) < 2:
        return False
    number = paths[-1].stem.split("-")[1]
    path = rng.choice([paths[-1], *(output / "checkpoints").glob(f"*-{number}.npz")])
    with open(path, "r+b") as file:
        file.truncate(rng.randrange(path.stat().st_size))
    return True


def harm_workers(
    scratch,
    data_dir="",
    seed=0,
    kills=20,
    stops=5,
    methods=("pflego", "fedavg", "ditto", "pgfed", "fedfomo"),
):
    """Kills (SIGKILL) or stops (SIGSTOP) the worker of one run of each method at random times.

    In one case of four it is soon after the last time, when the new worker may still be starting,
    else after another round. The run must go on with another worker, and say so in a line.
    """
    rng = random.Random(seed)
    faults = [signal.SIGKILL] * kills + [signal.SIGSTOP] * stops
    rng.shuffle(faults)
    for place, method in enumerate(methods):
        whole, harmed = (scratch / f"{method}_{name}" for name in ("whole", "harmed"))
        flags = [f"--algorithm={method}", "--engine=tff", *_FLAGS, f"--data_dir={data_dir}"]
        of_rounds = undisturbed(flags, whole)[1]
        started, running, rounds = time.time(), start(flags, harmed), []
        faults_here = faults[place :: len(methods)]
        for fault in faults_here:
            longest = _WORKER_START_SECONDS
            if not rounds or rng.random() < 0.75:
                wait_for_round(running, harmed, rounds_of(harmed) + 1)
                longest = of_rounds / len(faults_here)
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(rng.uniform(0, longest))
            worker = _worker(running)
            if worker is None:
                break
            with contextlib.suppress(ProcessLookupError):  # It has failed, or its program ended.
                os.kill(worker, fault)
            rounds.append(rounds_of(harmed))
        lines = finish(running).count("runs the exchange again")
        done = faults_here[: len(rounds)]
        row = {"method": method, "kills": done.count(signal.SIGKILL)}
        row |= {"stops": done.count(signal.SIGSTOP), "lines": lines}
        row |= {"rounds then": " ".join(map(str, rounds))}
        row |= {"seconds": f"{time.time() - started:.0f}"}
        yield row, end(harmed) == end(whole) if rounds else None


def _worker(running):
    """Returns the worker of a program, as soon as it has one; None if the program has ended."""
    while running.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(running.pid).children():
                if "worker_binary" in " ".join(child.cmdline()):
                    return child.pid
        time.sleep(0.002)
    return None
