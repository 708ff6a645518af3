"""A run on several nodes ends with the bits of a run on one machine, also when a node is lost; a
node that does not come back ends it."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest

pytest.importorskip("ray", reason="Ray is optional")

import local_cluster

from tests.ray.conftest import METHOD, RUN, lines_of, result_of, run_on_shards
from tests.resources import wait_until_gone
from tests.sweeps import conftest as sweeps
from tf_pflego.sweeps import store

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")

ROOT = pathlib.Path(__file__).parents[2]


def start(directory, digits_dir, cluster, *flags):
    """Starts the program for the run of conftest.py, or lets it go on with that."""
    settings = RUN | METHOD | {"data_dir": digits_dir, "output_dir": directory}
    command = [sys.executable, "-m", "tf_pflego.main", "--engine=ray", "--ray_address=auto"]
    # Each node has a place for one shard.
    command += ["--cpus_per_shard=2", "--resume", *(f"--{k}={v}" for k, v in settings.items())]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = cluster.environment | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen([*command, *flags], env=environment, **pipes)


def said_by(process, code):
    """Returns what a program has said, which ends with a code."""
    shown, said = process.communicate(timeout=200)
    assert process.returncode == code, said
    # Nothing of Ray's own is among what the run says or shows.
    assert "raylet" not in shown + said
    assert "gcs" not in (shown + said).lower()
    assert "logging.cc" not in said
    return said


def wait_for_rounds(process, directory, count):
    """Waits until there are so many more rounds than at this moment."""
    number = len(lines_of(directory)) + count
    while len(lines_of(directory)) < number:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


@pytest.fixture(scope="module")
def cluster():
    """Two nodes, of which the last test loses the second one twice.

    Their end is found in seconds. By default, Ray asks a node five times, each three seconds.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_health_check_period_ms", "500")
        with local_cluster.LocalCluster(nodes=2, cpus=2) as cluster:
            yield cluster
    assert all(not node.is_running() for node in cluster.nodes)


def commands_of(cluster):
    """Returns the commands of all processes of the nodes, by their ids."""
    found = {}
    for process in (p for node in cluster.nodes for p in local_cluster.processes_of(node.leader)):
        with contextlib.suppress(OSError):  # It may have ended.
            found[process] = pathlib.Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    return found


def test_the_files_of_the_nodes_are_in_a_directory_of_this_user_alone(cluster):
    raylets = [
        command for command in commands_of(cluster).values() if command[0].endswith(b"/raylet")
    ]
    assert len(raylets) == 2
    for command in raylets:
        (socket,) = [part for part in command if part.startswith(b"--store_socket_name=")]
        *_, place = pathlib.Path(os.fsdecode(socket.partition(b"=")[2])).parents[:4]
        assert place.name.startswith("tf_pflego_cluster_")
        assert place.stat().st_mode & 0o777 == 0o700


@pytest.mark.grappler
def test_a_sweep_on_the_nodes_has_the_results_of_one_on_this_machine(
    cluster, made_once, digits_dir, tmp_path
):
    command = sweeps.command(tmp_path, digits_dir, "--algorithm=fedavg")
    program = [sys.executable, "-m", "tf_pflego.main", *command, "--jobs=2", "--ray_address=auto"]
    environment = cluster.environment | {"PYTHONPATH": str(ROOT)}
    subprocess.run(program, env=environment, check=True, timeout=200)
    for name in (store.RUNS, store.TUNING):
        here, there = (
            [{k: v for k, v in row.items() if v} for row in rows if row["run"] == "fedavg"]
            for rows in (
                sweeps.rows_of(sweeps.finished_sweep(made_once, digits_dir), name),
                sweeps.rows_of(tmp_path, name),
            )
        )
        assert len(here) == 2
        assert there == here


def test_a_lost_node_changes_no_bit_and_one_that_does_not_come_back_ends_the_run(
    cluster, whole, digits_dir, tmp_path
):
    cluster.wait()
    # The deadline is also that of the start of two processes.
    process = start(tmp_path, digits_dir, cluster, "--node_timeout=60")
    wait_for_rounds(process, tmp_path, 4)
    cluster.nodes[-1].kill()  # From here on there is no round without another node.
    cluster.add_node()
    cluster.wait()
    wait_for_rounds(process, tmp_path, 4)
    cluster.nodes[-1].kill()
    said = said_by(process, 2)
    assert "the run continues from its last checkpoint" in said
    assert "without a token" not in said
    # Which shards they are is up to the cluster.
    waiting, ended_by = said.splitlines()[-2:]
    assert waiting.startswith("tf_pflego: waiting for nodes that can take shards ")
    assert waiting.endswith(", up to 60 s")
    assert ended_by.startswith("tf_pflego: the cluster has had no place for shards ")
    assert "Add nodes to it, or lower --num_shards, --cpus_per_shard or --gpus_" in ended_by
    for process, command in commands_of(cluster).items():
        if command[0].startswith(b"ray::Host"):  # Ray ends it after the program.
            wait_until_gone(process)
    # It goes on with as many shards, wherever they are.
    with pytest.raises(ValueError, match="`num_shards`: expected 2, got 1"):
        run_on_shards(tmp_path, digits_dir, resume=True, num_shards=1)
    run_on_shards(tmp_path, digits_dir, resume=True)
    assert result_of(tmp_path) == whole
