"""Models of every task leave a run, predict outside what they did inside, and learn on."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.conftest import build_method
from tests.methods import thorough
from tests.serving.test_exporting import learn_on, learnt, needs_operations
from tf_pflego.program import personalize
from tf_pflego.serving.exporting import served_clients
from tf_pflego.serving.personal_model import PersonalModel
from tf_pflego.simulation.client_models import logits_model

layers = tf.keras.layers
INPUTS, TOKENS, LENGTH = 4, 7, 5
WHAT = ("examples", "labels")
# Quantities of a few thousands that differ by some units: float32 keeps 3e-5 of a unit.
MEAN, DEVIATION = (3000.0, -20.0), (4.0, 0.5)


def attention(hidden, heads=2):
    """A block of a causal transformer: what a position is made of are it and those before it."""
    attended = layers.MultiHeadAttention(heads, 4)(hidden, hidden, use_causal_mask=True)
    hidden = layers.LayerNormalization()(layers.Add()([hidden, attended]))
    wide = layers.Dense(16, activation="relu")(hidden)
    return layers.LayerNormalization()(layers.Add()([hidden, layers.Dense(8)(wide)]))


@functools.cache
def body_of(kind):
    tf.keras.utils.set_random_seed(1)
    if kind == "table":
        first = tf.keras.Input((INPUTS,))
        return tf.keras.Sequential([first, layers.Dense(5, activation="relu")])
    inputs = tf.keras.Input((LENGTH,), dtype="int32")
    embedded = layers.Embedding(TOKENS, 8)(inputs)
    if kind == "gru":
        return tf.keras.Model(inputs, layers.GRU(6, return_sequences=True)(embedded))
    return tf.keras.Model(inputs, attention(embedded))


def labels_of(kind, rng, count):
    """Draws labels of a task; those of a sequence are its next tokens, some of which lack."""
    if kind == "multi_label":
        return rng.integers(0, 2, (count, 3))
    if kind == "regression":
        return rng.normal(MEAN, DEVIATION, (count, 2))
    if kind == "counts":
        return rng.poisson(3.0, (count, 2))
    if kind == "own":
        return rng.normal(size=(count, 2))
    return rng.integers(0, TOKENS, (count, LENGTH)) - (np.arange(LENGTH) > 2)


def own_task():
    def loss(logits, labels):
        return tf.reduce_sum(tf.sqrt(1 + tf.square(logits - labels)), axis=1)

    error = pfl.Statistic(
        "largest_error",
        lambda predicted, labels: tf.stack(
            [
                tf.reduce_sum(tf.reduce_max(tf.abs(predicted - labels), axis=1)),
                tf.cast(tf.shape(labels)[0], tf.float32),
            ]
        ),
        higher_is_better=False,
    )
    return pfl.Task(loss, [error], link=lambda logits: 10.0 * logits)


def make_clients(kind):
    rng = np.random.default_rng(0)
    is_sequence = kind in ("gru", "transformer")

    def pair(count):
        if is_sequence:
            examples = rng.integers(0, TOKENS, (count, LENGTH)).astype(np.int32)
        else:
            examples = rng.normal(size=(count, INPUTS)).astype(np.float32)
        return examples, labels_of(kind, rng, count)

    task = "regression" if kind == "own" else kind
    about = {"label_space": "global"} if is_sequence else {"task": task}
    return pfl.from_arrays([pair(9), pair(6)], [pair(5), pair(4)], **about)


@functools.cache
def model_of(kind):
    if kind in ("gru", "transformer"):
        return pfl.SplitModel(body_of(kind), TOKENS)
    task = {"regression": pfl.regression(mean=MEAN, deviation=DEVIATION), "own": own_task()}.get(
        kind, kind
    )
    return pfl.SplitModel(body_of("table"), 3 if kind == "multi_label" else 2, task=task)


def simulation_of(kind, rounds=1):
    algorithm = build_method("pflego", model_of(kind))
    clients, drawn = make_clients(kind), pfl.Participation(2, 2)
    simulation = pfl.Simulation(algorithm, clients, drawn, "in_process")
    for _ in range(rounds):
        simulation.run_round()
    return simulation


OUTPUTS = {"regression": "predictions", "counts": "predictions", "own": "predictions"}
FIRST = {
    "multi_label": "f1",
    "regression": "root_mean_squared_error",
    "counts": "poisson_deviance",
    "own": "largest_error",
}


@pytest.mark.parametrize(
    "kind",
    [pytest.param("regression", marks=[pytest.mark.thorough, pytest.mark.lines("tff", "current")])]
    + [thorough(kind) for kind in ("own", "transformer", "multi_label", "counts")],
)
def test_files_predict_as_the_run_and_learn_on(kind, tmp_path):
    output, first = OUTPUTS.get(kind, "probabilities"), FIRST.get(kind, "accuracy")
    scale = max(map(abs, MEAN)) if kind == "regression" else 1.0
    with simulation_of(kind) as simulation:
        (client,) = served_clients(simulation, [1])
        expected, metrics = simulation.predict()[1], simulation.evaluate().of_clients()
        np.testing.assert_allclose(client.predictions(), expected, atol=1e-6 * scale)
        formats = [("savedmodel", True), ("tflite", False)]
        if kind == "own":  # A link that Keras does not know leaves as another format.
            said = r"`link` must be one of softmax.*format='savedmodel'"
            with pytest.raises(ValueError, match=said):
                simulation.client_model(1)
            with pytest.raises(ValueError, match="`link` must be"):
                pfl.export_clients(simulation, [1], tmp_path / "models", "keras")
            assert not list(tmp_path.iterdir())
        else:
            formats.append(("keras", True))
            model = simulation.client_model(1)
            assert model.output_names == [output]
            predicted = model.predict(client.test_examples, verbose=0)
            np.testing.assert_allclose(predicted, expected, rtol=1e-6, atol=1e-6 * scale)
            logits = logits_model(model).predict(client.test_examples, verbose=0)
            np.testing.assert_allclose(logits, client.logits(client.test_examples), atol=1e-5)
        for format, learning in formats:
            directory = tmp_path / format
            (entry,) = pfl.export_clients(simulation, [1], directory, format, learning=learning)
            assert entry["largest_difference"] < 1e-5 * scale
            assert entry[f"test_{first}_of_run"] == pytest.approx(metrics[f"test_{first}"][1])
            assert entry[f"test_{first}"] == pytest.approx(metrics[f"test_{first}"][1], 1e-4)
        interpreter = tf.lite.Interpreter(str(tmp_path / "tflite" / "client_1.tflite"))
        found = interpreter.get_signature_runner("serve")(examples=client.test_examples)
        np.testing.assert_allclose(found[output], expected, rtol=1e-5, atol=1e-5)
        functions = tf.saved_model.load(str(tmp_path / "savedmodel" / "client_1")).signatures
        examples, labels = simulation.data.train.of(1)
        losses = learn_on(functions, examples, labels, 15, 0.0)
        assert losses["loss_after"] < losses["loss_before"]
        weights = learnt(client, examples, labels, rate=0.0)
        task, tested = client.model.task, tf.constant(client.test_examples)
        wanted = task.predicted(client.model.predict(weights, tested, client.classes))
        found = functions["serve"](examples=tested)[output]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
        assert np.abs(wanted - expected).max() > 1e-3


@needs_operations
@pytest.mark.parametrize("kind", ["regression", thorough("transformer")])
def test_tflite_files_learn_on(kind, tmp_path):
    output = OUTPUTS.get(kind, "probabilities")
    with simulation_of(kind) as simulation:
        (client,) = served_clients(simulation, [0])
        pfl.export_clients(simulation, [0], tmp_path / "models", "tflite", quantize="float16")
        examples, labels = simulation.data.train.of(0)
    interpreter = tf.lite.Interpreter(str(tmp_path / "models" / "client_0.tflite"))
    interpreter.get_signature_runner("personalize")(
        examples=examples, labels=labels, steps=np.int32(15), learning_rate=np.float32(0.0)
    )
    weights = learnt(client, examples, labels, rate=0.0)
    wanted = client.model.predict(weights, tf.constant(client.test_examples), client.classes)
    wanted = client.model.task.predicted(wanted)
    found = interpreter.get_signature_runner("serve")(examples=client.test_examples)[output]
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-2)  # as float16 rounds
    assert np.abs(wanted - client.predictions()).max() > 0.05


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["regression", "gru"])
def test_a_body_is_shared(kind, tmp_path):
    with simulation_of(kind) as simulation:
        pfl.export_bundle(simulation, "all", tmp_path / "bundle")
        (client,) = served_clients(simulation, [1])
        examples, labels = simulation.data.train.of(1)
    models = pfl.PersonalModels(tmp_path / "bundle")
    found, _ = models.predict(["1"] * len(client.test_examples), client.test_examples)
    np.testing.assert_allclose(found, client.predictions(), rtol=1e-5, atol=1e-6)
    functions = tf.saved_model.load(str(tmp_path / "bundle" / "model")).signatures
    about = {"head": client.weights.head, "classes": client.classes}
    learnt_head = learn_on(functions, examples, labels, 15, 0.0, **about)["head"]
    wanted = learnt(client, examples, labels, rate=0.0).head
    np.testing.assert_allclose(learnt_head, wanted, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "messages"),
    [
        thorough("multi_label", {2: "labels must be below 2"}),
        ("counts", {-1: "labels must not be negative"}),
        thorough("gru", {TOKENS: f"be below {TOKENS}", -2: "must not be negative, but for -1"}),
    ],
)
def test_labels_that_are_none_of_the_task_are_refused(kind, messages):
    with simulation_of(kind, rounds=0) as simulation:
        (client,) = served_clients(simulation, [0])
        examples, labels = simulation.data.train.of(0)
        functions = PersonalModel(client).signatures()
    for label, message in messages.items():
        labels = labels.copy()
        labels[0, 1] = label
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            learn_on(functions, examples, labels, 1)


def test_new_clients_are_given_a_few_examples_of_all():
    with simulation_of("regression", rounds=0) as simulation:
        new = pfl.NewClients(simulation, make_clients("regression"), steps=5)
        one, every = new.curve([1, 9], draws=2)
        assert one.deviation > 0 == every.deviation
        with pytest.raises(ValueError, match="must have a task with labels for counts"):
            pfl.NewClients(simulation, make_clients("counts"))


@pytest.mark.parametrize("kind", ["regression", thorough("transformer")])
def test_files_of_new_clients_have_labels_of_the_task(kind, tmp_path):
    clients, path = make_clients(kind), tmp_path / "ann.npz"
    splits = {"train": clients.train.of(0), "test": clients.test.of(0)}
    arrays = {
        f"{split}_{what}": a
        for split in splits
        for what, a in zip(WHAT, splits[split], strict=True)
    }
    np.savez(path, **arrays)
    read = personalize._clients_of([path], personalize.arrays_of([path]), clients)
    assert (read.task, read.label_space, read.client_names) == (clients.task, "global", ("ann",))
    np.testing.assert_array_equal(read.train.labels, splits["train"][1])
    np.testing.assert_array_equal(read.num_classes, clients.num_classes[:1])


def test_new_clients_for_which_a_statistic_is_not_defined_do_not_count():
    """As those of the run: labels that are all the same leave nothing to be explained."""
    clients = make_clients("regression")
    (_, first), (_, second) = (clients.test.of(client) for client in range(2))
    labels = np.concatenate([np.ones_like(first), second])
    clients = dataclasses.replace(clients, test=dataclasses.replace(clients.test, labels=labels))
    task = pfl.regression(mean=MEAN, deviation=DEVIATION)
    model = pfl.SplitModel(body_of("table"), 2, task=task, statistics=["r_squared"])
    algorithm, drawn = build_method("pflego", model), pfl.Participation(2, 2)
    with pfl.Simulation(algorithm, clients, drawn, "in_process") as simulation:
        (result,) = pfl.NewClients(simulation, clients, steps=0).curve(["all"])
        assert result.mean == pytest.approx(simulation.evaluate().of_clients()["test_r_squared"][1])
