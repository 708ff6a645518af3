"""A run on several nodes ends with the bits of a run on one machine, also when a node is lost."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import local_cluster
import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is optional")
pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")

ROOT = pathlib.Path(__file__).parent.parent.parent
SHARDS, ROUNDS = 3, 40


def start(output_dir, digits_dir, environment, *flags):
    command = [
        *(sys.executable, "-m", "tf_pflego.main", "--engine=ray", f"--num_shards={SHARDS}"),
        *("--num_clients=12", "--clients_per_round=6", f"--num_rounds={ROUNDS}"),
        *("--local_steps=5", "--eval_every=10", "--checkpoint_every=3"),
        *(f"--data_dir={digits_dir}", f"--output_dir={output_dir}", *flags),
    ]
    return subprocess.Popen(
        command,
        env=environment | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process):
    said = process.communicate()[1]
    assert process.returncode == 0, said
    return said


def result_of(directory):
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]
    with np.load(directory / "server.npz") as arrays:
        return dict(arrays), lines


def wait_for_round(directory, number):
    path = directory / "metrics.jsonl"
    while not path.exists() or len(path.read_text().splitlines()) < number:
        time.sleep(0.05)


def test_where_the_shards_are_and_what_is_lost_does_not_change_a_bit(digits_dir, tmp_path):
    alone, spread = tmp_path / "alone", tmp_path / "spread"
    ended(start(alone, digits_dir, dict(os.environ)))
    with local_cluster.LocalCluster(nodes=2, cpus=2) as cluster:
        process = start(spread, digits_dir, cluster.environment, "--ray_address=auto")
        wait_for_round(spread, 5)
        cluster.nodes[1].kill()
        cluster.add_node()
        said = ended(process)
    assert "the run goes on from its last checkpoint" in said
    assert "without a token" not in said
    assert all(not node.is_running() for node in cluster.nodes)
    (expected, lines), (found, found_lines) = result_of(alone), result_of(spread)
    assert found_lines == lines
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])
