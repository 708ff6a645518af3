"""Exported models of clients of a table take its columns, with TensorFlow alone."""

import functools
import itertools
import json

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.data.tables import schools
from tests.serving.test_client_models import simulation_of
from tests.serving.test_exporting import LACKS_OPERATIONS
from tf_pflego.serving.exporting import served_clients

# Keras and TFLite add up in another order.
TOLERANCE = 1e-5


def trained(clients, body=None):
    body = body or pfl.mlp(clients.example_shape, 0, units=6)
    simulation = simulation_of(body, clients, num_classes=2, local_steps=2)
    simulation.run_round()
    return simulation


# Columns as they are in a table and as a model takes them; the last row has what no training row
# has, and a number is missing in the second.
MIXED = {
    "Sex": ["Female", "Male", "unknown"],
    "family income, $": [0.5, float("nan"), -2.0],
    "year": [1990, 2001, 77],
}
ITEM = {"year": [1990, 2001, 77]}
TEXT = {"essay": ["A Good, GOOD school!", "", "never\tgood; école"], "SES": [0.5, 1.0, -2.0]}


pytestmark = pytest.mark.lines("tff", "current")


@functools.cache
def simulation_with(kind):
    """A simulation on a table with columns of all kinds (mixed), or of one with codes (item)."""
    columns = schools.columns()
    columns["family income, $"] = columns.pop("SES")
    table, common = pa.table(columns), {"client_column": "School", "label_column": "Passed"}
    if kind == "item":
        clients = pfl.from_table(table, feature_columns=["year"], encoding="codes", **common)
        body = [tf.keras.Input((1,), dtype="int32"), tf.keras.layers.Embedding(60, 3)]
        return trained(clients, tf.keras.Sequential([*body, tf.keras.layers.Flatten()]))
    if kind == "text":
        words = np.random.default_rng(1).choice(["a good", "Bad", "school", "École"], (45, 3))
        table = table.append_column("essay", [list(map(" ".join, words))])
        table = table.append_column("SES", table["family income, $"])
        return trained(
            pfl.from_table(table, feature_columns=list(TEXT), text_columns=["essay"], **common)
        )
    columns = {"feature_columns": list(MIXED), "category_columns": ["year"], "missing": "mean"}
    return trained(pfl.from_table(table, **columns, **common))


def expected_of(simulation, rows):
    """What the run predicts for rows of a table."""
    (client,) = served_clients(simulation, [simulation.data.client_names.index("1296")])
    examples = simulation.data.preprocessing.examples(pa.table(rows))
    return tf.nn.softmax(client.logits(examples)).numpy()


def exported(directory):
    """Exports a client's model in each format, and returns what its files must predict.

    In test_bodies_leave.py a program that has TensorFlow alone reads them.
    """
    expected = {}
    formats = ("savedmodel", "keras", *(() if LACKS_OPERATIONS else ("tflite",)))
    kinds = {"mixed": MIXED, "item": ITEM, "text": TEXT}
    for format, (kind, rows) in itertools.product(formats, kinds.items()):
        if (format, kind) == ("tflite", "text"):
            continue
        simulation, place = simulation_with(kind), directory / f"{kind}_{format}"
        (entry,) = pfl.export_clients(simulation, ["1296"], place, format)
        assert entry["largest_difference"] < TOLERANCE
        assert entry["test_accuracy"] == entry["test_accuracy_of_run"]
        inputs = json.loads((place / "clients.json").read_text())["inputs"]
        assert list(inputs.values()) == list(rows)
        assert all(name.isidentifier() for name in inputs)
        columns = {name: np.array(rows[column]) for name, column in inputs.items()}
        columns = {k: v.astype("f4") if v.dtype.kind == "f" else v for k, v in columns.items()}
        kept = {f"{part}/{k}": v for part in ("test", "train") for k, v in columns.items()}
        np.savez(place / "data.npz", labels=np.int32([0, 1, 0]), **kept)
        expected[f"{place / entry['file']}"] = expected_of(simulation, rows)
    return expected


def test_tflite_compares_text_by_its_own_operations(tmp_path):
    """Also where the interpreter has no operations of TensorFlow."""
    how = {"format": "tflite", "learning": False}
    (entry,) = pfl.export_clients(simulation_with("mixed"), ["1296"], tmp_path / "models", **how)
    assert entry["largest_difference"] < TOLERANCE


def test_tflite_cannot_split_a_text(tmp_path):
    with pytest.raises(ValueError, match="`format` must be savedmodel or keras for the text col"):
        pfl.export_clients(simulation_with("text"), ["1296"], tmp_path / "models", "tflite")


def test_a_clients_keras_model_takes_the_columns():
    year = tf.constant([1990], tf.int64)
    mixed = {"Sex": tf.constant(["Female"]), "family_income___": tf.constant([0.5]), "year": year}
    for kind, columns, rows in (("mixed", MIXED, mixed), ("item", ITEM, {"year": year})):
        simulation = simulation_with(kind)
        served = simulation.client_model("1296")(rows).numpy()
        expected = expected_of(simulation, {name: rows[:1] for name, rows in columns.items()})
        np.testing.assert_allclose(served, expected, atol=TOLERANCE)


@pytest.mark.thorough
def test_columns_far_from_zero_are_float64(tmp_path):
    second = 1_700_000_000 + np.arange(45)
    clients = pfl.from_table(schools.table(second=second), "School", "Passed", ["second", "SES"])
    simulation = trained(clients)
    for format in ("savedmodel", "keras"):
        (entry,) = pfl.export_clients(simulation, ["1296"], tmp_path / format, format)
        assert entry["largest_difference"] < TOLERANCE
    second = 1_700_000_000 + np.arange(0, 60, 20)
    rows = {"second": second, "SES": [0.5] * 3}
    (client,) = served_clients(simulation, [simulation.data.client_names.index("1296")])
    raw = client.raw(simulation.data.preprocessing.examples(pa.table(rows)))
    np.testing.assert_allclose(raw["second"], second, atol=1e-3)
    with pytest.raises(ValueError, match="the column 'second' must be nearer to 0 for TFLite"):
        pfl.export_clients(simulation, ["1296"], tmp_path / "lite", "tflite")


def test_names_of_inputs_differ():
    table = schools.table(steps=np.arange(45.0), **{"S E": np.arange(45.0), "S.E": np.arange(45.0)})
    features = ["steps", "S E", "S.E", "SES"]
    clients = pfl.from_table(table, "School", "Passed", features)
    body = pfl.mlp(clients.example_shape, 0, units=6)
    model = simulation_of(body, clients, num_classes=2).client_model("1224")
    assert set(model.input) == {"steps_", "S_E", "S_E_", "SES"}
