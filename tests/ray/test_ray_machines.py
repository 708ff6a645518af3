"""A run on several nodes ends with the bits of a run on one machine, also when the program or a
node is lost; a node that does not come back ends it."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is optional")

import local_cluster

from tests.starts import code_of
from tests.sweeps import conftest as sweeps
from tf_pflego.sweeps import store

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")

ROOT = pathlib.Path(__file__).parents[2]
SHARDS, ROUNDS = 2, 12


def start(output_dir, digits_dir, environment, *flags):
    command = [
        *(sys.executable, "-m", "tf_pflego.main", "--engine=ray", f"--num_shards={SHARDS}"),
        *("--num_clients=12", "--clients_per_round=6", f"--num_rounds={ROUNDS}"),
        *("--local_steps=5", "--eval_every=10", "--checkpoint_every=3", "--resume"),
        *(f"--data_dir={digits_dir}", f"--output_dir={output_dir}", *flags),
    ]
    return subprocess.Popen(
        command,
        env=environment | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process, code=0):
    shown, said = process.communicate(timeout=200)
    assert process.returncode == code, said
    # Nothing of Ray's own is among what the run says or shows.
    assert "raylet" not in shown + said
    assert "gcs" not in (shown + said).lower()
    assert "logging.cc" not in said
    return said


def result_of(directory):
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]
    with np.load(directory / "server.npz") as arrays:
        return dict(arrays), lines


def wait_for_round(process, directory, number):
    path = directory / "metrics.jsonl"
    while not path.exists() or len(path.read_text().splitlines()) < number:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


@pytest.fixture(scope="module")
def cluster():
    """Two nodes, of which the second one is lost by the first test, and by the second one again."""
    with local_cluster.LocalCluster(nodes=2, cpus=2) as cluster:
        yield cluster
    assert all(not node.is_running() for node in cluster.nodes)


def test_the_files_of_the_nodes_are_in_a_directory_of_this_user_alone(cluster):
    commands = [
        pathlib.Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        for node in cluster.nodes
        for process in local_cluster.processes_of(node.leader)
    ]
    raylets = [command for command in commands if command[0].endswith(b"/raylet")]
    assert len(raylets) == 2
    for command in raylets:
        (socket,) = [part for part in command if part.startswith(b"--store_socket_name=")]
        *_, place = pathlib.Path(os.fsdecode(socket.partition(b"=")[2])).parents[:4]
        assert place.name.startswith("tf_pflego_cluster_")
        assert place.stat().st_mode & 0o777 == 0o700


@pytest.mark.grappler
def test_a_sweep_on_the_nodes_has_the_results_of_one_on_this_machine(cluster, digits_dir, tmp_path):
    here, nodes = (
        sweeps.command(tmp_path / name, digits_dir, "--algorithm=fedavg")
        for name in ("here", "nodes")
    )
    assert code_of(here) == 0
    program = [sys.executable, "-m", "tf_pflego.main", *nodes, "--jobs=2", "--ray_address=auto"]
    environment = cluster.environment | {"PYTHONPATH": str(ROOT)}
    subprocess.run(program, env=environment, check=True, timeout=200)
    for name in (store.RUNS, store.TUNING):
        assert len(sweeps.rows_of(tmp_path / "here", name)) == 2
        assert sweeps.rows_of(tmp_path / "nodes", name) == sweeps.rows_of(tmp_path / "here", name)


def test_where_the_shards_are_and_what_is_lost_does_not_change_a_bit(cluster, digits_dir, tmp_path):
    alone, spread = tmp_path / "alone", tmp_path / "spread"
    ended(start(alone, digits_dir, dict(os.environ)))
    on_cluster = spread, digits_dir, cluster.environment, "--ray_address=auto"
    process = start(*on_cluster)
    wait_for_round(process, spread, 4)
    process.kill()
    process.communicate()
    process = start(*on_cluster)
    wait_for_round(process, spread, 7)
    cluster.nodes[-1].kill()
    cluster.add_node()
    said = ended(process)
    assert "the run goes on from its last checkpoint" in said
    assert "without a token" not in said
    (expected, lines), (found, found_lines) = result_of(alone), result_of(spread)
    assert found_lines == lines
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])


def test_a_node_that_does_not_come_back_ends_the_run(cluster, digits_dir, tmp_path):
    # A node has a place for one shard. The deadline is also that of the start of two processes.
    flags = "--ray_address=auto", "--node_deadline=60", "--num_rounds=100000", "--cpus_per_shard=2"
    cluster.wait()
    process = start(tmp_path, digits_dir, cluster.environment, *flags)
    wait_for_round(process, tmp_path, 4)
    cluster.nodes[-1].kill()
    said = ended(process, code=2).splitlines()
    # Which shards they are is up to the cluster.
    waiting, ended_by = said[-2:]
    assert waiting.startswith("tf_pflego: waiting for nodes that can take shards ")
    assert waiting.endswith(", up to 60 s")
    assert ended_by.startswith("tf_pflego: the cluster has had no place for shards ")
    assert "Add nodes to it, or lower --num_shards, --cpus_per_shard or --gpus_" in ended_by
    hosts = [
        process
        for node in cluster.nodes
        for process in local_cluster.processes_of(node.leader)
        if pathlib.Path(f"/proc/{process}/cmdline").read_bytes().startswith(b"ray::Host")
    ]
    assert hosts == []
    # The checkpoint is there, and what is wrong about a resumption is said before anything is done.
    said = ended(start(tmp_path, digits_dir, cluster.environment, *flags, "--num_shards=1"), code=2)
    assert "--num_shards: expected 2, got 1" in said
