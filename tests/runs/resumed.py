"""A small run on digits that tests stop, damage or kill, and what it must end with."""

import csv
import json
import os
import signal
import sys

import numpy as np

from tests.starts import in_this_process, replaced

ROUNDS = 7
SMALL = (
    "--dataset=digits",
    "--num_clients=6",
    "--clients_per_round=2",
    "--local_steps=3",
    "--engine=in_process",
    "--eval_every=3",
    "--train_loss_every=2",
    "--checkpoint_every=2",
)
FINISHED = [
    "checkpoints", "clients.csv", "config.json", "metrics.jsonl", "partition.npz", "server.npz",
    "summary.json",
]  # fmt: skip


def flags_of(digits_dir, output, *more, rounds=ROUNDS):
    places = (f"--data_dir={digits_dir}", f"--output_dir={output}")
    return replaced(*SMALL, f"--num_rounds={rounds}", *places, *more)


def records_of(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def configure(directory, **changed):
    """Changes what the directory of a run says of its configuration."""
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def outcome(directory):
    """What a run ends with: everything but the seconds, which tell the time."""
    records = records_of(directory)
    summary = json.loads((directory / "summary.json").read_text())
    for timed in (*records, summary):
        for name in [name for name in timed if name.startswith("seconds")]:
            del timed[name]
    with np.load(directory / "server.npz") as arrays:
        server = {name: array.tobytes() for name, array in arrays.items()}
    manifests = (directory / "checkpoints").glob("checkpoint-*.json")
    newest = max(manifests, key=lambda path: int(path.stem.split("-")[1]))
    clients = {}
    for segment in json.loads(newest.read_text())["content"]["clients"]:
        with np.load(newest.parent / segment["file"]) as arrays:
            (head_name,) = {"state/head", "state/method/head"} & {*arrays}
            for client, head in zip(arrays["ids"].tolist(), arrays[head_name], strict=True):
                clients.setdefault(client, head.tobytes())
    rows = list(csv.reader((directory / "clients.csv").open()))
    return {"rounds": records, "summary": summary, "server": server, "rows": rows} | clients


def contents(directory):
    return {
        path.relative_to(directory): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def resume(digits_dir, output, capsys, *more, rounds=ROUNDS):
    flags = flags_of(digits_dir, output, "--resume", *more, rounds=rounds)
    return in_this_process(flags, capsys)


def newest_round(directory):
    return max(int(path.stem.split("-")[1]) for path in directory.glob("checkpoint-*.json"))


def die_before(point, output):
    """Lets this process be killed before that one of its operations on files under `output`.

    Python reports these operations as audit events.
    """
    count = 0

    def hook(event, arguments):
        nonlocal count
        if arguments and str(arguments[0]).startswith(output):
            count += 1
            if count == point:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
