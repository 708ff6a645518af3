"""Exported models serve and learn on as the run's clients do, with TensorFlow alone."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.methods import each_of, thorough
from tests.serving.test_client_models import clients_of, images, simulation_of, small_cnn
from tf_pflego.core.algorithm import Client
from tf_pflego.data.model_inputs import copied_as_model_inputs
from tf_pflego.models.personalization import learning_on
from tf_pflego.serving.exporting import new_directory, served_clients
from tf_pflego.serving.formats import tflite_of
from tf_pflego.serving.personal_model import PersonalModel

STEPS, RATE = 15, 0.1
ALONE = pathlib.Path(__file__).with_name("alone.py").read_text(encoding="utf-8")


def learnt(client, examples, labels, steps=STEPS, rate=RATE):
    """Returns what the run's own rule makes of a client's weights."""
    learn_on = learning_on(client.model, client.rule)
    own = Client(
        copied_as_model_inputs(tf.constant(examples)),
        tf.constant(labels),
        tf.constant(len(labels)),
        tf.constant(client.classes),
        tf.constant(1.0),
        tf.zeros([2], tf.int32),
    )
    weights = tf.nest.map_structure(tf.convert_to_tensor, client.weights)
    return learn_on(weights, own, tf.constant(steps), tf.constant(rate))


def probabilities(client, weights):
    count = len(client.class_names)
    examples = copied_as_model_inputs(tf.constant(client.test_examples))
    logits = client.model.predict(weights, examples, tf.constant(client.classes))
    return tf.nn.softmax(logits[:, :count]).numpy()


@pytest.fixture(scope="module", name="simulation")
def simulation_fixture():
    simulation = simulation_of(small_cnn(), clients_of(images, class_names=list("abcdefghij")))
    simulation.run_round()
    simulation.run_round()
    return simulation


# https://github.com/google-ai-edge/LiteRT/issues/6458
LACKS_OPERATIONS = tuple(map(int, tf.__version__.split(".")[:2])) >= (2, 20)


def needs_operations(test):
    """Marks a test of files that need TensorFlow's operations in TFLite's interpreter."""
    reason = "the interpreter in TensorFlow 2.20 and later lacks TensorFlow's operations"
    return pytest.mark.lines("tff")(pytest.mark.skipif(LACKS_OPERATIONS, reason=reason)(test))


def found_alone(paths, directory):
    """Returns what a program that is started with TensorFlow alone finds in files."""
    code = f"{ALONE}assert not {{'tf_pflego', 'pyarrow'}} & set(sys.modules)"
    command = [sys.executable, "-c", code, STEPS, RATE, directory / "found.npz", *paths]
    result = subprocess.run(map(str, command), cwd=directory, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return np.load(directory / "found.npz")


@pytest.mark.lines("tff", "current")
def test_a_file_serves_and_learns_on(simulation, tmp_path, monkeypatch):
    """In test_bodies_leave.py a program that has TensorFlow alone does the same, also in TFLite."""
    (client,), output = served_clients(simulation, [1]), tmp_path / "models"
    (entry,) = pfl.export_clients(simulation, [1], output)
    examples, labels = simulation.data.train.of(1)
    given = {"test": client.test_examples, "train": examples, "labels": labels}
    np.savez(output / "data.npz", **given)
    path = output / entry["file"]
    arguments = "alone", STEPS, RATE, tmp_path / "found.npz", path
    monkeypatch.setattr(sys, "argv", [*map(str, arguments)])
    exec(ALONE, {})
    actual = np.load(tmp_path / "found.npz")
    assert entry["test_accuracy"] == entry["test_accuracy_of_run"]
    served, after = (actual[f"{name}_{path}"] for name in ("serve", "after"))
    np.testing.assert_allclose(served, client.predictions(), rtol=0, atol=1e-6)
    assert [name.decode() for name in actual[f"names_{path}"]] == entry["classes"]
    expected = learnt(client, examples, labels)
    rows = len(client.class_names)
    np.testing.assert_allclose(actual[f"head_{path}"], expected.head[:rows], atol=1e-5)
    np.testing.assert_allclose(after, probabilities(client, expected), atol=1e-5)
    assert np.abs(after - served).max() > 1e-3
    np.testing.assert_array_equal(actual[f"restored_{path}"], after)
    loss_before, loss_after = actual[f"losses_{path}"]
    assert loss_after < loss_before


def learn_on(functions, examples, labels, steps=5, rate=RATE, **more):
    """Calls the signature of a file by which a client learns on."""
    given = {"examples": examples, "labels": labels, "steps": steps, "learning_rate": rate}
    return functions["personalize"](**{k: tf.constant(v) for k, v in (given | more).items()})


# A method for each way in which a client is served and learns on: by a head of its own, one beside
# the shared head, the sum of two, a fixed one, and by a network that is shared, its own, both, or
# longer by a part between body and head.
KINDS = (*("pflego", "pflego_shared_head", "fedrod", "fedbabu", "fedavg", "ditto", "fedcp"),)


def more_images(count):
    return np.random.default_rng(count + 1).integers(0, 256, (count, 6, 6, 1)).astype(np.uint8)


@pytest.mark.parametrize("name", each_of(KINDS, ("pflego", "ditto")))
def test_each_model_of_a_method_serves_and_learns_on(name):
    """New clients start from what is served, and learn by the same rule."""
    with simulation_of(small_cnn(), clients_of(images), name) as simulation:
        simulation.run_round()
        for served in simulation.algorithm.served:
            (client,) = served_clients(simulation, [1], served)
            model = PersonalModel(client)
            functions = model.signatures()
            test = tf.constant(client.test_examples)
            actual = functions["serve"](examples=test)["probabilities"]
            np.testing.assert_allclose(actual, client.predictions(), atol=1e-6)
            examples, labels = simulation.data.train.of(1)
            learn_on(functions, examples, labels, 3)
            expected = learnt(client, examples, labels, 3)
            actual = functions["serve"](examples=test)["probabilities"]
            np.testing.assert_allclose(actual, probabilities(client, expected), atol=1e-5)
            moves = any(
                not np.array_equal(a, b)
                for a, b in zip(expected.theta, client.weights.theta, strict=True)
            )
            assert moves == (client.rule is None)
        clients = clients_of(more_images, labels=((5, 9), (9, 2)))
        start = pfl.NewClients(simulation, clients, steps=0, learning_rate=RATE)
        moved = pfl.NewClients(simulation, clients, steps=4, learning_rate=RATE)
        for before, after in zip(start.learnt(), moved.learnt(), strict=True):
            expected = learnt(before, *clients.train.of(before.number), 4)
            np.testing.assert_allclose(
                after.predictions(), probabilities(before, expected), atol=1e-5
            )
            head = np.asarray(before.weights.head)
            assert not np.array_equal(head, np.asarray(after.weights.head))


def test_a_wrong_label_is_refused_and_numbers_that_are_not_finite_change_nothing():
    def table(count):
        return np.random.default_rng(count).normal(size=(count, 4)).astype(np.float32)

    with simulation_of(pfl.mlp((4,), seed=0), clients_of(table)) as simulation:
        (client,) = served_clients(simulation, [1])
        functions = PersonalModel(client).signatures()
        examples, labels = simulation.data.train.of(1)
        with pytest.raises(tf.errors.InvalidArgumentError, match="labels must be below 3"):
            learn_on(functions, examples, labels + 1)
        learn_on(functions, np.full_like(examples, np.nan), labels)
        actual = functions["serve"](examples=tf.constant(client.test_examples))["probabilities"]
        np.testing.assert_allclose(actual, client.predictions(), atol=1e-6)


@pytest.mark.thorough
def test_quantised_files_are_smaller_and_as_accurate(digits_dir, tmp_path):
    digits = pfl.load_dataset("digits", digits_dir)
    labels = digits.train.labels, digits.test.labels
    partition = pfl.round_robin(*labels, 5, classes_per_client=3, num_classes=10, seed=0)
    clients = pfl.assign_clients(digits, partition)
    model = pfl.SplitModel(pfl.mlp(clients.example_shape, seed=0), 3)
    algorithm = pfl.build_algorithm("pflego", model, client_learning_rate="auto")
    with pfl.Simulation(algorithm, clients, pfl.Participation(5, 5), "in_process") as simulation:
        for _ in range(30):
            simulation.run_round()
        (client,) = served_clients(simulation, [0])
        whole = len(tflite_of(PersonalModel(client), learning=False))
        for quantize in ("float16", "int8"):
            how = {"quantize": quantize, "learning": False}
            (entry,) = pfl.export_clients(simulation, [0], tmp_path / quantize, "tflite", **how)
            assert entry["bytes"] < 0.8 * whole
            assert entry["test_accuracy_of_run"] > 0.8
            assert abs(entry["test_accuracy"] - entry["test_accuracy_of_run"]) <= 0.02
            assert entry["largest_difference"] > 0


@pytest.mark.parametrize("dtype", [np.uint8, thorough(np.float32), np.int32])
def test_what_only_serves_needs_no_operation_but_tflites_own(dtype, tmp_path):
    def table(count):
        return np.random.default_rng(count).integers(0, 100, (count, 4)).astype(dtype)

    layers = tf.keras.layers
    inputs = layers.Input((4,), dtype="int32" if dtype == np.int32 else "float32")
    features = layers.Rescaling(0.01)(inputs)
    body = tf.keras.Model(inputs, layers.Dense(5, activation="relu")(features))
    with simulation_of(body, clients_of(table)) as simulation:
        output = tmp_path / "models"
        (entry,) = pfl.export_clients(simulation, [1], output, "tflite", learning=False)
        assert entry["largest_difference"] < 1e-5
        operations = tf.lite.Interpreter(str(output / entry["file"]))._get_ops_details()
    assert not [op["op_name"] for op in operations if op["op_name"].startswith("Flex")]


@pytest.mark.thorough
def test_with_a_class_mask_no_model_predicts_a_class_that_the_client_lacks(tmp_path):
    clients = clients_of(images, label_space="global", num_classes=10, class_mask=True)
    with simulation_of(small_cnn(), clients, "fedavg") as simulation:
        simulation.run_round()
        raw, labels = clients.train.of(0)
        actual = [simulation.client_model(0).predict(raw, verbose=0)]
        (entry,) = pfl.export_clients(simulation, [0], tmp_path / "alone")
        pfl.export_bundle(simulation, [0], tmp_path / "bundle")
    signatures = tf.saved_model.load(str(tmp_path / "alone" / entry["file"])).signatures
    actual.append(signatures["serve"](examples=tf.constant(raw))["probabilities"])
    models = pfl.PersonalModels(tmp_path / "bundle")
    actual.append(models.predict(["0"] * len(raw), raw)[0])
    for probabilities in map(np.asarray, actual):
        assert set(np.unique(probabilities.nonzero()[1])) == {5, 9}
        np.testing.assert_allclose(probabilities, actual[0], atol=1e-6)
    learn_on(signatures, raw, labels, 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="of classes that the client has"):
        learn_on(signatures, raw, labels - 1, 1)


def test_what_cannot_be_exported_is_refused_and_leaves_nothing(simulation, tmp_path):
    quantized = {"quantize": "int4", "format": "tflite"}
    for how, message in (
        ({"format": "onnx"}, "`format` must be one of savedmodel, keras, tflite"),
        (quantized, "`quantize` must be one of none, float16, int8"),
    ):
        with pytest.raises(ValueError, match=message):
            pfl.export_clients(simulation, [0], tmp_path / "models", **how)
    assert not list(tmp_path.iterdir())


def test_an_export_that_fails_leaves_the_earlier_one(tmp_path):
    models = tmp_path / "models"
    with new_directory(models) as directory:
        (directory / "clients.json").write_text("first")
    with pytest.raises(OSError, match="full"), new_directory(models, overwrite=True) as directory:
        (directory / "clients.json").write_text("second")
        raise OSError("full")
    assert (models / "clients.json").read_text() == "first"
    assert list(tmp_path.iterdir()) == [models]
    models.rename(tmp_path / ".models.replaced")  # As a program leaves it that is killed just then.
    with pytest.raises(FileExistsError, match="must be a new or empty directory"):
        new_directory(models).__enter__()
    assert (models / "clients.json").read_text() == "first"


@pytest.mark.thorough
def test_files_have_the_names_of_the_clients_and_replace_an_earlier_export_as_a_whole(tmp_path):
    """Whatever a name is, its file is in the directory of the export."""
    names, models = ["../Süd", "a/%2Fb"], tmp_path / "models"
    with simulation_of(small_cnn(), clients_of(images, client_names=names)) as simulation:
        entries = pfl.export_clients(simulation, ["a/%2Fb", 0], models, "keras")
        assert [(e["client"], e["name"], e["file"]) for e in entries] == [
            (1, "a/%2Fb", "client_a%2F%252Fb.keras"),
            (0, "../Süd", "client_..%2FSüd.keras"),
        ]
        assert all((models / entry["file"]).is_file() for entry in entries)
        for export in (pfl.export_clients, pfl.export_bundle):
            said = "replace an earlier export with `overwrite=True"
            with pytest.raises(FileExistsError, match=said):
                export(simulation, [1], models)
        pfl.export_clients(simulation, [1], models, "keras", overwrite=True)
        files = ["client_a%2F%252Fb.keras", "clients.json"]
        assert sorted(path.name for path in models.iterdir()) == files
        for _ in range(2):
            pfl.export_bundle(simulation, "all", models, overwrite=True)
            assert (models / "names.txt").read_text() == "../Süd\na/%2Fb\n"
            assert list(tmp_path.iterdir()) == [models]
        few = pfl.NewClients(simulation, simulation.data.part(1, 2), steps=0)
        assert [client.name for client in few.learnt()] == ["a/%2Fb"]
        assert [*simulation.client_model("../Süd").class_names] == ["5", "9"]
        said = r"or the name of a client; got 'Süd'.* Give the id"
        with pytest.raises(ValueError, match=said):
            simulation.client_model("Süd")
