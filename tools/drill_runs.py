"""The runs of drills: how they are started and waited for, and their results."""

import atexit
import csv
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]


def start(
    flags: Sequence[str],
    output: pathlib.Path,
    environment: Mapping[str, str] | None = None,
    program: Sequence[str] = ("-m", "tf_pflego.main"),
) -> subprocess.Popen:
    """Starts the program with these flags. It does not outlive this process."""
    running = subprocess.Popen(
        [sys.executable, *program, *flags, f"--output_dir={output}"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    atexit.register(running.kill)
    return running


def finish(running: subprocess.Popen) -> str:
    """Waits for the end of a program, which must be good, and returns its standard error."""
    errors = running.communicate()[1]
    if running.returncode:
        raise RuntimeError(f"a run must end with code 0; got {running.returncode}:\n{errors}")
    return errors


def wait_for_round(running: subprocess.Popen, output: pathlib.Path, number: int) -> None:
    """Returns when this round is in the metrics, or the run has ended."""
    while running.poll() is None and rounds_of(output) < number:
        time.sleep(0.002)


def rounds_of(output: pathlib.Path) -> int:
    """Returns how many rounds the metrics in a directory have."""
    metrics = output / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def checkpoints(output: pathlib.Path) -> list[pathlib.Path]:
    """Returns the manifests of a run's checkpoints, the newest last."""
    paths = (output / "checkpoints").glob("checkpoint-*.json")
    return sorted(paths, key=lambda path: int(path.stem.split("-")[1]))


def end(output: pathlib.Path) -> tuple:
    """Returns the results of a run, apart from its time."""
    text = (output / "metrics.jsonl").read_text(encoding="utf-8")
    records = [json.loads(line) for line in text.splitlines()]
    for record in records:
        del record["seconds"]
    with open(output / "clients.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    content = json.loads(checkpoints(output)[-1].read_text(encoding="utf-8"))["content"]
    clients: dict[int, dict[str, bytes]] = {}
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
