"""The drills that kill programs at random times, also while they replace files or have jobs."""

import contextlib
import csv
import gzip
import itertools
import pathlib
import random
import shutil
import time
from typing import NamedTuple

import psutil
from drill_runs import end, finish, start

from tf_pflego.algorithms import REGISTRY

_FLAGS = (
    *("--dataset=digits", "--num_clients=6", "--clients_per_round=3", "--num_rounds=24"),
    *("--engine=in_process", "--checkpoint_every=3", "--eval_every=8"),
)
_LONG = (
    *("--dataset=digits", "--num_clients=20", "--clients_per_round=5", "--num_rounds=150"),
    *("--eval_every=5", "--checkpoint_every=1", "--resume"),
)
_SWEEP = (
    *("sweep", "--algorithm=pflego,fedper", "--client_learning_rate=0.01,0.1", "--seeds=0,1"),
    *("--dataset=digits", "--num_clients=6", "--clients_per_round=3", "--num_rounds=4"),
    *("--engine=in_process", "--jobs=2"),
)
_TABLES = "runs.csv", "tuning.csv", "clients.csv.gz"
_SECONDS_UNTIL_GONE = 15  # Processes that import packages see the end of their program later.


def kill_programs(
    scratch, data_dir="", seed=0, kills=2, engines=("in_process", "tff"), methods=tuple(REGISTRY)
):
    """Kills a run of each method on each engine at random times, and resumes it."""
    drill = _Drill(scratch, random.Random(seed), kills)
    for method, engine in itertools.product(methods, engines):
        flags = [f"--algorithm={method}", f"--engine={engine}", *_LONG, f"--data_dir={data_dir}"]
        yield drill.row(f"{method}, {engine}", flags, end)


def kill_replacing(scratch, data_dir="", seed=0, kills=10):
    """Kills (SIGKILL) each of four programs at random times, and runs it to its end then.

    A run and an export with `--overwrite` must have the old or the new files, whole, at each kill.
    A sweep with two jobs, and a run that stores features, go on.
    """
    drill = _Drill(scratch, random.Random(seed), kills)
    data, body, run = f"--data_dir={data_dir}", scratch / "body.keras", scratch / "run"
    finish(start([*_FLAGS, data], run))
    _save_frozen(body)

    def run_before(place):
        shutil.copytree(run, place)

    overwriting = [*_FLAGS, data, "--seed=1", "--overwrite"]
    yield drill.row("run --overwrite", overwriting, end, run_before, _runs_in)
    export = ["export", f"--run={run}", data, "--format=keras", "--overwrite", "--clients=0,1,2"]

    def export_before(place):
        finish(start(export, place))

    yield drill.row("export --overwrite", export, _files_in, export_before, _files_in)
    yield drill.row("sweep --jobs=2", [*_SWEEP, data], _tables_in)
    frozen = [*_FLAGS, data, f"--network={body}", "--resume"]
    yield drill.row("stored features", frozen, end)


class _Drill(NamedTuple):
    """Kills programs at random times. None may leave a process."""

    scratch: pathlib.Path
    rng: random.Random
    kills: int

    def row(self, name, flags, ending, lay=None, held=None):
        """Returns the row of a program, and whether an undisturbed one has the same `ending`.

        `lay` puts files into the directory first, and `held` lists the whole files there. After
        each kill, these are from before or from the undisturbed program.
        """
        whole, killed = (self.scratch / f"{name} {what}" for what in ("whole", "killed"))
        started = time.monotonic()
        finish(start(flags, whole))
        seconds = time.monotonic() - started
        allowed = []
        if lay is not None:
            lay(killed)
            allowed = [*held(killed), *held(whole)]
        done, goods = 0, []
        for _ in range(self.kills):
            running = start(flags, killed)
            time.sleep(self.rng.uniform(seconds * 0.4, seconds))
            done += running.poll() is None
            running.kill()
            running.communicate()
            if held is not None:
                goods.append(any(one in allowed for one in held(killed)))
            goods.append(_are_gone(killed))
        finish(start(flags, killed))
        row = {"program": name, "kills": done, "checks": len(goods), "wrong": goods.count(False)}
        good = all(goods) and ending(killed) == ending(whole) if done else None
        for place in (whole, killed):
            shutil.rmtree(place)
        return row, good


def _save_frozen(path):
    import tensorflow as tf

    layers = tf.keras.layers
    inner = layers.Dense(30, activation="relu", trainable=False)
    network = [tf.keras.Input((8, 8, 1)), layers.Flatten(), inner, layers.Dense(12)]
    tf.keras.Sequential(network).save(path)


def _runs_in(place):
    """Returns the whole runs in a directory: those that have a summary, by their clients.csv."""
    summaries = [*place.rglob("summary.json")]
    return [(one.parent / "clients.csv").read_bytes() for one in summaries]


def _files_in(place):
    """Returns the names of the files of an export, which stand for the whole of it."""
    return [sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())]


def _tables_in(place):
    """Returns the tables of a sweep, without seconds."""
    tables = {}
    for name in _TABLES:
        opened = gzip.open if name.endswith(".gz") else open
        with opened(place / name, "rt", newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        tables[name] = [
            {key: value for key, value in row.items() if "second" not in key} for row in rows
        ]
    return tables


def _are_gone(place: pathlib.Path) -> bool:
    """Returns whether no process that a killed program started is there any more."""
    deadline = time.monotonic() + _SECONDS_UNTIL_GONE
    while time.monotonic() < deadline:
        if not any(str(place) in " ".join(_command(one)) for one in psutil.process_iter()):
            return True
        time.sleep(0.05)
    return False


def _command(process):
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []
