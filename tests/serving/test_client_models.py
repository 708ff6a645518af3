"""A client's model takes what the data have, predicts as the run, and leaves the body as it is."""

import dataclasses
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import saving

import tf_pflego as pfl
from tests.comparison import assert_identical
from tests.conftest import build_method
from tests.models.body.bodies import (
    BODIES,
    InInference,
    examples_for,
    live_normalization,
    sequential,
)
from tf_pflego.models.body.body import Body
from tf_pflego.simulation.client_models import logits_model

# float32: Keras adds in another order.
TOLERANCE = 1e-6
layers = tf.keras.layers
# It does not save a layer that is an attribute of a model, as the one with the names is.
KERAS_3 = not keras.__version__.startswith("2.")


@functools.cache
def split_model(body, num_classes, example_shape, num_global_classes, class_mask):
    model = pfl.SplitModel(
        body, num_classes, example_shape=example_shape, num_global_classes=num_global_classes
    )
    return model.with_class_mask() if class_mask else model


def simulation_of(body, clients, name="pflego", num_classes=None, **hyper_parameters):
    count = int(clients.num_classes.max()) if num_classes is None else num_classes
    about = clients.example_shape, clients.num_global_classes, clients.class_mask
    model = split_model(body, count, *about)
    algorithm = build_method(name, model, **hyper_parameters)
    drawn = pfl.Participation(clients.num_clients, clients.num_clients)
    return pfl.Simulation(algorithm, clients, drawn, "in_process")


def clients_of(draw, labels=((5, 9), (2, 5, 9)), **arguments):
    """Two clients, the first with two classes and the second with three."""
    pairs = [(draw(4 * len(own)), np.tile(own, 4)) for own in labels]
    return pfl.from_arrays(pairs, pairs, **arguments)


def images(count):
    return np.random.default_rng(count).integers(0, 256, (count, 6, 6, 1)).astype(np.uint8)


@functools.cache  # Simulations of one body and method share what they trace.
def small_cnn(name="body"):
    then = layers.Conv2D(3, 3, activation="relu"), layers.Flatten()
    return tf.keras.Sequential([tf.keras.Input((6, 6, 1)), *then], name=name)


def logits_of(simulation, client, raw):
    """Returns what the algorithm's own functions make of examples as a model sees them."""
    served = next(iter(simulation.algorithm.served.values()))
    weights = simulation.served_weights(client)
    (classes,) = simulation.data.head_classes([client], simulation.algorithm.model.num_classes)
    return served.predict(weights, tf.constant(raw), classes).numpy()


def test_it_takes_images_from_0_to_255_and_leaves_the_users_body_and_the_run_as_they_were():
    """It has no outputs for the classes that the client has not."""
    body = small_cnn()
    before = body.get_weights()
    simulation = simulation_of(body, clients_of(images))
    simulation.run_round()
    for client, names in enumerate([("5", "9"), ("2", "5", "9")]):
        model, raw = simulation.client_model(client), images(20)
        assert model.input_shape == (None, 6, 6, 1) and model.input.dtype == tf.uint8
        expected = logits_of(simulation, client, raw.astype(np.float32) / np.float32(255))
        logits = logits_model(model).predict(raw, verbose=0)
        largest = np.abs(logits).max()
        np.testing.assert_allclose(logits, expected[:, : len(names)], atol=TOLERANCE * largest)
        np.testing.assert_allclose(
            model.predict(raw, verbose=0), tf.nn.softmax(expected)[:, : len(names)], atol=TOLERANCE
        )
        assert tuple(model.class_names) == names
    another, expected = simulation.client_model(client), model.predict(raw, verbose=0)
    another.set_weights([w + 1 for w in another.get_weights()])
    assert_identical(before, body.get_weights())
    for unchanged in (model, simulation.client_model(client)):
        np.testing.assert_array_equal(unchanged.predict(raw, verbose=0), expected)


def test_class_names_are_those_of_the_clients_classes(tmp_path):
    names = [f"class/{k} ü" for k in range(10)]
    simulation = simulation_of(small_cnn(), clients_of(images, class_names=names))
    model = simulation.client_model(0)
    assert [*model.class_names] == [names[5], names[9]]
    model.save(tmp_path / "client.keras")
    loaded = tf.keras.models.load_model(tmp_path / "client.keras")
    if KERAS_3:
        with pytest.raises(ValueError, match="No such layer: class_names"):
            loaded.get_layer("class_names")
        return
    assert loaded.get_layer("class_names").get_vocabulary() == [names[5], names[9]]
    raw = images(7)
    predicted = loaded.predict(raw, verbose=0).argmax(axis=1)
    as_text = loaded.get_layer("class_names")(predicted).numpy()
    assert [text.decode() for text in as_text] == [[names[5], names[9]][k] for k in predicted]


def test_a_shared_classifier_has_outputs_that_a_client_lacks():
    """Those of the run, which counts them as wrong; a head of its own has none."""
    clients = clients_of(images, label_space="global", num_classes=10)
    model = simulation_of(small_cnn(), clients, "fedavg").client_model(0)
    assert model.output_shape == (None, 10)
    assert [*model.class_names] == [str(k) for k in range(10)]
    clients = clients_of(images)
    model = simulation_of(small_cnn(), clients, "fedavg", num_classes=4).client_model(0)
    assert [*model.class_names] == ["5", "9", "absent_2", "absent_3"]
    model = simulation_of(small_cnn(), clients, "fedper", num_classes=4).client_model(0)
    assert [*model.class_names] == ["5", "9"]


def test_a_client_is_fine_tuned_as_in_the_evaluation_of_its_round():
    """With a head that is drawn anew from the seed of client and round."""
    clients = clients_of(images)
    simulation = simulation_of(small_cnn(), clients, "fedrecon", head_start="anew", local_steps=2)
    seen = []
    for _ in range(2):
        simulation.run_round()
        evaluation = simulation.evaluate()
        for client in range(2):
            raw, labels = clients.train.of(client)
            p = simulation.client_model(client).predict(raw, verbose=0).astype(np.float64)
            loss = -np.log(p[np.arange(len(labels)), labels]).mean()
            assert loss == pytest.approx(evaluation.train_loss[client], rel=1e-5)
            seen.append(loss)
    assert len(set(seen)) == 4


# The others have a layer of the tests that does not say how to make it again.
COPIED = [name for name in BODIES if "inference" not in name and "noise" not in name]


@pytest.mark.thorough
@pytest.mark.parametrize("name", COPIED)
def test_a_body_is_copied(name):
    shape, build = BODIES[name]
    model = build()
    body = Body(model, shape)
    rng = np.random.default_rng(3)
    theta = [w + rng.normal(0, 0.1, w.shape).astype(np.float32) for w in body.initial_theta]
    for variable in model.non_trainable_weights:  # The copy has the constants of the function.
        variable.assign_add(tf.ones_like(variable))
    x = examples_for(body, shape)
    expected = body(theta, x)
    np.testing.assert_allclose(body.clone(theta)(x), expected, rtol=1e-5, atol=1e-5)


class Described(InInference):
    """A layer of the user's own that Keras can make again; its batch normalisation is in it."""

    def __init__(self, inner, **named):
        super().__init__(inner)

    def get_config(self):
        return {"inner": saving.serialize_keras_object(self.inner)}

    @classmethod
    def from_config(cls, config):
        return cls(saving.deserialize_keras_object(config["inner"]))


@pytest.mark.thorough
def test_layers_of_the_users_own_are_copied_if_they_say_how(tmp_path):
    draw = lambda count: np.random.default_rng(count).normal(size=(count, 4))  # noqa: E731
    body = sequential((4,), Described(live_normalization()))
    simulation = simulation_of(body, clients_of(draw))
    model, raw = simulation.client_model(1), draw(9).astype(np.float32)
    expected = model.predict(raw, verbose=0)
    np.testing.assert_allclose(expected, tf.nn.softmax(logits_of(simulation, 1, raw)), atol=1e-5)
    model.save(tmp_path / "client.keras")
    own = {"Described": Described}
    loaded = tf.keras.models.load_model(tmp_path / "client.keras", custom_objects=own)
    np.testing.assert_array_equal(loaded.predict(raw, verbose=0), expected)
    simulation = simulation_of(sequential((4,), InInference(live_normalization())), simulation.data)
    with pytest.raises(ValueError, match=r"(?s)make again.*NotImplementedError.*`get_config`"):
        simulation.client_model(0)
    # A SavedModel has what the body computes, and needs no copy of its layers.
    assert pfl.export_bundle(simulation, [0], tmp_path / "bundle")["clients"] == {"count": 1}


class TwoNorms(layers.Layer):
    """Keras orders its weights by which of them are trained."""

    def __init__(self, **named):
        super().__init__(**named)
        self.norms = [layers.BatchNormalization() for _ in range(2)]

    def call(self, x):
        return self.norms[1](self.norms[0](x, training=False), training=False)


def test_weights_find_their_places_in_layers_that_are_frozen_in_part():
    own = TwoNorms()
    model = sequential((4,), own)
    own.norms[0].trainable = False
    rng = np.random.default_rng(5)
    model.set_weights([rng.uniform(0.5, 2.0, w.shape) for w in model.get_weights()])
    body = Body(model)
    x = tf.constant(rng.normal(size=(6, 4)), tf.float32)
    expected = body(body.initial_theta, x)
    np.testing.assert_allclose(body.clone(body.initial_theta)(x), expected, rtol=1e-5, atol=1e-5)


def test_a_body_that_has_changed_since_is_refused():
    body = small_cnn(name="changed")
    simulation = simulation_of(body, clients_of(images))
    body.layers[0].activation = tf.keras.activations.tanh
    with pytest.raises(ValueError, match="must be as it was when the run was made from it"):
        simulation.client_model(0)


def test_a_client_or_a_model_that_is_not_there_is_refused():
    simulation = simulation_of(small_cnn(), clients_of(images), "ditto")
    for client in (-1, 2, 0.5, "2", None):
        with pytest.raises(ValueError, match=r"`client` must be an id, .* in \[0, 2\), .*got"):
            simulation.client_model(client)
    with pytest.raises(ValueError, match=r"one of personalized, generic, .* got 'own'"):
        simulation.client_model(0, "own")
    one, other = (simulation.client_model(0, name) for name in ("personalized", None))
    np.testing.assert_array_equal(one.get_weights()[0], other.get_weights()[0])


def test_what_is_no_body_and_head_is_refused():
    simulation = simulation_of(small_cnn(), clients_of(images))
    algorithm = simulation.algorithm
    (served,) = algorithm.served.values()
    another = {
        "ndarray": dataclasses.replace(served, weights=lambda server, client: client.head),
        "a way of its own": dataclasses.replace(served, predict=lambda *given: given[0]),
    }
    for got, changed in another.items():
        algorithm = dataclasses.replace(algorithm, served={"personalized": changed})
        other = pfl.Simulation(algorithm, simulation.data, simulation.participation, "in_process")
        with pytest.raises(ValueError, match=f"must be `Weights` .*pflego: .*{got}"):
            other.client_model(0)
