"""The engine on a Ray cluster: every algorithm agrees with the engine in process, to the same bits
wherever the shards are, and a run goes on when a shard is lost."""

import json
import os
import signal

import benchmark
import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.algorithms.test_contract import NAMES, TOYS, build
from tests.conftest import make_clients
from tests.engines.agreement import assert_agreement
from tf_pflego import engines, experiment

ray = pytest.importorskip("ray", reason="Ray is optional")

from tf_pflego.engines import ray_cluster  # noqa: E402 - it imports Ray


@pytest.fixture(scope="module")
def cluster():
    with ray_cluster.RayCluster(engines.RayOptions(num_shards=2)) as cluster:
        yield cluster


@pytest.mark.parametrize("name", [*NAMES, *TOYS])
def test_ray_agrees_with_in_process(cluster, name, tiny_model, tiny_clients):
    assert_agreement(build(name, tiny_model), tiny_clients, cluster)


def simulation_on(cluster, model, name="pflego", clients=None, **how):
    clients = make_clients() if clients is None else clients
    participation = pfl.Participation(clients.num_clients, 2)
    return pfl.Simulation(build(name, model), clients, participation, cluster, **how)


@pytest.mark.parametrize("name", ["pflego", "pgfed", "ditto"])
def test_a_checkpoint_goes_on_to_the_same_bits(cluster, name, tiny_model, tmp_path):
    with simulation_on(cluster, tiny_model, name) as first:
        first.run(3)
        first.save(tmp_path)
        first.run(3)
        expected = tf.nest.flatten((first.server_state, first.client_states(range(3))))
    with simulation_on(cluster, tiny_model, name) as second:
        second.restore(tmp_path)
        second.run(3)
        found = tf.nest.flatten((second.server_state, second.client_states(range(3))))
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_clients_leave_and_join_as_in_process(cluster, tiny_model):
    ends = []
    for engine in (cluster, "in_process"):
        with simulation_on(engine, tiny_model) as simulation:
            simulation.run(2)
            simulation.change_clients(leave=[1], join=make_clients(seed=11))
            simulation.run(3)
            ends.append(
                tf.nest.flatten((simulation.server_state, simulation.client_states(range(5))))
            )
    for a, b in zip(*ends, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)


def test_a_client_that_is_not_finite_is_left_out_as_in_process(cluster, tiny_model):
    ends = []
    for engine in (cluster, "in_process"):
        with simulation_on(engine, tiny_model, "everything") as simulation:
            simulation.run(2)
            states = tf.nest.map_structure(np.array, simulation.client_states([1]))
            broken = tf.nest.map_structure(
                lambda leaf: np.full_like(leaf, np.nan) if leaf.dtype == np.float32 else leaf,
                states,
            )
            simulation.set_client_states([1], broken)
            records = [simulation.run_round() for _ in range(3)]
            others = tf.nest.flatten(simulation.client_states([0, 2]))
            ends.append(([record.get("not_finite_clients") for record in records], others))
    assert ends[0][0] == ends[1][0]
    assert [1] in ends[0][0]
    for a, b in zip(ends[0][1], ends[1][1], strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)


def test_what_a_round_has_staged_is_discarded_and_not_what_came_before(cluster, tiny_model):
    """An exchange is run and rolled back between any two rounds, and nothing comes of it."""
    ends = []
    for rolls_back in (False, True):
        with simulation_on(cluster, tiny_model) as simulation:
            for _ in range(4):
                simulation.run_round()
                if rolls_back:
                    simulation._rounds.train(
                        simulation.round_number + 1,
                        simulation.server_state,
                        simulation.participation,
                        False,
                    )
                    simulation._engine.roll_back()
            ends.append(
                tf.nest.flatten((simulation.server_state, simulation.client_states([0, 1, 2])))
            )
    for a, b in zip(*ends, strict=True):
        np.testing.assert_array_equal(a, b)


def test_rounds_are_timed_beside_those_in_process(cluster):
    clients, report = benchmark.federation([6] * 4, [2] * 4, 2, (4, 4, 1)), {}
    outside = benchmark.time_beside_in_process(clients, 2, cluster, 2, report, "name/")
    seconds = report["name/seconds"]
    assert seconds["runs"] == len(outside) == 2
    assert 0 < min(outside) and max(outside) < 2 * seconds["p90"]
    here = report["name/in_process_seconds"]["median"]
    assert report["name/over_in_process"] == round(seconds["median"] / here, 3)


def test_more_shards_than_clients_are_refused(cluster, tiny_model):
    one = make_clients((3,), (2,), (2,))
    with pytest.raises(ValueError, match=r"`num_shards` must be at most the 1 clients; got 2"):
        pfl.Simulation(build("pflego", tiny_model), one, pfl.Participation(1, 1), cluster)


def test_other_data_on_a_node_are_refused(cluster, tiny_model, tiny_clients):
    def load():  # What another data directory would have.
        return make_clients(seed=8)

    origin = pfl.data.Origin(load, np.arange(3))
    clients = pfl.ClientData(
        tiny_clients.train, tiny_clients.test, tiny_clients.num_classes, origin=origin
    )
    with pytest.raises(ValueError, match="must be those of the run; their labels differ"):
        simulation_on(cluster, tiny_model, clients=clients)


def test_nodes_load_the_data_themselves(cluster, tiny_model, digits_dir):
    """Nothing of the examples passes through the cluster."""
    config = pfl.RunConfig(data_dir=digits_dir, num_clients=10, clients_per_round=4)
    clients = experiment.load_clients(config)
    assert len(ray.cloudpickle.dumps(clients.shard(np.arange(5)).origin)) < 10_000
    ends = []
    for engine in (cluster, "in_process"):
        algorithm = pfl.build_algorithm("pflego", pfl.SplitModel(pfl.mlp((8, 8, 1), seed=0), 2))
        with pfl.Simulation(algorithm, clients, pfl.Participation(10, 4), engine) as simulation:
            simulation.run(3)
            ends.append(tf.nest.flatten(simulation.server_state))
    for a, b in zip(*ends, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)


def run_that_is_killed(directory, digits_dir, rounds_with_kills):
    config = pfl.RunConfig(
        engine="ray",
        data_dir=digits_dir,
        num_clients=20,
        clients_per_round=10,
        num_rounds=12,
        eval_every=4,
        checkpoint_every=5,
        output_dir=str(directory),
    )
    killed = set()

    def kill(record):
        if record["round"] in rounds_with_kills - killed:
            killed.add(record["round"])
            cluster = ray_cluster.open_clusters()[-1]
            shard = len(killed) % 2
            (number,) = cluster.wait([cluster.call(shard, "process_id")], [shard])
            os.kill(number, signal.SIGKILL)

    pfl.run(config, kill, client_learning_rate=0.05, local_steps=5)
    assert killed == rounds_with_kills
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]
    with np.load(directory / "server.npz") as arrays:
        return dict(arrays), lines


def test_a_run_goes_on_when_a_shard_is_killed(digits_dir, tmp_path, capsys):
    expected, lines = run_that_is_killed(tmp_path / "whole", digits_dir, set())
    found, found_lines = run_that_is_killed(tmp_path / "killed", digits_dir, {3, 8})
    assert found_lines == lines
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])
    said = capsys.readouterr().err
    assert said.count("the run goes on from its last checkpoint") == 2


def listening_ports():
    """The TCP ports that processes of this machine listen on."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table) as lines:
            for line in list(lines)[1:]:
                _, local, _, state, *_ = line.split()
                if state == "0A":
                    found.add(int(local.split(":")[1], 16))
    return found
