"""What all clients predict, and measures of a user's own of it."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import f1_score

import tf_pflego as pfl
from tests.conftest import built, make_clients
from tests.engines.agreement import ENGINES
from tests.methods import thorough
from tf_pflego.core.participation import Participation
from tf_pflego.core.tasks import task_of
from tf_pflego.runs import reader
from tf_pflego.simulation.simulation import Simulation
from tf_pflego.system import rows


def macro_f1(labels, probabilities):
    return f1_score(labels, probabilities.argmax(axis=1), average="macro")


def simulation_of(model, clients, name="pflego", engine="in_process", **how):
    algorithm = built(name, model, local_steps=3)
    participation = Participation(clients.num_clients, 2)
    return Simulation(algorithm, clients, participation, engine, **how)


@pytest.mark.parametrize("name", ["pflego", thorough("fedbabu"), thorough("ditto")])
def test_predictions_are_those_of_the_clients_models(name, tiny_model, tiny_clients, monkeypatch):
    """FedBABU's clients fine-tune first, and Ditto serves two models."""
    clients = tiny_clients.with_validation(0.4, seed=2)
    with simulation_of(tiny_model, clients, name) as simulation:
        simulation.run_round()
        for served in simulation.algorithm.served:
            models = [simulation.client_model(client, served) for client in range(3)]
            for split, examples in clients.splits.items():
                expected = [model(examples.of(k)[0]) for k, model in enumerate(models)]
                for block_bytes in (1, 2**28):  # One client per block; one block.
                    monkeypatch.setattr(rows, "_BLOCK_BYTES", block_bytes)
                    predicted = simulation.predict(split, served)
                    for probabilities, of_client in zip(predicted, expected, strict=True):
                        assert probabilities.dtype == np.float32
                        np.testing.assert_allclose(probabilities, of_client, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(simulation.predict()[1], simulation.predict("test")[1])
        with pytest.raises(ValueError, match="`split` must be one of train, test, validation;"):
            simulation.predict("all")
        with pytest.raises(ValueError, match="`served_model` must be one of"):
            simulation.predict("test", "other")


def test_classes_that_a_client_does_not_hold_have_no_probability(masked_model, masked_clients):
    with simulation_of(masked_model, masked_clients, "fedavg") as simulation:
        for client, probabilities in enumerate(simulation.predict("train")):
            examples, _ = masked_clients.train.of(client)
            expected = simulation.client_model(client).predict(examples, verbose=0)
            np.testing.assert_allclose(probabilities, expected, rtol=1e-4, atol=1e-6)
            absent = np.setdiff1d(np.arange(4), masked_clients.classes[client])
            assert not probabilities[:, absent].any()


@pytest.mark.parametrize("engine", ENGINES[:2])
def test_another_task_counts_something_else(engine, tiny_model, tiny_clients):
    """Nothing but the task of a model names what a test counts."""

    def squared_logits(logits, labels):
        return tf.stack([tf.reduce_sum(logits**2), tf.cast(2 * tf.shape(labels)[0], tf.float32)])

    clients = tiny_clients.with_validation(0.4, seed=2)
    energy = pfl.Statistic("energy", squared_logits, of_logits=True)
    body = pfl.mlp(tiny_clients.example_shape, seed=3, units=5)
    model = pfl.SplitModel(body, 3, seed=3, task=task_of("classification", [energy]))
    method = built("fedavg", model, local_steps=3)
    (served,) = method.served.values()
    with Simulation(method, clients, Participation(3, 2), engine) as simulation:
        record = simulation.run_round(evaluate=True)
        evaluation = simulation.evaluate()
        assert not [metric for metric in record if "accuracy" in metric]
        assert record["participant_test_energy/client_mean"] > 0
        for split in ("validation", "test"):
            energies = []
            for client in range(3):
                x, _ = clients.splits[split].of(client)
                weights = simulation.served_weights(client)
                logits = served.predict(weights, x, np.arange(3, dtype=np.int32))
                energies.append(np.mean(np.square(logits).sum(axis=1)) / 2)
            actual = evaluation.of_clients()[f"{split}_energy"]
            np.testing.assert_allclose(actual, energies, rtol=1e-5)


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_own_metrics_are_of_each_client_and_its_test_examples(engine, tiny_model):
    clients = make_clients((3, 7, 5, 4, 6), (2, 4, 3, 2, 3), (2, 3, 2, 3, 2))
    metrics = {"macro_f1": macro_f1, "hits": lambda y, p: np.sum(p.argmax(axis=1) == y)}
    with simulation_of(tiny_model, clients, "ditto", engine, num_eval_clients=3) as simulation:
        record = simulation.run_round(evaluate=True, metrics=metrics)
        actual = simulation.evaluate_all(metrics=metrics)
        for position, (name, evaluation) in enumerate(actual.items()):
            predicted = simulation.predict("test", name)
            labels = [clients.test.of(client)[1] for client in range(5)]
            expected = [macro_f1(y, p) for y, p in zip(labels, predicted, strict=True)]
            np.testing.assert_allclose(evaluation.own_metrics["macro_f1"], expected)
            np.testing.assert_array_equal(evaluation.own_metrics["hits"], evaluation.test_hits)
            assert evaluation.metrics()["macro_f1/client_mean"] == pytest.approx(np.mean(expected))
            sampled = simulation.evaluate_all(sampled=True, metrics=metrics)[name]
            for metric, value in sampled.metrics().items():
                prefix = f"{name}/" if position else ""
                assert record[f"{prefix}{metric}"] == value
            values = sampled.own_metrics["macro_f1"]
            error = np.std(values, ddof=1) * np.sqrt((1 - 3 / 5) / 3)
            means = sampled.metrics()
            assert means["macro_f1/client_mean/standard_error"] == pytest.approx(error)


@pytest.fixture(scope="module", name="simulation")
def simulation_fixture(tiny_model, tiny_clients):
    with simulation_of(tiny_model, tiny_clients) as simulation:
        yield simulation


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ([macro_f1], r"`metrics` must be of the class Mapping; got list"),
        ({"macro f1": macro_f1}, r"have names that are one word of letters, .*; got macro f1\."),
        ({"train_loss": macro_f1}, "have other names than the metrics of a run; got train_"),
        ({"test_mine": macro_f1}, "have other names than the metrics of a run"),
        ({"f1": 3}, "be functions of labels and probabilities; got 3 for f1"),
        ({"f1": lambda y, p: np.nan}, r"f1 must return a finite number for each client; got nan"),
        ({"f1": lambda y, p: "0.5"}, "got '0.5' for client 0. Let it return a number also where"),
    ],
)
def test_what_is_no_measure_is_refused_and_nothing_changes(metrics, message, simulation):
    with pytest.raises((ValueError, TypeError), match=message):
        simulation.run(2, metrics=metrics)
    assert simulation.round_number == 0


@pytest.mark.parametrize(
    "groups",
    [
        ("client",),
        ("test_mine",),
        ("personalized/train_loss",),
        ("a", "not_a"),
        ("standard_error",),
    ],
)
def test_a_group_takes_no_name_of_another_number(groups, tiny_model, tiny_clients):
    members = {name: np.array([True, False, True]) for name in groups}
    clients = dataclasses.replace(tiny_clients, client_groups=members)
    message = f"`client_groups` must have other names than .*; got {groups[-1]}. Choose another"
    with pytest.raises(ValueError, match=message):
        simulation_of(tiny_model, clients)


def test_a_statistic_takes_no_name_of_another_number(tiny_clients):
    task = task_of("classification", [pfl.Statistic("examples", lambda p, y: tf.zeros(2))])
    model = pfl.SplitModel(pfl.mlp(tiny_clients.example_shape, seed=3, units=5), 3, task=task)
    with pytest.raises(
        ValueError, match=r"`statistics` must have other names than .*; got examples"
    ):
        simulation_of(model, tiny_clients)


def test_a_measure_takes_no_name_of_a_group(tiny_model, tiny_clients):
    clients = dataclasses.replace(tiny_clients, client_groups={"old": np.ones(3, bool)})
    with simulation_of(tiny_model, clients) as simulation:
        with pytest.raises(ValueError, match=r"`metrics` must have other names than .*; got old"):
            simulation.evaluate(metrics={"old": macro_f1})


@pytest.mark.thorough
def test_a_run_has_own_metrics_in_its_curves_and_of_each_client(tmp_path, without_pictures):
    clients = make_clients((12,) * 4, (6,) * 4, (2,) * 4)
    how = {"clients_per_round": 2, "engine": "in_process", "num_rounds": 13, "eval_every": 5}
    config = pfl.RunConfig(network="mlp", output_dir=tmp_path / "run", **how)
    summary = pfl.run(config, clients=clients, metrics={"macro_f1": macro_f1}, local_steps=2)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    curve = [json.loads(line).get("macro_f1/client_mean") for line in lines]
    assert [k for k, value in enumerate(curve, 1) if value is not None] == [1, *range(4, 14)]
    assert summary["macro_f1/client_mean"] == curve[-1]
    assert summary["macro_f1/client_mean/last10"] == pytest.approx(np.mean(curve[-10:]))
    assert "macro_f1/client_mean/best" not in summary  # Less may be better.
    columns = reader.columns(tmp_path / "run" / "clients.csv")
    with pfl.load_run(tmp_path / "run", clients=clients) as run:
        actual = run.evaluate(metrics={"macro_f1": macro_f1}).own_metrics["macro_f1"]
        labels = [clients.test.of(client)[1] for client in range(4)]
        again = [macro_f1(y, p) for y, p in zip(labels, run.predict(), strict=True)]
    assert [f"{value:.6g}" for value in actual] == list(columns["macro_f1"])
    np.testing.assert_array_equal(actual, again)
    (page,) = pfl.report([tmp_path / "run"], tmp_path / "report.html")
    assert "macro_f1/client_mean" in page.read_text(encoding="utf-8")
