import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.comparison import assert_identical
from tests.conftest import built
from tests.methods import thorough
from tests.oracles import network
from tf_pflego.core.participation import Participation
from tf_pflego.simulation.evaluation import summarize
from tf_pflego.simulation.simulation import Simulation
from tf_pflego.system import rows


@pytest.mark.parametrize("name", ["pflego", "fedavg"])
@pytest.mark.parametrize("block_bytes", [1, 2**28], ids=["one client per block", "one block"])
def test_every_client_is_evaluated_with_what_it_is_served(
    name, block_bytes, tiny_model, tiny_clients, monkeypatch
):
    monkeypatch.setattr(rows, "_BLOCK_BYTES", block_bytes)
    simulation = Simulation(
        built(name, tiny_model, local_steps=3),
        tiny_clients,
        Participation(3, 2),
        "in_process",
    )
    simulation.run_round()
    result = simulation.evaluate()
    losses, hits = [], []
    for client in range(3):
        server = simulation.server_state
        if name == "pflego":
            theta, head = (
                server.theta,
                simulation.client_states([client]).head[0][: tiny_clients.num_classes[client]],
            )
        else:
            theta, head = server.weights
        theta, head = [np.asarray(w, np.float64) for w in theta], np.asarray(head, np.float64)
        losses.append(network.loss(theta, head, *network.of_client(tiny_clients.train, client)))
        x, y = network.of_client(tiny_clients.test, client)
        hits.append(np.sum(network.forward(theta, head, x)[2].argmax(axis=1) == y))
    np.testing.assert_allclose(result.train_loss, losses, rtol=1e-5)
    np.testing.assert_array_equal(result.test_hits, hits)
    metrics = result.metrics()
    assert metrics["train_loss"] == pytest.approx(np.dot([3, 7, 5], losses) / 15, rel=1e-5)
    assert metrics["test_accuracy/client_mean"] == pytest.approx(
        np.mean(np.array(hits) / [2, 4, 3])
    )
    assert metrics["test_accuracy/example_mean"] == pytest.approx(sum(hits) / 9)


def test_participants_are_tested_with_the_weights_they_hold(tiny_model, tiny_clients):
    """FedAvg tests each client's own network after its local steps, and not their mean."""
    from tests.oracles.averaging import local_steps

    config = {"local_steps": 8, "client_learning_rate": 0.5}
    simulation = Simulation(
        built("fedavg", tiny_model, **config),
        tiny_clients,
        Participation(3, 3),
        "in_process",
    )
    theta = [np.asarray(w, np.float64) for w in tiny_model.initial_theta]
    start = np.asarray(simulation.server_state.weights.head, np.float64)
    record = simulation.run_round(evaluate=True)
    shares = []
    for client in range(3):
        held = local_steps(theta, start, *network.of_client(tiny_clients.train, client), config)
        x, y = network.of_client(tiny_clients.test, client)
        shares.append((network.forward(*held, x)[2].argmax(axis=1) == y).mean())
    assert record["participant_test_accuracy/client_mean"] == pytest.approx(np.mean(shares))
    assert record["participant_test_accuracy/example_mean"] == pytest.approx(
        np.dot(shares, [2, 4, 3]) / 9
    )


@pytest.mark.parametrize("name", [thorough("pflego"), "ditto"])
def test_validation_accuracy_is_of_what_a_client_is_served(name, tiny_model, tiny_clients):
    """What is held out is not trained on, and each served model is tested on it."""
    held = tiny_clients.with_validation(0.4, seed=2)
    algorithm = built(name, tiny_model, local_steps=3)
    everybody = Participation(3, 3)
    with Simulation(algorithm, held, everybody, "in_process") as simulation:
        record = simulation.run_round(evaluate=True)
        for position, model in enumerate(algorithm.served):
            shares, hits = [], 0
            for client in range(3):
                theta, head = simulation.served_weights(client, model)
                theta = [np.asarray(w, np.float64) for w in theta]
                head = np.asarray(head, np.float64)
                if name == "pflego":  # Ditto's clients predict among the classes of all.
                    head = head[: held.num_classes[client]]
                x, y = network.of_client(held.validation, client)
                right = network.forward(theta, head, x)[2].argmax(axis=1) == y
                shares.append(right.mean())
                hits += right.sum()
            prefix = f"{model}/" if position else ""
            actual = [
                record[f"{prefix}validation_accuracy/{m}_mean"] for m in ("client", "example")
            ]
            np.testing.assert_allclose(
                actual, [np.mean(shares), hits / held.validation.offsets[-1]]
            )
        states = simulation.client_states(range(3))
    without = dataclasses.replace(held, validation=None)
    with Simulation(algorithm, without, everybody, "in_process") as simulation:
        plain = simulation.run_round(evaluate=True)
        others = tf.nest.flatten(simulation.client_states(range(3)))
        assert_identical(tf.nest.flatten(states), others)
    for metric, value in plain.items():
        assert metric == "seconds" or record[metric] == value, metric
    assert {metric for metric in record if "validation" not in metric} == plain.keys()


def test_participants_are_validated_with_the_weights_they_hold(tiny_model, tiny_clients):
    """Where validation and test examples change places, so do all accuracies."""
    held = tiny_clients.with_validation(0.4, seed=2)
    swapped = dataclasses.replace(held, test=held.validation, validation=held.test)
    records = []
    for data in (held, swapped):
        algorithm = built("fedavg", tiny_model, local_steps=8, client_learning_rate=0.5)
        with Simulation(algorithm, data, Participation(3, 2), "in_process") as simulation:
            records.append(simulation.run_round(evaluate=True))
    names = {"test_accuracy": "validation_accuracy", "validation_accuracy": "test_accuracy"}
    compared = 0
    for metric, value in records[0].items():
        for name, other in names.items():
            if name in metric:
                assert records[1][metric.replace(name, other)] == value, metric
                compared += 1
    assert compared == 8


def test_summary_is_the_last_value_and_the_mean_of_the_last_ten():
    records = [
        {
            "round": k,
            "seconds": k,
            "bytes_up": 1,
            "bytes_down": 2,
            "train_loss": -k,
            "test_accuracy/client_mean": k,
        }
        for k in range(1, 21)
    ]
    summary = summarize(records)
    assert summary["test_accuracy/client_mean"] == 20
    assert summary["test_accuracy/client_mean/last10"] == np.mean(range(11, 21))
    assert summary["seconds_per_round/median"] == 10.5
    assert (summary["train_loss"], summary["bytes_down"], summary["bytes_up"]) == (-20, 40, 20)
    assert "train_loss/last10" not in summary


def test_clients_are_fine_tuned_before_they_are_tested(tiny_model, tiny_clients):
    """FedBABU's hits and losses are those of each client's network after its fine-tuning steps."""
    from tests.oracles.averaging import local_steps

    config = {"local_steps": 8, "client_learning_rate": 0.5}
    tuned = built(
        "fedbabu", tiny_model, local_steps=2, client_learning_rate=0.5, fine_tuning_steps=8
    )
    simulation = Simulation(tuned, tiny_clients, Participation(3, 3), "in_process")
    head = np.asarray(tuned.served["generic"].weights(simulation.server_state, ()).head, np.float64)
    result = simulation.evaluate()
    for client in range(3):
        x, y = network.of_client(tiny_clients.train, client)
        served = local_steps(
            [np.asarray(w, np.float64) for w in tiny_model.initial_theta], head, x, y, config
        )
        assert result.train_loss[client] == pytest.approx(network.loss(*served, x, y), rel=1e-4)
        x, y = network.of_client(tiny_clients.test, client)
        assert result.test_hits[client] == np.sum(
            network.forward(*served, x)[2].argmax(axis=1) == y
        )
    plain = Simulation(
        built("fedbabu", tiny_model, local_steps=2, client_learning_rate=0.5),
        tiny_clients,
        Participation(3, 3),
        "in_process",
    )
    for run in (simulation, plain):
        run.run_round()
    assert_identical(simulation.server_state.weights, plain.server_state.weights)
