"""Clients that never took part: they learn on by each method's rule, or are fine-tuned."""

import csv
import json

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.methods import thorough
from tests.oracles import batches, network
from tests.serving.test_client_models import clients_of, images, simulation_of, small_cnn
from tests.serving.test_exporting import more_images

SEED, RATE, EPOCHS, BATCH = 11, 0.1, 3, 2
TOLERANCE = 1e-5  # float32 against float64 over twelve steps on weights of order 1.


@pytest.fixture(scope="module", name="simulation")
def simulation_fixture():
    return simulation_of(small_cnn(), clients_of(images))


def test_the_curve_has_few_examples_of_each_class(simulation):
    """With as many examples as there are, a draw changes nothing; with one it does."""
    clients = clients_of(more_images)
    new = pfl.NewClients(simulation, clients, steps=20)
    one, three, four, every = new.curve([1, 3, 4, "all"], draws=4, seed=3)
    assert (one.shots, one.draws, every.draws) == (1, 4, 1)
    assert four.mean == every.mean and (four.deviation, every.deviation) == (0, None)
    assert one.deviation > 0
    assert three.deviation > 0
    assert one.before == four.before
    assert new.curve([1], draws=4, seed=3) == [one]
    assert new.curve([1], draws=4, seed=4) != [one]
    hits = [
        np.mean(np.argmax(client.predictions(), axis=1) == client.test_labels)
        for client in new.learnt()
    ]
    assert every.mean == pytest.approx(np.mean(hits))


def test_the_automatic_rate_is_refused_where_the_network_moves():
    with (
        simulation_of(small_cnn(), clients_of(images), "pgfed") as simulation,
        pytest.raises(ValueError, match="must be a number for pgfed, where the whole net"),
    ):
        pfl.NewClients(simulation, clients_of(more_images))


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        (clients_of(lambda n: np.zeros((n, 5), np.uint8)), r"uint8 of shape \(6, 6, 1\); got"),
        (clients_of(more_images, labels=((1, 2, 3, 4),) * 2), "a head for 4 classes, .*; got 3"),
    ],
)
def test_clients_that_do_not_fit_are_refused(clients, message, simulation):
    with pytest.raises(ValueError, match=message):
        pfl.NewClients(simulation, clients)


@pytest.mark.parametrize("name", ["per_fedavg", thorough("local")])
def test_they_train_from_what_they_would_be_served(name, tiny_model, tiny_clients):
    """Per-FedAvg serves a step of each client from its shared network, which is no start here."""
    algorithm = pfl.build_algorithm(name, tiny_model, batch_size=2)
    old, drawn = tiny_clients.part(0, 1), pfl.Participation(1, 1)
    simulation = pfl.Simulation(algorithm, old, drawn, "in_process", SEED)
    simulation.run_round()
    start = tiny_model.initial_weights() if name == "local" else simulation.server_state.weights
    new = tiny_clients.part(1, 3)
    found = pfl.NewClients(simulation, new, learning_rate=RATE).trained(EPOCHS, BATCH)
    assert len(found) == 1 + EPOCHS
    for client, classes in enumerate(new.num_classes):
        weights = [np.asarray(w, np.float64) for w in tf.nest.flatten(start)]
        if name == "local":
            weights[-1] = weights[-1][:classes]
        x, y = network.of_client(new.train, client)
        test_x, test_y = network.of_client(new.test, client)
        for epoch in range(1 + EPOCHS):
            if epoch:
                optimizer = batches.Momentum(RATE, 0.0)
                own_seed = batches.round_seed(SEED, client, epoch)
                for batch in batches.deal(x, y, own_seed, 1, BATCH):
                    weights = optimizer.step(weights, batches.gradient(weights, *batch))
            loss = network.loss(weights[:-1], weights[-1], x, y)
            assert found[epoch].train_loss[client] == pytest.approx(loss, abs=TOLERANCE)
            features = np.maximum(test_x @ weights[0] + weights[1], 0)
            logits = features @ weights[-1][:, :-1].T + weights[-1][:, -1]
            assert found[epoch].test_hits[client] == np.sum(logits.argmax(axis=1) == test_y)


def test_a_run_keeps_its_last_clients_for_the_end(digits_dir, tmp_path):
    config = pfl.RunConfig(
        algorithm="fedavg",
        data_dir=digits_dir,
        engine="in_process",
        partition="dirichlet",
        num_clients=6,
        clients_per_round=2,
        num_new_clients=2,
        new_client_epochs=2,
        new_client_learning_rate=0.1,
        num_rounds=2,
        label_space="global",
        validation_fraction=0.2,
        output_dir=str(tmp_path / "run"),
    )
    pfl.run(config, local_epochs=1, batch_size=32)
    files = {path.name: path for path in (tmp_path / "run").iterdir()}
    rows = list(csv.DictReader(files["new_clients.csv"].open()))
    assert [(row["epoch"], row["client"]) for row in rows] == [
        (str(epoch), client) for epoch in range(3) for client in ("4", "5")
    ]
    assert len(list(csv.DictReader(files["clients.csv"].open()))) == 4
    summary = json.loads(files["summary.json"].read_text())
    for word, epoch in (("before", "0"), ("after", "2")):
        for accuracy in ("test_accuracy", "validation_accuracy"):
            mean = np.mean([float(row[accuracy]) for row in rows if row["epoch"] == epoch])
            found = summary[f"new_clients/{accuracy}/client_mean/{word}"]
            assert found == pytest.approx(mean, abs=1e-5)
    with np.load(files["partition.npz"]) as partition:
        assert len(partition["classes_offsets"]) == 7
        sizes = np.diff(partition["train_indices_offsets"])
    assert [int(row["train_examples"]) for row in rows[:2]] == sizes[4:].tolist()
    with np.load(files["server.npz"]) as server:
        assert server["weights/head"].shape == (10, 201)
