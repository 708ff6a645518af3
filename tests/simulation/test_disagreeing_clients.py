"""Runs whose clients disagree: what they learn, and what is said of each group."""

import dataclasses
import re

import numpy as np
import pytest

import tf_pflego as pfl
from tests.comparison import assert_near
from tests.conftest import INPUTS, accuracies_of
from tests.methods import thorough
from tf_pflego import algorithms, data
from tf_pflego.core.participation import Participation
from tf_pflego.data import Dataset, Examples
from tf_pflego.runs import build
from tf_pflego.runs.client_table import client_columns
from tf_pflego.runs.progress import result_table
from tf_pflego.simulation.evaluation import Evaluation, summarize
from tf_pflego.simulation.simulation import Simulation

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
    algorithm = algorithms.build("pflego", tiny_model, local_steps=3)
    every, ends, places = range(4), [], []
    for own, renaming in zip(plain.classes, permuted.renamings, strict=True):
        places.append(np.argsort(renaming[own]))  # The old row of each new one.
    assert any(place.tolist() != [0, 1, 2] for place in places)
    heads = None
    for partition in (plain, permuted):
        clients = data.federate(dataset, partition)
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
        data_dir=digits_dir, num_clients=10, permuted_clients=0.3, shifted_clients=0.5
    )
    return build.load_clients(config)


def simulation_of(clients, eval_clients=0):
    model = pfl.SplitModel(pfl.mlp(clients.example_shape, seed=0), num_outputs=2)
    algorithm = pfl.build_algorithm("ditto", model, local_steps=2)
    drawn = pfl.Participation(10, 4)
    return pfl.Simulation(algorithm, clients, drawn, "in_process", eval_clients=eval_clients)


@pytest.mark.parametrize("eval_clients", [thorough(0), 6])
def test_a_round_says_how_each_group_fares(clients, eval_clients):
    with simulation_of(clients, eval_clients) as simulation:
        records = [simulation.run_round(evaluate=True) for _ in range(2)]
        found = simulation.evaluate_all(sampled=True)
    columns = client_columns(found, clients)
    for model, prefix in (("personalized", ""), ("generic", "generic/")):
        accuracy = found[model].test_hits / found[model].test_examples
        tested = np.arange(10) if found[model].clients is None else found[model].clients
        for name, members in clients.client_groups.items():
            own = members[tested]
            assert list(columns[name]) == own.astype(int).tolist()
            for group, rows in ((name, own), (f"not_{name}", ~own)):
                key = f"{prefix}test_accuracy/client_mean/{group}"
                assert records[-1][key] == pytest.approx(accuracy[rows].mean())
    summary = summarize(records)
    key = "test_accuracy/client_mean/not_permuted"
    assert summary[f"{key}/last10"] == pytest.approx(np.mean([record[key] for record in records]))
    table = result_table(summary, "title", columns)
    values = f"{summary[key]:.4f} +{summary[f'{key}/last10']:.4f}"
    assert len(re.findall(rf"^      not permuted clients +{values}$", table, re.MULTILINE)) == 1
    assert "standard error clients" not in table
    assert max(map(len, table.splitlines())) <= 60


def test_a_group_of_nobody_has_no_mean():
    ones, nobody = np.ones(3, int), np.zeros(3, bool)
    metrics = Evaluation(accuracies_of(ones, ones), groups={"permuted": nobody}).metrics()
    assert metrics["test_accuracy/client_mean/not_permuted"] == 1
    assert "test_accuracy/client_mean/permuted" not in metrics


def test_of_clients_that_agree_nothing_more_is_said(clients):
    agreeing = dataclasses.replace(clients, client_groups={})
    with simulation_of(agreeing) as simulation:
        record = simulation.run_round(evaluate=True)
        columns = client_columns(simulation.evaluate_all(), agreeing)
    assert not [name for name in (*record, *columns) if "permuted" in name or "shifted" in name]
