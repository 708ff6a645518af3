"""Batch normalisation and dropout that are trained, under federated methods."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.algorithms.mini_batches import (
    DROPPED,
    LOCAL,
    SEED,
    assert_means,
    draw,
    flat,
    rounds_of,
    sgd,
    simulation_of,
    train,
    weighted_mean,
)
from tests.comparison import assert_near
from tests.conftest import make_clients, read_by
from tests.engines.agreement import ENGINES, assert_agreement
from tests.oracles import batches, network, residual
from tf_pflego import SplitModel, algorithms
from tf_pflego.data import ClientData
from tf_pflego.models import networks

layers = tf.keras.layers
# float32 against float64 through nine normalisations, which divide by small deviations. With larger
# rates channels become constant; the sign of what rounding makes of those decides on gradients.
TOLERANCE, RATE = 5e-5, 0.01
SHARED = {"batch_statistics": "shared", "fine_tuning_steps": 0}


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

    def with_pixels(split):
        pixels = rng.normal(size=(len(split.labels), 6, 6, 1)).astype(np.float32)
        return dataclasses.replace(split, examples=pixels)

    return ClientData(*map(with_pixels, (clients.train, clients.test)), clients.num_classes)


def ordered(names, moments):
    """Moments by number, as `residual` has them, in the order of the body's layers."""
    numbers = [int(name.split("/")[0].split("_")[1]) for name in names if "gamma" in name]
    return [moments[2 * k + j] for k in numbers for j in (0, 1)]


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
    simulation = simulation_of(method, model, images, client_learning_rate=RATE, **config)
    w = start = flat(model.initial_weights())
    kept, stays = {}, np.array([*model.body.is_normalizing, False]) & (method == "fedbn")

    def gradient(weights, x, y):
        *theta, head = weights
        phi, pull_back, _ = residual.features(theta, names, x)
        phi = np.hstack([phi, np.ones((len(phi), 1))])
        error = network.losses(phi @ head.T, y)[1] / len(y)
        return [*pull_back(error @ head[:, :-1]), error.T @ phi]

    def with_kept(client):
        leaves = kept.get(client, start)
        return [one if s else leaf for one, leaf, s in zip(leaves, w, stays, strict=True)]

    def moments_of(weights, client):
        x, _ = network.of_client(images.train, client)
        return residual.features(weights[:-1], names, x)[2]

    for number, participants in rounds_of(simulation):
        for client in participants:
            drawn = draw(images, client, number)
            kept[client] = train(with_kept(client), drawn, gradient, rate=RATE)
        trained = [kept[client] for client in participants]
        moments = [moments_of(kept[client], client) for client in participants]
        w = weighted_mean(trained, images, participants)
        statistics = weighted_mean(moments, images, participants)
        simulation.run_round()
    for client in range(3):
        expected = with_kept(client)
        used = statistics if config else moments_of(expected, client)
        served = [*expected[:-1], *ordered(names, used), expected[-1]]
        found = flat(simulation.served_weights(client))
        assert_near(found, served, atol=TOLERANCE, rtol=TOLERANCE)
        x, _ = network.of_client(images.test, client)
        phi, _, _ = residual.features(expected[:-1], names, x, used)
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
@pytest.mark.parametrize(("method", "config"), [("fedavg", SHARED), ("fedbn", {})])
def test_it_trains_alike_on_all_engines(method, config, engine, images):
    # A batch of one example has no variance, and rounding would be magnified.
    settings = read_by(method, LOCAL | DROPPED | config)
    algorithm = algorithms.build(method, SplitModel(live_body(), 3), **settings)
    assert_agreement(algorithm, images, engine)


def test_dropout_draws_a_mask_for_each_batch(tiny_clients):
    """The mask of a batch follows from the client's seed, the epoch and the batch's number."""
    body = tf.keras.Sequential(
        [tf.keras.Input((4,)), layers.Dense(5, activation="relu"), layers.Dropout(0.4)]
    )
    simulation = simulation_of("fedavg", SplitModel(body, 3), tiny_clients, fine_tuning_steps=0)
    fold_in = tf.random.experimental.stateless_fold_in

    def trained(w, client, number):
        seed, optimizer = fold_in(batches.round_seed(SEED, client, number), 0), sgd()
        count = -(-int(tiny_clients.train.sizes[client]) // 2)
        for k, (x, y) in enumerate(draw(tiny_clients, client, number)):
            of_batch = fold_in(fold_in(seed, k // count), k % count)
            mask = tf.random.stateless_uniform((len(y), 5), fold_in(of_batch, 1)).numpy() >= 0.4
            before, phi, _ = network.forward(w[:2], w[2], x)
            phi = np.hstack([phi * mask / 0.6, np.ones((len(phi), 1))])
            error = network.losses(phi @ w[2].T, y)[1] / len(y)
            g = (error @ w[2][:, :-1]) * mask / 0.6 * (before > 0)
            w = optimizer.step(w, [x.T @ g, g.sum(axis=0), error.T @ phi])
        return w

    w = assert_means(simulation, trained)
    result = simulation.evaluate()
    for client in range(3):
        expected = network.loss(w[:2], w[2], *network.of_client(tiny_clients.train, client))
        np.testing.assert_allclose(result.train_loss[client], expected, atol=1e-5)


@pytest.mark.thorough
def test_files_predict_and_learn_on_as_in_inference(images, tmp_path):
    """They have the statistics of the client, which stay, and drop nothing out."""
    simulation = simulation_of("fedbn", SplitModel(live_body(), 3), images)
    simulation.run_round()
    evaluated, (x, y) = simulation.evaluate().train_loss[1], images.train.of(1)
    inputs = {"examples": x, "labels": y, "steps": np.int32(5), "learning_rate": np.float32(0.05)}
    for kind in ("savedmodel", "tflite"):
        (entry,) = pfl.export_clients(simulation, [1], tmp_path / kind, format=kind)
        assert entry["largest_difference"] < 1e-4
        if kind == "savedmodel":
            given = {name: tf.constant(value) for name, value in inputs.items()}
            loaded = tf.saved_model.load(str(tmp_path / kind / "client_1"))
            learn = loaded.signatures["personalize"]
        else:
            given, content = inputs, (tmp_path / kind / "client_1.tflite").read_bytes()
            interpreter = tf.lite.Interpreter(model_content=content)
            learn = interpreter.get_signature_runner("personalize")
        losses = []
        for _ in range(2):
            found = learn(**given)
            losses += [float(found["loss_before"]), float(found["loss_after"])]
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
