import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.comparison import assert_identical
from tests.conftest import built
from tests.methods import thorough
from tests.oracles import network
from tests.oracles.averaging import local_steps
from tf_pflego.core.participation import Participation
from tf_pflego.simulation.evaluation import summarize
from tf_pflego.simulation.simulation import Simulation
from tf_pflego.system import rows

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


@pytest.mark.parametrize("name", ["pflego", "fedavg"])
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
    assert metrics["test_accuracy/client_mean"] == pytest.approx(of_clients)
    assert metrics["test_accuracy/example_mean"] == pytest.approx(sum(hits) / 9)


def test_participants_are_tested_with_the_weights_they_hold(tiny_model, tiny_clients):
    """FedAvg tests each client's own network after its local steps, and not their mean."""
    simulation = simulation_of("fedavg", tiny_model, tiny_clients, **EIGHT_STEPS)
    start = float64(simulation.server_state.weights)
    record = simulation.run_round(evaluate=True)
    shares = []
    for client in range(3):
        data = network.of_client(tiny_clients.train, client)
        held = local_steps(*start, *data, EIGHT_STEPS)
        shares.append(right(held, tiny_clients.test, client).mean())
    of_clients, of_examples = np.mean(shares), np.dot(shares, [2, 4, 3]) / 9
    assert record["participant_test_accuracy/client_mean"] == pytest.approx(of_clients)
    assert record["participant_test_accuracy/example_mean"] == pytest.approx(of_examples)


@pytest.mark.parametrize("name", [thorough("pflego"), "ditto"])
def test_all_metrics_are_of_what_a_client_is_served(name, tiny_model, tiny_clients):
    """What is held out is not trained on, and each served model is tested on it."""
    held = tiny_clients.with_validation(0.4, seed=2)
    with simulation_of(name, tiny_model, held, local_steps=3) as simulation:
        record = simulation.run_round(evaluate=True)
        for position, model in enumerate(simulation.algorithm.served):
            prefix, served = f"{model}/" if position else "", []
            for client, classes in enumerate(held.num_classes):
                theta, head = float64(simulation.served_weights(client, model))
                # Ditto's clients predict among the classes of all.
                served.append((theta, head[:classes] if name == "pflego" else head))
            for split in ("validation", "test"):
                found = [right(one, getattr(held, split), k) for k, one in enumerate(served)]
                means = [
                    record[f"{prefix}{split}_accuracy/{m}_mean"] for m in ("client", "example")
                ]
                expected = np.mean([np.mean(one) for one in found]), np.concatenate(found).mean()
                np.testing.assert_allclose(means, expected)
            training = [network.of_client(held.train, client) for client in range(3)]
            losses = [network.loss(*one, *own) for one, own in zip(served, training, strict=True)]
            loss = np.average(losses, weights=held.train.sizes)
            assert record[f"{prefix}train_loss"] == pytest.approx(loss, rel=1e-5)
        states = simulation.client_states(range(3))
    without = dataclasses.replace(held, validation=None)
    with simulation_of(name, tiny_model, without, local_steps=3) as simulation:
        plain = simulation.run_round(evaluate=True)
        others = simulation.client_states(range(3))
        assert_identical(*map(tf.nest.flatten, (states, others)))
    for metric, value in plain.items():
        assert metric == "seconds" or record[metric] == value, metric
    assert {metric for metric in record if "validation" not in metric} == plain.keys()


def test_participants_are_validated_with_the_weights_they_hold(tiny_model, tiny_clients):
    """Where validation and test examples change places, so do all accuracies."""
    held = tiny_clients.with_validation(0.4, seed=2)
    swapped = dataclasses.replace(held, test=held.validation, validation=held.test)
    records = []
    for data in (held, swapped):
        with simulation_of("fedavg", tiny_model, data, 2, **EIGHT_STEPS) as simulation:
            records.append(simulation.run_round(evaluate=True))
    compared = 0
    for names in (("test", "validation"), ("validation", "test")):
        name, other = (f"{split}_accuracy" for split in names)
        for metric, value in records[0].items():
            if name in metric:
                assert records[1][metric.replace(name, other)] == value, metric
                compared += 1
    assert compared == 8


def test_summary_is_the_last_value_and_the_mean_of_the_last_ten():
    moved = {"bytes_up": 1, "bytes_down": 2, "dropped": 1, "not_finite": 0}
    records = [
        {"round": k, "seconds": k, "train_loss": -k, "test_accuracy/client_mean": k} | moved
        for k in range(1, 21)
    ]
    summary = summarize(records)
    assert summary["test_accuracy/client_mean"] == 20
    assert summary["test_accuracy/client_mean/last10"] == np.mean(range(11, 21))
    assert summary["seconds_per_round/median"] == 10.5
    assert (summary["train_loss"], summary["bytes_down"], summary["bytes_up"]) == (-20, 40, 20)
    assert summary["dropped"] == 20
    assert "train_loss/last10" not in summary


def test_clients_are_fine_tuned_before_they_are_tested(tiny_model, tiny_clients):
    """FedBABU's hits and losses are those of each client's network after its fine-tuning steps."""
    plain, simulation = (
        simulation_of("fedbabu", tiny_model, tiny_clients, local_steps=2, **one)
        for one in (
            {"client_learning_rate": 0.5},
            {"client_learning_rate": 0.5, "fine_tuning_steps": 8},
        )
    )
    served = simulation.algorithm.served["generic"]
    start = float64(served.weights(simulation.server_state, ()))
    result = simulation.evaluate()
    for client in range(3):
        data = network.of_client(tiny_clients.train, client)
        tuned = local_steps(*start, *data, EIGHT_STEPS)
        assert result.train_loss[client] == pytest.approx(network.loss(*tuned, *data), rel=1e-4)
        assert result.test_hits[client] == right(tuned, tiny_clients.test, client).sum()
    for run in (simulation, plain):
        run.run_round()
    assert_identical(simulation.server_state.weights, plain.server_state.weights)
