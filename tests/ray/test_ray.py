"""The engine on a Ray cluster: every algorithm agrees with the engine in process, to the same bits
wherever the shards are, and a run goes on when a shard is lost."""

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time

import benchmark_cases
import benchmark_work
import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.algorithms.test_contract import NAMES, build
from tests.comparison import assert_identical, assert_near
from tests.conftest import make_clients
from tests.engines.agreement import assert_agreement, of_shapes
from tests.ray.conftest import EVERY, ROUNDS, lines_of, result_of, run_on_shards
from tests.resources import commands
from tests.runs.test_tensorboard import assert_same_as_metrics
from tests.starts import ROOT, started_program
from tf_pflego import engines
from tf_pflego.program import failures
from tf_pflego.runs.loading import load_clients

ray = pytest.importorskip("ray", reason="Ray is optional")

from tf_pflego.ray.cluster import OPEN_CLUSTERS  # noqa: E402 - it imports Ray


@of_shapes
def test_ray_agrees_with_in_process(cluster, name, tiny_model, tiny_clients):
    assert_agreement(build(name, tiny_model), tiny_clients, cluster)


@pytest.mark.parametrize("name", NAMES)
def test_every_method_can_be_sent_to_a_host(name, tiny_model):
    sent = ray.cloudpickle.loads(ray.cloudpickle.dumps(build(name, tiny_model)))
    assert (sent.name, len(sent.exchanges)) == (name, len(build(name, tiny_model).exchanges))


def simulation_on(cluster, model, name="pflego", clients=None, **how):
    clients = make_clients() if clients is None else clients
    participation = pfl.Participation(clients.num_clients, 2)
    return pfl.Simulation(build(name, model), clients, participation, cluster, **how)


def test_clients_leave_and_join_on_shards_that_compile_as_in_process(cluster, tiny_model):
    ends = []
    for engine in (pfl.RayOptions(num_shards=2, compiles=True), "in_process"):
        with simulation_on(engine, tiny_model) as simulation:
            simulation.run(2)
            simulation.change_clients(leave=[1], join=make_clients(seed=11))
            # A cluster that is full would have no place for other hosts.
            assert len(OPEN_CLUSTERS) == (2 if engine != "in_process" else 1)
            simulation.run(3)
            ends.append([simulation.server_state, simulation.client_states(range(5))])
    assert_near(*map(tf.nest.flatten, ends), atol=2e-6)


def test_what_a_round_has_staged_is_discarded_and_not_what_came_before(cluster, tiny_model):
    """An exchange is run and rolled back between any two rounds, and nothing comes of it."""
    ends = []
    for rolls_back in (False, True):
        with simulation_on(cluster, tiny_model) as simulation:
            for _ in range(4):
                simulation.run_round()
                if rolls_back:
                    next_one, drawn = simulation.round_number + 1, simulation.participation
                    simulation._rounds.train(next_one, simulation.server_state, drawn, False)
                    simulation._engine.roll_back()
            ends.append([simulation.server_state, simulation.client_states(range(3))])
    assert_identical(*map(tf.nest.flatten, ends))


def test_rounds_are_timed_beside_those_in_process(cluster):
    clients = benchmark_work.federation([6] * 4, [2] * 4, 2, (4, 4, 1))
    report, outside = benchmark_cases.beside_in_process("name/", clients, 2, cluster, 2)
    seconds = report["name/seconds"]
    assert seconds["runs"] == len(outside) == 2
    assert 0 < min(outside) and max(outside) < 2 * seconds["p90"]
    here = report["name/in_process_seconds"]["median"]
    assert report["name/over_in_process"] == round(seconds["median"] / here, 3)


KILLED = 4  # The round after which a shard is killed, one after a checkpoint.


def kill(cluster, shard):
    (number,) = cluster.wait([cluster.call(shard, "process_id")], [shard])
    os.kill(number, signal.SIGKILL)


def test_hosts_that_have_ended_before_a_federation_opens_are_replaced(cluster, tiny_model):
    """The cluster knows that shard 0 has ended, and not that shard 1 has."""
    with simulation_on(cluster, tiny_model) as simulation:
        simulation.run(2)
        kill(cluster, 0)
        # Without a checkpoint the states are lost, and nothing waits for the host that has ended.
        for _ in range(2):
            with pytest.raises(engines.ShardLostError, match=r"has lost shard 0 \("):
                simulation.run_round()
    kill(cluster, 1)
    with simulation_on(cluster, tiny_model) as simulation:
        simulation.run(2)


def broken(model, error):
    """An algorithm whose clients raise an error, or return a state of another structure."""
    algorithm = build("fedavg", model)
    (exchange,) = algorithm.exchanges

    def client_update(message, state, client, round_):
        if error is not None:
            raise error
        result = exchange.client_update(message, state, client, round_)
        return result._replace(state=tf.zeros(3))

    changed = dataclasses.replace(exchange, client_update=client_update)
    return dataclasses.replace(algorithm, exchanges=(changed,))


@pytest.mark.parametrize(
    ("error", "code"),
    [(None, 2), (ValueError("of an algorithm"), 1), (KeyError("what"), 1), (MemoryError(), 2)],
    ids=["another state", "ValueError", "KeyError", "MemoryError"],
)
def test_an_error_at_a_shard_is_said_as_in_process(cluster, error, code, tiny_model, tmp_path):
    said = []
    for engine in ("in_process", cluster):
        participation = pfl.Participation(3, 2)
        with pfl.Simulation(
            broken(tiny_model, error), make_clients(), participation, engine
        ) as simulation:
            with pytest.raises(Exception) as raised:
                simulation.run_round()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("tempfile.tempdir", str(tmp_path))
                said.append(failures.explained(raised.value))
    assert [one for one, _ in said] == [code, code]
    first, second = (message.partition("Its traceback")[0] for _, message in said)
    assert first == second
    # The traceback tells where in the algorithm it was, also if that was in another process.
    traces = [path.read_text() for path in tmp_path.glob("*.traceback.txt")]
    assert len(traces) == (2 if code == 1 else 0)
    assert all("in client_update" in trace for trace in traces)


def test_more_shards_than_clients_are_refused(cluster, tiny_model):
    one = make_clients((3,), (2,), (2,))
    with pytest.raises(ValueError, match=r"`num_shards` must be at most the 1 clients; got 2"):
        pfl.Simulation(build("pflego", tiny_model), one, pfl.Participation(1, 1), cluster)


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (lambda: make_clients(seed=8), "must be the run's; their labels differ"),
        (
            lambda: pfl.load_dataset("digits", data_dir="/proc/none", download=False),
            f"{os.uname().nodename} must have the data of the run, as every node; .*/proc/none",
        ),
    ],
    ids=["other data", "no data"],
)
def test_a_node_without_the_data_of_the_run_is_named(cluster, load, expected, tiny_model):
    clients = dataclasses.replace(make_clients(), origin=pfl.data.Origin(load, np.arange(3)))
    with pytest.raises(ValueError, match=expected) as raised:
        simulation_on(cluster, tiny_model, clients=clients)
    assert failures.explained(raised.value)[0] == 2


REFUSED = {
    "--num_shards=21 --num_clients=20": ("the 20 clients; got 21", "Lower --num_shards"),
    "--num_shards=21 --num_clients=22 --num_new_clients=2": ("the 20 clients", "Lower"),
    "--ray_address=127.0.0.1:1": (
        "--ray_address must be a running cluster's, or empty",
        "`ray start --head`, or correct --ray_address",
    ),
}
# The program, again and again in one process.
REFUSING = """
import sys
from tf_pflego.system import deferred
deferred.defer()
from tf_pflego.main import main
assert {main(["", "--engine=ray", *flags.split()]) for flags in sys.argv[1:]} == {2}
assert not deferred.is_started()
"""


def test_what_a_cluster_cannot_take_is_refused_before_tensorflow_is_started():
    result = started_program(*REFUSED, code=REFUSING)
    assert result.returncode == 0, result.stderr
    for line, (said, remedy) in zip(result.stderr.splitlines(), REFUSED.values(), strict=True):
        assert said in line and remedy in line


def test_nodes_load_the_data_themselves(cluster, tiny_model, digits_dir):
    """Nothing of the examples passes through the cluster, also not those held out."""
    config = pfl.RunConfig(
        data_dir=digits_dir, num_clients=10, clients_per_round=4, validation_fraction=0.2
    )
    clients = load_clients(config)
    assert len(ray.cloudpickle.dumps(clients.shard(np.arange(5)).origin)) < 10_000
    ends = []
    for engine in (cluster, "in_process"):
        algorithm = pfl.build_algorithm("pflego", pfl.SplitModel(pfl.mlp((8, 8, 1), seed=0), 2))
        with pfl.Simulation(algorithm, clients, pfl.Participation(10, 4), engine) as simulation:
            summary = simulation.run(3)
            accuracies = [value for name, value in summary.items() if "validation" in name]
            assert len(accuracies) == 12
            ends.append([*tf.nest.flatten(simulation.server_state), accuracies])
    assert_near(*ends, atol=2e-6)


def test_a_run_goes_on_when_a_shard_is_killed(cluster, whole, digits_dir, tmp_path, capfd, caplog):
    seen = []

    def listen(record):
        seen.append(record["round"])
        if seen == [*range(1, KILLED + 1)]:
            kill(OPEN_CLUSTERS[-1], 1)

    capfd.readouterr()
    run_on_shards(tmp_path, digits_dir, listen, tensorboard=True)
    # Ray adds nothing of its own; TensorFlow may say that it rewrites a graph.
    said = capfd.readouterr().err.splitlines()
    assert [line for line in said if not line.startswith("I0000 ")] == []
    # Those since the last checkpoint are run again.
    assert seen == [*range(1, KILLED + 1), *range(KILLED // EVERY * EVERY + 1, ROUNDS + 1)]
    assert result_of(tmp_path) == whole
    assert_same_as_metrics(tmp_path)
    assert caplog.text.count("continues from its last checkpoint") == 1


def test_nothing_is_left_behind(digits_dir, tmp_path):
    """Nobody runs, so that nobody listens, after an interrupted program and a killed one."""
    program = (sys.executable, "-m", "tf_pflego.main", "--engine=ray", "--num_shards=1")
    settings = "--num_clients=10", "--clients_per_round=5", "--num_rounds=100000"
    running = {}
    for number in (signal.SIGINT, signal.SIGKILL):
        home = tmp_path / number.name
        home.mkdir()
        places = f"--data_dir={digits_dir}", f"--output_dir={home / 'run'}"
        running[number] = subprocess.Popen(
            [*program, *settings, *places, "--checkpoint_every=1"],
            cwd=ROOT,
            env=os.environ | {"TF_PFLEGO_TEST": str(home), "HOME": str(home)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
    for number, process in running.items():
        home = tmp_path / number.name
        while not lines_of(home / "run"):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        started = commands(f"TF_PFLEGO_TEST={home}")
        assert len(started) > 3
        # All interfaces reach the cluster, so it asks for a token.
        (raylet,) = [process for process, name in started.items() if name.endswith("raylet")]
        environment = pathlib.Path(f"/proc/{raylet}/environ").read_bytes()
        assert b"RAY_AUTH_MODE=token" in environment and b"RAY_AUTH_TOKEN=" in environment
        assert not (home / ".ray").exists()  # What other users may read has no token.
        process.send_signal(number)
    said = running[signal.SIGINT].communicate(timeout=200)[1]
    assert running[signal.SIGINT].returncode == 130
    assert said.splitlines()[-1].startswith("tf_pflego: interrupted; go on with it by --resume")
    running[signal.SIGKILL].communicate(timeout=200)
    # After a kill, what Ray runs beside a node tries for a minute to report the node's end.
    agents = {"ray::DashboardAgent", "ray::RuntimeEnvAgent"}
    for number, may_stay in ((signal.SIGINT, set()), (signal.SIGKILL, agents)):
        mark, end = f"TF_PFLEGO_TEST={tmp_path / number.name}", time.monotonic() + 200
        while set(commands(mark).values()) - may_stay and time.monotonic() < end:
            time.sleep(0.1)
        assert set(commands(mark).values()) <= may_stay
