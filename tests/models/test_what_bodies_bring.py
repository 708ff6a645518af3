"""What people's bodies bring: losses, constraints and scales are refused, lookups checked."""

import pickle

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.comparison import assert_identical
from tests.conftest import build_method

layers = tf.keras.layers


class AddsLoss(layers.Layer):
    def call(self, inputs):
        self.add_loss(tf.reduce_sum(inputs**2))
        return inputs


def of_four(*parts):
    return tf.keras.Sequential([tf.keras.Input((4,)), *parts])


@pytest.mark.parametrize(
    "body, said",
    [
        (layers.Dense(3, kernel_regularizer="l2"), "dense.* has kernel_regularizer"),
        (tf.keras.Sequential([layers.Dense(3), AddsLoss()]), "must add no losses. Methods"),
        (of_four(layers.Dense(3, kernel_regularizer="l2")), "has kernel_regularizer"),
        (layers.Dense(3, kernel_constraint="non_neg"), "kernel.* has one .*NonNeg"),
    ],
)
def test_losses_and_constraints_are_refused(body, said):
    with pytest.raises(ValueError, match=said):
        pfl.SplitModel(of_four(body), 2)


def test_the_regularizer_of_a_frozen_layer_is_no_loss():
    frozen = layers.Dense(3, kernel_regularizer="l2", trainable=False)
    assert pfl.SplitModel(of_four(frozen, layers.Dense(2)), 2).num_features == 2


def two_columns():
    tokens = tf.keras.Input((2,), dtype="int32")
    looked_up = [layers.Embedding(5, 2)(tokens[:, 0]), layers.Embedding(7, 2)(tokens[:, 1] + 1)]
    return tf.keras.Model(tokens, layers.Concatenate()(looked_up))


def sequences(**kwargs):
    tokens, table = tf.keras.Input((2,), dtype="int32"), layers.Embedding(7, 2, **kwargs)
    return tf.keras.Sequential([tokens, table, layers.GlobalAveragePooling1D(), layers.Dense(3)])


@pytest.mark.parametrize(
    "body, good, bad, found",
    [
        (two_columns, [[4, 5]], [[4, 5], [5, 5]], (1, 5, 5)),
        (two_columns, [[0, 0]], [[0, 6]], (0, 7, 7)),
        (sequences, [[6, 0]], [[6, 0], [0, 7]], (1, 7, 7)),
        (lambda: sequences(mask_zero=True), [[6, 0]], [[9, 0]], (0, 9, 7)),
        (lambda: sequences(trainable=False), [[6, 0]], [[7, 0]], (0, 7, 7)),
    ],
)
def test_an_integer_without_a_row_is_found(body, good, bad, found):
    model = pfl.SplitModel(body(), 2)
    assert model.body.lookups.first_strange(np.array(good, np.int32)) is None
    assert model.body.lookups.first_strange(np.array(bad, np.int32)) == found


def test_the_client_of_such_an_integer_is_named_before_the_first_round():
    tokens, labels = np.zeros((4, 2), np.int32), np.array([0, 1, 0, 1])
    strange = np.array([[0, 0], [0, 0], [0, 9], [0, 0]], np.int32)
    good = {"ann": (tokens, labels), "bob": (tokens, labels)}
    method = build_method("pflego", pfl.SplitModel(sequences(), 2))
    bad = good | {"bob": (strange, labels)}
    for split, pairs in (("train", (bad, good)), ("test", (good, bad))):
        clients = pfl.from_arrays(*pairs)
        with pytest.raises(ValueError, match=rf"the {split} examples of client bob .* asked for 9"):
            pfl.Simulation(method, clients, pfl.Participation(2, 2), engine="in_process")


def simulation_of(examples, *first):
    labels = np.array([0, 1, 0, 1])
    clients = pfl.from_arrays([(examples, labels)] * 2, [(examples, labels)] * 2)
    shape = tf.keras.Input(examples.shape[1:])
    body = tf.keras.Sequential([shape, *first, layers.Flatten(), layers.Dense(2)])
    method = build_method("pflego", pfl.SplitModel(body, 2))
    return pfl.Simulation(method, clients, pfl.Participation(2, 2), engine="in_process")


def test_pixels_are_scaled_once(caplog):
    pixels = np.arange(4 * 25).reshape(4, 5, 5) * 2
    with pytest.raises(ValueError, match="must not be scaled twice; they are uint8"):
        simulation_of(pixels.astype(np.uint8), layers.Rescaling(1 / 255))
    simulation_of(pixels.astype(np.uint8)).close()
    simulation_of(pixels.astype(np.float32), layers.Rescaling(1 / 255)).close()
    simulation_of(pixels.astype(np.float32) / 255).close()
    assert caplog.text == ""
    simulation_of(pixels.astype(np.float32)).close()
    assert "floats from 0 to 198, as pixels are before they are scaled" in caplog.text


def test_channels_come_last(caplog):
    images = np.zeros((4, 3, 8, 8), np.float32)
    simulation_of(images).close()
    assert "look like images with the channels first" in caplog.text
    caplog.clear()
    simulation_of(np.moveaxis(images, 1, -1)).close()
    assert caplog.text == ""
    with pytest.raises(ValueError, match=r"np.moveaxis\(images, 1, -1\)"):
        pfl.build_simulation(
            pfl.RunConfig(network="cifar_cnn", engine="in_process", clients_per_round=1),
            clients=pfl.from_arrays([(images, np.arange(4))], [(images, np.arange(4))]),
        )


def test_models_and_methods_are_pickled(tiny_model, tiny_clients):
    method = build_method("pflego", tiny_model)
    again = pickle.loads(pickle.dumps(method))
    assert again.model.task is method.model.task
    weights = []
    for one in (method, again):
        with pfl.Simulation(one, tiny_clients, pfl.Participation(3, 2), "in_process") as simulation:
            simulation.run_round()
            weights.append(tf.nest.flatten(simulation.server_state))
    assert_identical(*weights)
