"""Every body that docs/models.md shows leaves the run, and does outside what it did inside."""

import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.conftest import build_method
from tests.serving.test_client_models import clients_of
from tests.serving.test_export import LACKS_OPERATIONS, found_alone, learnt, probabilities
from tf_pflego.serving.export import served_clients

layers = tf.keras.layers
DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "models.md"


def bodies_of_document():
    """Returns the split models that the blocks of the document make, in order."""
    variables, models = {}, []
    for block in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL):
        exec(block, variables)
        if not models or variables["model"] is not models[-1]:
            models.append(variables["model"])
    return models


def body_of_tokens(*then, **embedding):
    first = layers.Embedding(50, 8, **embedding)
    return tf.keras.Sequential([tf.keras.Input((12,), dtype="int32"), first, *then])


def clients_for(model):
    rng = np.random.default_rng(3)

    def draw(count):
        if model.example_dtype == tf.int32:
            return rng.integers(0, 50, (count, *model.example_shape))
        return rng.normal(size=(count, *model.example_shape)).astype(np.float32)

    return clients_of(draw, labels=((5, 9), (2, 5)))


def simulation_for(model, name="pflego"):
    algorithm, drawn = build_method(name, model), pfl.Participation(2, 2)
    return pfl.Simulation(algorithm, clients_for(model), drawn, "in_process")


@pytest.mark.thorough
@pytest.mark.lines("tff", "current")
def test_each_serves_and_learns_on_with_tensorflow_alone(tmp_path):
    tf.keras.utils.set_random_seed(0)
    recurrent = body_of_tokens(layers.Bidirectional(layers.LSTM(3)), mask_zero=True)
    models = [*bodies_of_document(), pfl.SplitModel(recurrent, 2)]
    del models[1]  # It has dense layers alone, as others.
    assert [model.has_loops for model in models] == [False, True, False, False, True]
    expected, files = {}, []
    for number, model in enumerate(models):
        method = "fedavg" if number == 4 else "pflego"
        with simulation_for(model, method) as simulation:
            (client,) = served_clients(simulation, [1])
            train, labels = simulation.data.train.of(1)
            for format, suffix in (("savedmodel", ""), ("tflite", ".tflite"), ("keras", ".keras")):
                # One is of a class of the document; test_client_models has one like the other.
                if format == "keras" and number in (3, 4):
                    continue
                # In TFLite others learn on in the neighbouring files.
                learns = format == "savedmodel" or (
                    format == "tflite" and not LACKS_OPERATIONS and number == 1
                )
                directory = tmp_path / f"{number}{format}"
                pfl.export_clients(simulation, [1], directory, format, learning=learns)
                given = {"test": client.test_examples, "train": train, "labels": labels}
                np.savez(directory / "data.npz", **given)
                key = f"{directory}/client_1{suffix}"
                files.append(key)
                expected[f"serve_{key}"] = client.predictions()
                if learns:
                    weights = learnt(client, train, labels)
                    expected[f"after_{key}"] = probabilities(client, weights)
                    expected[f"restored_{key}"] = expected[f"after_{key}"]
    found = found_alone(files, tmp_path)
    named = [found[name] for name in found if name.startswith("names_")]
    assert named and all(names.tolist() == [b"2", b"5"] for names in named)
    for key, wanted in expected.items():
        np.testing.assert_allclose(found[key], wanted, rtol=0, atol=1e-5, err_msg=key)
    moved = [
        np.abs(wanted - expected[key.replace("after_", "serve_")]).max()
        for key, wanted in expected.items()
        if key.startswith("after_")
    ]
    assert min(moved) > 1e-4  # ten times what files may differ by


def with_lambda():
    then = layers.Lambda(lambda x: 2.0 * x), layers.Dense(3)
    return tf.keras.Sequential([tf.keras.Input((4,)), *then])


@pytest.mark.thorough
@pytest.mark.lines("tff", "current")
@pytest.mark.parametrize(
    ("body", "method", "arguments", "message"),
    [
        (with_lambda, "pflego", {"format": "keras"}, r"no Lambda layer .* lambda.* is one. Write"),
        (lambda: body_of_tokens(layers.GRU(4)), "fedavg", {"format": "tflite"}, "`learning` must "
         "be left out for TFLite.*fedavg trains the whole.*`learning=False`"),
        pytest.param(
            lambda: body_of_tokens(layers.GRU(4)),
            "pflego",
            {"format": "tflite"},
            r"`learning` must be left out for TFLite .* 2\.20 on",
            marks=pytest.mark.skipif(not LACKS_OPERATIONS, reason="the interpreter has them"),
        ),
    ],
    ids=["Lambda", "gradient of a loop", "interpreter"],
)  # fmt: skip
def test_what_cannot_leave_is_refused_before_any_work(body, method, arguments, message, tmp_path):
    model = pfl.SplitModel(body(), 2)
    with simulation_for(model, method) as simulation:
        simulation.served_weights = None  # It is not asked for.
        with pytest.raises(ValueError, match=message):
            pfl.export_clients(simulation, [1], tmp_path / "models", **arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_operations_that_tflite_lacks_are_refused_with_the_remedy(tmp_path):
    class Decomposed(tf.keras.layers.Layer):
        def call(self, x):
            return x + tf.linalg.svd(x[:, :, None], compute_uv=False)

    body = tf.keras.Sequential([tf.keras.Input((4,)), Decomposed(), layers.Dense(3)])
    with simulation_for(pfl.SplitModel(body, 2)) as simulation:
        with pytest.raises(ValueError, match=r"operations that TFLite has.*Choose `learning=True"):
            pfl.export_clients(simulation, [1], tmp_path / "models", "tflite", learning=False)
        with pytest.raises(ValueError, match=r"(?s)that Keras finds .*register_keras_serializable"):
            pfl.export_clients(simulation, [1], tmp_path / "models", "keras")
    assert not list(tmp_path.iterdir())
