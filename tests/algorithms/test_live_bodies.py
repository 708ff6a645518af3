"""Batch normalisation and dropout that are trained, under federated methods."""

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.algorithms.mini_batches import (
    DROPPED,
    LOCAL,
    SEED,
    assert_close,
    draw,
    flat,
    rounds_of,
    sgd,
    simulation_of,
    weighted_mean,
)
from tests.comparison import assert_near
from tests.conftest import make_clients
from tests.engines.agreement import ENGINES, assert_agreement
from tests.methods import thorough
from tests.oracles import batches, network, residual
from tf_pflego import SplitModel, algorithms
from tf_pflego.data import ClientData, ClientSplit
from tf_pflego.models import networks

layers = tf.keras.layers
# float32 against float64 through nine normalisations, which divide by small deviations. With larger
# rates channels become constant; the sign of what rounding makes of those decides on gradients.
TOLERANCE, RATE = 5e-5, 0.01
SHARED = {"batch_statistics": "shared"}
METHODS = [("fedavg", SHARED), ("fedbn", {})]


def one_unit():
    tf.keras.utils.set_random_seed(3)
    convolution = layers.Conv2D(
        8, 3, padding="same", use_bias=False, name="convolution_0", kernel_initializer="he_normal"
    )
    normalization = layers.BatchNormalization(name="normalization_0")
    pooled = layers.ReLU(), layers.GlobalAveragePooling2D()
    return tf.keras.Sequential([tf.keras.Input((6, 6, 1)), convolution, normalization, *pooled])


@pytest.fixture(scope="module")
def images():
    clients, rng = make_clients((5, 8, 6)), np.random.default_rng(2)
    splits = (
        ClientSplit(
            rng.normal(size=(len(one.labels), 6, 6, 1)).astype(np.float32), one.labels, one.offsets
        )
        for one in (clients.train, clients.test)
    )
    return ClientData(*splits, clients.num_classes)


def examples_of(split, client):
    x, y = split.of(client)
    return x.astype(np.float64), y


def gradient_of(names):
    def gradient(weights, x, y):
        *theta, head = weights
        phi, pull_back, _ = residual.features(theta, names, x)
        phi = np.hstack([phi, np.ones((len(phi), 1))])
        error = network.losses(phi @ head.T, y)[1] / len(y)
        return [*pull_back(error @ head[:, :-1]), error.T @ phi]

    return gradient


def ordered(names, moments):
    """Moments by number, as `residual` has them, in the order of the body's layers."""
    numbers = [int(name.split("/")[0].split("_")[1]) for name in names if "gamma" in name]
    return [moments[2 * k + j] for k in numbers for j in (0, 1)]


def by_number(names, statistics):
    """The way back."""
    numbers = [int(name.split("/")[0].split("_")[1]) for name in names if "gamma" in name]
    pairs = sorted((k, statistics[2 * at : 2 * at + 2]) for at, k in enumerate(numbers))
    return [one for _, pair in pairs for one in pair]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("method", "config", "body"),
    [("fedavg", SHARED, lambda: networks.resnet8((6, 6, 1), seed=3)), ("fedbn", {}, one_unit)],
    ids=["shared", "fedbn"],
)
def test_a_network_trains_as_in_the_oracle(images, method, config, body):
    """Weights and statistics after three rounds, and what clients then predict."""
    model = SplitModel(body(), 3)
    names = [name.removesuffix(":0") for name in model.theta_names]
    names = ["/".join(name.split("/")[-2:]) for name in names]
    gradient, is_normalizing = gradient_of(names), model.is_normalizing
    simulation = simulation_of(method, model, images, client_learning_rate=RATE, **config)
    w = [np.asarray(leaf, np.float64) for leaf in model.initial_theta]
    w.append(np.asarray(model.initial_weights().head, np.float64))
    kept, statistics, stays = {}, None, np.array([*is_normalizing, False]) & (method == "fedbn")

    def with_kept(client):
        leaves = kept.get(client, start)
        return [one if s else leaf for one, leaf, s in zip(leaves, w, stays, strict=True)]

    start = w
    for number, participants in rounds_of(simulation):
        trained, moments = [], []
        for client in participants:
            x, y = examples_of(images.train, client)
            seed = batches.round_seed(SEED, client, number)
            local, optimizer = with_kept(client), sgd(rate=RATE)
            for some, labels in batches.deal(x, y, seed, LOCAL["local_epochs"], 2):
                local = optimizer.step(local, gradient(local, some, labels))
            trained.append(local)
            kept[client] = local
            moments.append(ordered(names, residual.features(local[:-1], names, x)[2]))
        w = weighted_mean(trained, images, participants)
        statistics = weighted_mean(moments, images, participants)
        simulation.run_round()
    for client in range(3):
        expected = with_kept(client)
        x, _ = examples_of(images.train, client)
        used = (
            statistics if config else ordered(names, residual.features(expected[:-1], names, x)[2])
        )
        served = simulation.served_weights(client)
        assert_near(
            flat(served), [*expected[:-1], *used, expected[-1]], atol=TOLERANCE, rtol=TOLERANCE
        )
        x, _ = examples_of(images.test, client)
        phi, _, _ = residual.features(expected[:-1], names, x, by_number(names, used))
        z = np.hstack([phi, np.ones((len(phi), 1))]) @ expected[-1].T
        predicted = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        k = predicted.shape[1]
        np.testing.assert_allclose(simulation.predict()[client][:, :k], predicted, atol=1e-3)
        by_keras = simulation.client_model(client).predict(images.test.of(client)[0], verbose=0)
        np.testing.assert_allclose(by_keras, predicted, atol=1e-3)


def live_body():
    normalized = layers.Dense(6), layers.BatchNormalization(), layers.ReLU()
    first = tf.keras.Input((6, 6, 1)), layers.Flatten()
    return tf.keras.Sequential([*first, *normalized, layers.Dropout(0.3)])


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ENGINES[1:], indirect=True)
@pytest.mark.parametrize(("method", "config"), METHODS, ids=["shared", "fedbn"])
def test_it_trains_alike_on_all_engines(method, config, engine, images):
    # A batch of one example has no variance, and rounding would be magnified.
    settings = LOCAL | DROPPED | config
    algorithm = algorithms.build(method, SplitModel(live_body(), 3), **settings)
    assert_agreement(algorithm, images, engine)


def test_dropout_draws_a_mask_for_each_batch(tiny_clients):
    """The mask of a batch follows from the client's seed, the epoch and the batch's number."""
    body = tf.keras.Sequential(
        [tf.keras.Input((4,)), layers.Dense(5, activation="relu"), layers.Dropout(0.4)]
    )
    simulation = simulation_of("fedavg", SplitModel(body, 3), tiny_clients)
    w = flat(simulation.server_state.weights)
    fold_in = tf.random.experimental.stateless_fold_in
    for number, participants in rounds_of(simulation):
        trained = []
        for client in participants:
            seed = fold_in(batches.round_seed(SEED, client, number), 0)
            local, optimizer = w, sgd()
            count = -(-int(tiny_clients.train.sizes[client]) // 2)
            for k, (x, y) in enumerate(draw(tiny_clients, client, number)):
                of_batch = fold_in(fold_in(seed, k // count), k % count)
                mask = tf.random.stateless_uniform((len(y), 5), fold_in(of_batch, 1)).numpy() >= 0.4
                kernel, bias, head = local
                before = x @ kernel + bias
                phi = np.maximum(before, 0) * mask / 0.6
                phi = np.hstack([phi, np.ones((len(phi), 1))])
                error = network.losses(phi @ head.T, y)[1] / len(y)
                g = (error @ head[:, :-1]) * mask / 0.6 * (before > 0)
                local = optimizer.step(local, [x.T @ g, g.sum(axis=0), error.T @ phi])
            trained.append(local)
        w = weighted_mean(trained, tiny_clients, participants)
        simulation.run_round()
        assert_close(flat(simulation.server_state.weights), w)
    result = simulation.evaluate()
    for client in range(3):
        x, y = network.of_client(tiny_clients.train, client)
        np.testing.assert_allclose(
            result.train_loss[client], network.loss(w[:2], w[2], x, y), atol=1e-5
        )


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["savedmodel", thorough("tflite")])
def test_a_file_predicts_and_learns_on_as_in_inference(images, tmp_path, kind):
    """It has the statistics of the client, which stay, and drops nothing out."""
    simulation = simulation_of("fedbn", SplitModel(live_body(), 3), images)
    simulation.run_round()
    (entry,) = pfl.export_clients(simulation, [1], tmp_path / kind, format=kind)
    assert entry["largest_difference"] < 1e-4
    x, y = images.train.of(1)
    inputs = {"examples": x, "labels": y, "steps": np.int32(5), "learning_rate": np.float32(0.05)}
    if kind == "savedmodel":
        inputs = {name: tf.constant(value) for name, value in inputs.items()}
        signature = tf.saved_model.load(str(tmp_path / kind / "client_1")).signatures["personalize"]
    else:
        content = (tmp_path / kind / "client_1.tflite").read_bytes()
        interpreter = tf.lite.Interpreter(model_content=content)
        signature = interpreter.get_signature_runner("personalize")
    first, second = (signature(**inputs) for _ in range(2))
    losses = [float(one[name]) for one in (first, second) for name in ("loss_before", "loss_after")]
    evaluated = simulation.evaluate().train_loss[1]
    np.testing.assert_allclose(losses[:3:2], [evaluated, losses[1]], rtol=1e-4)
    assert losses[3] < losses[1] < losses[0]


@pytest.mark.thorough
def test_statistics_are_those_under_the_weights_that_a_client_has_fine_tuned(images):
    model = SplitModel(live_body(), 3)
    simulation = simulation_of("fedbabu", model, images, fine_tuning_steps=3)
    simulation.run_round()
    theta = simulation.served_weights(1).theta
    assert np.any(theta[0] != simulation.server_state.weights[0])
    x, _ = images.train.of(1)
    before = x.reshape(len(x), -1) @ theta[0].numpy() + theta[1].numpy()
    assert_near(theta[-2:], [before.mean(axis=0), before.var(axis=0)], atol=1e-5, rtol=1e-4)
