"""What is said of runs: of what clients are served or hold, of groups of them, and in the end."""

import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.comparison import assert_identical, assert_near
from tests.conftest import INPUTS, accuracies_of, built
from tests.methods import thorough
from tests.oracles import network
from tests.oracles.averaging import local_steps
from tf_pflego import data
from tf_pflego.core.participation import Participation
from tf_pflego.data import Dataset, Examples
from tf_pflego.runs import loading
from tf_pflego.runs.client_table import client_columns
from tf_pflego.runs.progress import result_table
from tf_pflego.simulation.evaluation import Evaluation, summarize
from tf_pflego.simulation.simulation import Simulation
from tf_pflego.system import rows

MEAN = "test_accuracy/client_mean"
ERROR = f"{MEAN}/standard_error"
EIGHT_STEPS = {"local_steps": 8, "client_learning_rate": 0.5}


def simulation_of(name, model, clients, per_round=3, **config):
    algorithm = built(name, model, **config)
    return Simulation(algorithm, clients, Participation(3, per_round), "in_process")


def float64(weights):
    theta, head = weights
    return [np.asarray(w, np.float64) for w in theta], np.asarray(head, np.float64)


def right(weights, split, client):
    """Which examples a client's network predicts right."""
    x, y = network.of_client(split, client)
    return network.forward(*weights, x)[2].argmax(axis=1) == y


@pytest.mark.parametrize("name", ["pflego", thorough("fedavg")])
@pytest.mark.parametrize("block_bytes", [1, 2**28], ids=["one client per block", "one block"])
def test_every_client_is_evaluated_with_what_it_is_served(
    name, block_bytes, tiny_model, tiny_clients, monkeypatch
):
    monkeypatch.setattr(rows, "_BLOCK_BYTES", block_bytes)
    simulation = simulation_of(name, tiny_model, tiny_clients, 2, local_steps=3)
    simulation.run_round()
    result = simulation.evaluate()
    server, losses, hits = simulation.server_state, [], []
    for client, classes in enumerate(tiny_clients.num_classes):
        if name == "pflego":
            weights = server.theta, simulation.client_states([client]).head[0][:classes]
        else:
            weights = server.weights
        weights = float64(weights)
        losses.append(network.loss(*weights, *network.of_client(tiny_clients.train, client)))
        hits.append(right(weights, tiny_clients.test, client).sum())
    np.testing.assert_allclose(result.train_loss, losses, rtol=1e-5)
    np.testing.assert_array_equal(result.test_hits, hits)
    metrics = result.metrics()
    assert metrics["train_loss"] == pytest.approx(np.dot([3, 7, 5], losses) / 15, rel=1e-5)
    of_clients = np.mean(np.array(hits) / [2, 4, 3])
    assert metrics[MEAN] == pytest.approx(of_clients)
    assert metrics["test_accuracy/example_mean"] == pytest.approx(sum(hits) / 9)


def means_of(networks, split):
    """The means over clients and over examples of what is predicted right."""
    found = [right(weights, split, client) for client, weights in enumerate(networks)]
    return {
        "client": np.mean([one.mean() for one in found]),
        "example": np.concatenate(found).mean(),
    }


def test_participants_are_tested_with_the_weights_they_hold(tiny_model, tiny_clients):
    """FedAvg tests each client's own network after its local steps, and not their mean."""
    clients = tiny_clients.with_validation(0.4, seed=2)
    simulation = simulation_of("fedavg", tiny_model, clients, **EIGHT_STEPS)
    start = float64(simulation.server_state.weights)
    record = simulation.run_round(evaluate=True)
    train = [network.of_client(clients.train, client) for client in range(3)]
    held = [local_steps(*start, *own, EIGHT_STEPS) for own in train]
    for split in ("validation", "test"):
        for over, mean in means_of(held, getattr(clients, split)).items():
            found = record[f"participant_{split}_accuracy/{over}_mean"]
            assert found == pytest.approx(mean)


def test_all_metrics_are_of_what_a_client_is_served(tiny_model, tiny_clients):
    """What is held out is not trained on, and each served model is tested on it."""
    held = tiny_clients.with_validation(0.4, seed=2)
    with simulation_of("ditto", tiny_model, held, local_steps=3) as simulation:
        record = simulation.run_round(evaluate=True)
        for position, model in enumerate(simulation.algorithm.served):
            prefix = f"{model}/" if position else ""
            served = [float64(simulation.served_weights(client, model)) for client in range(3)]
            for split in ("validation", "test"):
                for over, mean in means_of(served, getattr(held, split)).items():
                    found = record[f"{prefix}{split}_accuracy/{over}_mean"]
                    assert found == pytest.approx(mean)
            training = [network.of_client(held.train, client) for client in range(3)]
            losses = [network.loss(*one, *own) for one, own in zip(served, training, strict=True)]
            loss = np.average(losses, weights=held.train.sizes)
            assert record[f"{prefix}train_loss"] == pytest.approx(loss, rel=1e-5)
        states = simulation.client_states(range(3))
    without = dataclasses.replace(held, validation=None)
    with simulation_of("ditto", tiny_model, without, local_steps=3) as simulation:
        plain = simulation.run_round(evaluate=True)
        others = simulation.client_states(range(3))
        assert_identical(*map(tf.nest.flatten, (states, others)))
    for metric, value in plain.items():
        assert metric == "seconds" or record[metric] == value, metric
    assert {metric for metric in record if "validation" not in metric} == plain.keys()


def test_summary_is_the_last_value_and_the_mean_of_the_last_ten():
    moved = {"bytes_up": 1, "bytes_down": 2, "dropped": 1, "not_finite": 0}
    records = [
        {"round": k, "seconds": k, "train_loss": -k, MEAN: k, ERROR: k / 100} | moved
        for k in range(1, 21)
    ]
    summary = summarize(records)
    assert (summary[MEAN], summary[f"{MEAN}/last10"]) == (20, np.mean(range(11, 21)))
    assert summary[f"{ERROR}/last10"] == pytest.approx(np.mean(range(11, 21)) / 100)
    assert f"{ERROR}/best" not in summary
    assert summary["seconds_per_round/median"] == 10.5
    assert (summary["train_loss"], summary["bytes_down"], summary["bytes_up"]) == (-20, 40, 20)
    assert summary["dropped"] == 20
    assert "train_loss/last10" not in summary


# What differs is the order in which float32 sums over classes are taken.
TOLERANCE = 1e-5


def test_pflego_learns_the_same_whatever_its_clients_call_their_classes(tiny_model):
    """Personal heads: with their rows in the other order, all losses and hits are the same."""
    rng = np.random.default_rng(0)
    splits = [
        Examples(rng.normal(size=(120, INPUTS)).astype(np.float32), np.arange(120) % 6)
        for _ in range(2)
    ]
    dataset = Dataset("six", *splits, num_classes=6)
    plain = data.round_robin(splits[0].labels, splits[1].labels, 4, 3, 6, seed=0)
    permuted = data.permute_labels(plain, 1, 6, seed=0)
    algorithm = built("pflego", tiny_model, local_steps=3)
    pairs = zip(plain.classes, permuted.renamings, strict=True)
    places = [np.argsort(renaming[own]) for own, renaming in pairs]  # The old row of each new one.
    assert any(place.tolist() != [0, 1, 2] for place in places)
    every, ends, heads = range(4), [], None
    for partition in (plain, permuted):
        clients = data.assign_clients(dataset, partition)
        with Simulation(algorithm, clients, Participation(4, 2), "in_process") as simulation:
            if heads is None:
                heads = simulation.client_states(every).head
            else:
                states = simulation.client_states(every)
                rows = np.stack([head[place] for head, place in zip(heads, places, strict=True)])
                simulation.set_client_states(every, states._replace(head=rows))
            for _ in range(4):
                simulation.run_round()
            ends.append((simulation.evaluate(), simulation.server_state.theta))
    (found, theta), (expected, expected_theta) = ends
    np.testing.assert_allclose(found.train_loss, expected.train_loss, rtol=TOLERANCE)
    np.testing.assert_array_equal(found.test_hits, expected.test_hits)
    assert_near(theta, expected_theta, atol=TOLERANCE)


@pytest.fixture(scope="module")
def clients(digits_dir):
    config = pfl.RunConfig(
        data_dir=digits_dir, num_clients=10, permuted_fraction=0.3, shifted_fraction=0.5
    )
    return loading.load_clients(config)


def of_groups(clients):
    model = pfl.SplitModel(pfl.mlp(clients.example_shape, seed=0), num_outputs=2)
    algorithm = pfl.build_algorithm("ditto", model, local_steps=2)
    drawn = pfl.Participation(10, 4)
    return pfl.Simulation(algorithm, clients, drawn, "in_process", num_eval_clients=6)


@pytest.mark.thorough
def test_a_round_says_how_each_group_of_disagreeing_clients_fares(clients):
    with of_groups(clients) as simulation:
        records = [simulation.run_round(evaluate=True) for _ in range(2)]
        found = simulation.evaluate_all(sampled=True)
    columns = client_columns(found, clients)
    for model, prefix in (("personalized", ""), ("generic", "generic/")):
        accuracy = found[model].test_hits / found[model].test_examples
        for name, members in clients.client_groups.items():
            own = members[found[model].clients]
            assert list(columns[name]) == own.astype(int).tolist()
            for group, chosen in ((name, own), (f"not_{name}", ~own)):
                key = f"{prefix}test_accuracy/client_mean/{group}"
                assert records[-1][key] == pytest.approx(accuracy[chosen].mean())
    summary = summarize(records)
    key = "test_accuracy/client_mean/not_permuted"
    assert summary[f"{key}/last10"] == pytest.approx(np.mean([record[key] for record in records]))
    table = result_table(summary, "title", columns)
    values = f"{summary[key]:.4f} +{summary[f'{key}/last10']:.4f}"
    assert len(re.findall(rf"^      not permuted clients +{values}$", table, re.MULTILINE)) == 1
    assert "standard error clients" not in table
    assert max(map(len, table.splitlines())) <= 60


def test_a_group_of_nobody_has_no_mean_and_without_groups_nothing_more_is_said(clients):
    ones, nobody = np.ones(3, int), np.zeros(3, bool)
    metrics = Evaluation(accuracies_of(ones, ones), groups={"permuted": nobody}).metrics()
    assert metrics[f"{MEAN}/not_permuted"] == 1
    assert f"{MEAN}/permuted" not in metrics
    agreeing = dataclasses.replace(clients, client_groups={})
    with of_groups(agreeing) as simulation:
        found = simulation.evaluate_all()
    said = *found["personalized"].metrics(), *client_columns(found, agreeing)
    assert not [name for name in said if "permuted" in name or "shifted" in name]
