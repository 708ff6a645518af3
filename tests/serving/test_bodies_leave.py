"""Every body that docs/models.md shows leaves the run, and does outside what it did inside."""

import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.conftest import build_method
from tests.serving import test_raw_columns
from tests.serving.test_client_models import clients_of
from tests.serving.test_exporting import LACKS_OPERATIONS, found_alone, learnt, probabilities
from tf_pflego.serving.exporting import served_clients

layers = tf.keras.layers
SUFFIXES = {"savedmodel": "", "tflite": ".tflite", "keras": ".keras"}
DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "models.md"


def bodies_of_document():
    """Returns the split models that the blocks of the document make, in order."""
    variables, models = {}, []
    for block in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL):
        if "\nmodel = " in block:
            exec(block, variables)
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
    assert [model.body.has_loops for model in models] == [False, True, False, False, True]
    of_tables = test_raw_columns.exported(tmp_path)
    expected, files = {f"serve_{path}": rows for path, rows in of_tables.items()}, [*of_tables]
    # One is frozen in part, as in test_frozen_features.py, and one of a class of the document;
    # test_client_models.py has one like the last one.
    counts = (3, 3, 1, 1, 2)
    for number, (model, count) in enumerate(zip(models, counts, strict=True)):
        method = "fedavg" if number == 4 else "pflego"
        with simulation_for(model, method) as simulation:
            (client,) = served_clients(simulation, [1])
            train, labels = clients_for(model).train.of(1)  # Its own may be features.
            for format, suffix in [*SUFFIXES.items()][:count]:
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
    named = [found[f"names_{path}"] for path in files[len(of_tables) :] if f"names_{path}" in found]
    assert named and all(names.tolist() == [b"2", b"5"] for names in named)
    for key, wanted in expected.items():
        np.testing.assert_allclose(found[key], wanted, rtol=0, atol=1e-5, err_msg=key)
    losses = [found[f"losses_{path}"] for path in of_tables if f"losses_{path}" in found]
    assert losses and all(after < before for before, after in losses)
    moved = [
        np.abs(wanted - expected[key.replace("after_", "serve_")]).max()
        for key, wanted in expected.items()
        if key.startswith("after_")
    ]
    assert min(moved) > 1e-4  # ten times what files may differ by


@pytest.mark.thorough
@pytest.mark.lines("tff", "current")
@pytest.mark.parametrize(
    ("then", "method", "arguments", "message"),
    [
        ([layers.Lambda(lambda x: 2.0 * x), layers.Flatten(), layers.Dense(3)], "pflego",
         {"format": "keras"}, r"no Lambda layer .* lambda.* is one. Write"),
        ([layers.GRU(4)], "fedavg", {"format": "tflite"},
         "for TFLite.*fedavg trains the whole.*`learning=False`"),
        pytest.param(
            [layers.GRU(4)],
            "pflego",
            {"format": "tflite"},
            r"`learning` must be False for TFLite .* 2\.20 on",
            marks=pytest.mark.skipif(not LACKS_OPERATIONS, reason="the interpreter has them"),
        ),
    ],
    ids=["Lambda", "gradient of a loop", "interpreter"],
)  # fmt: skip
def test_what_cannot_leave_is_refused_before_any_work(then, method, arguments, message, tmp_path):
    model = pfl.SplitModel(body_of_tokens(*then), 2)
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
        with pytest.raises(ValueError, match=r"operations that TFLite has.*Choose `format='saved"):
            pfl.export_clients(simulation, [1], tmp_path / "models", "tflite", learning=False)
        with pytest.raises(ValueError, match=r"(?s)that Keras finds .*register_keras_serializable"):
            pfl.export_clients(simulation, [1], tmp_path / "models", "keras")
    assert not list(tmp_path.iterdir())
