"""A run on two shards, made once, with which those are compared that lose something on the way."""

import json

import numpy as np
import pytest

import tf_pflego as pfl

ROUNDS, EVERY = 100, 3  # So many that no end comes before what is lost on the way.
RUN = {
    "num_clients": 12,
    "clients_per_round": 6,
    "num_rounds": ROUNDS,
    "eval_every": 10,
    "checkpoint_every": EVERY,
    "num_new_clients": 2,
    "new_client_epochs": 1,
}
METHOD = {"client_learning_rate": 0.05, "local_steps": 5}


def run_on_shards(directory, digits_dir, listen=None, **more):
    """Makes the run, or goes on with it, on a cluster that is started for it."""
    places = {"data_dir": digits_dir, "output_dir": str(directory)}
    pfl.run(pfl.RunConfig(engine="ray", **RUN, **places, **more), listen, **METHOD)


def lines_of(directory):
    """Returns what there is of each round, which may be none."""
    path = directory / "metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def result_of(directory):
    """Returns what a run has ended with, without its seconds."""
    lines = [json.loads(line) for line in lines_of(directory)]
    for line in lines:
        del line["seconds"]
    with np.load(directory / "server.npz") as arrays:
        server = {name: array.tobytes() for name, array in arrays.items()}
    return (
        server,
        lines,
        [(directory / f"{of}.csv").read_text() for of in ("clients", "new_clients")],
    )


@pytest.fixture(scope="session")
def whole(made_once, digits_dir):
    """What the run ends with if nothing is lost."""
    place = made_once("on_shards", lambda path: run_on_shards(path / "run", digits_dir)) / "run"
    return result_of(place)
