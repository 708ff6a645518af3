"""A bundle serves mixed clients as the run does, by TensorFlow alone and by `PersonalModels`."""

import json
import pathlib
import sys

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests import starts
from tests.methods import each_of
from tests.serving.test_client_models import simulation_of
from tests.serving.test_exporting import learn_on, learnt
from tests.serving.test_raw_columns import MIXED, simulation_with
from tf_pflego.serving.exporting import served_clients

COUNT, SIZE = 12, 5
METHODS = "pflego", "fedavg", "pflego_shared_head", "fedrod"
ALONE = """
import sys, numpy as np, tensorflow as tf
functions = tf.saved_model.load(sys.argv[1]).signatures
data = np.load(sys.argv[2])
served = functions["serve"](client=tf.constant(data["client"]), examples=data["examples"])
names = functions["class_names"](client=tf.constant(data["client"]))["class_names"]
assert not any(name.startswith("tf_pflego") for name in sys.modules)
found = {name: output.numpy() for name, output in served.items()}
np.savez(sys.argv[3], names=names.numpy().astype(bytes), **found)
"""


def clients_of(count=COUNT, **about):
    """Clients that have two or three of four classes, in their own label spaces."""
    rng = np.random.default_rng(0)
    arrays = []
    for client in range(count):
        labels = rng.permutation(4)[: 2 + client % 2]
        arrays.append((rng.normal(size=(8, SIZE)), np.resize(labels, 8)))
    about = {"client_names": [f"Süd {k}" for k in range(count)]} | about
    return pfl.from_arrays(arrays, arrays, num_classes=4, **about)


def trained(method="pflego", clients=None, classes=3, **about):
    clients = clients or clients_of()
    simulation = simulation_of(pfl.mlp((SIZE,), 0, units=6), clients, method, classes, **about)
    simulation.run_round()
    return simulation


def rows_of(simulation, rng, count=30):
    """Returns the clients of rows, one of which is unknown, examples, and what the run predicts."""
    data = simulation.data
    ids = rng.integers(0, data.num_clients, count)
    examples = rng.normal(size=(count, SIZE)).astype(np.float32)
    expected = np.zeros((count, simulation.algorithm.model.num_classes))
    for row, client in enumerate(served_clients(simulation, ids.tolist())):
        found = client.model.task.predicted(client.logits(examples[row : row + 1]))[0]
        expected[row, : len(found)] = found
    return [data.name_of(number) for number in ids], examples, expected


@pytest.mark.thorough
def test_tensorflow_alone_serves_mixed_clients(tmp_path, caplog):
    """Those of a label space of their own, whose new clients have no classes, get none."""
    with trained() as simulation:
        content = pfl.export_bundle(simulation, "all", tmp_path / "bundle")
        names, examples, expected = rows_of(simulation, np.random.default_rng(1))
        classes = [simulation.data.class_names_of(int(name.split()[1])) for name in names]
    assert "unknown clients get no predictions" in caplog.text
    assert content["clients"] == {"count": COUNT}
    names.append("Nord")
    np.savez(
        tmp_path / "data.npz",
        client=np.array([name.encode() for name in names]),
        examples=np.concatenate([examples, examples[:1]]),
    )
    paths = [str(tmp_path / name) for name in ("bundle/model", "data.npz", "found.npz")]
    result = starts.finished([sys.executable, "-c", ALONE, *paths])
    assert result.returncode == 0, result.stderr
    found = np.load(tmp_path / "found.npz")
    np.testing.assert_array_equal(found["known"], [*[True] * 30, False])
    np.testing.assert_allclose(found["probabilities"][:-1], expected, rtol=1e-5, atol=1e-6)
    assert np.isnan(found["probabilities"][-1]).all()
    for row, own in zip(found["names"], classes, strict=False):
        assert [one.decode() for one in row if one] == list(own)

    models = pfl.PersonalModels(tmp_path / "bundle")
    predicted, known = models.predict(names, np.concatenate([examples, examples[:1]]))
    np.testing.assert_array_equal(predicted, found["probabilities"])
    np.testing.assert_array_equal(known, found["known"])
    assert models.classes_of(names[0])[: len(classes[0])] == classes[0]


@pytest.mark.parametrize("method", each_of(METHODS, ("pflego_shared_head",)))
def test_new_clients_get_what_the_run_serves_them(method, tmp_path):
    clients = clients_of(label_space="global")
    with trained(method, clients, 4) as simulation:
        pfl.export_bundle(simulation, "all", tmp_path / "bundle", learning=False)
        names, examples, expected = rows_of(simulation, np.random.default_rng(2))
        (new,) = pfl.NewClients(simulation, clients.part(0, 1), steps=0, learning_rate=0.1).learnt()
    models = pfl.PersonalModels(tmp_path / "bundle")
    found, _ = models.predict(names, examples)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    found, known = models.predict(["who"] * len(examples), examples)
    assert not known.any()
    np.testing.assert_allclose(found, tf.nn.softmax(new.logits(examples)), rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_columns_halves_and_learning(tmp_path):
    simulation = simulation_with("mixed")
    content = pfl.export_bundle(simulation, ["1296", "1224"], tmp_path / "half", heads="float16")
    assert np.load(tmp_path / "half" / "heads.npy").dtype == np.float16
    models, rows = pfl.PersonalModels(tmp_path / "half"), MIXED | {"Sex": ["Female", "Male", None]}
    found, _ = models.predict(["1296", "1224", "1296"], rows)
    examples = simulation.data.preprocessing.examples(pa.table(MIXED))
    for client in served_clients(simulation, map(simulation.data.client_names.index, ("1296",))):
        expected = tf.nn.softmax(client.logits(examples)).numpy()
        np.testing.assert_allclose(found[[0, 2]], expected[[0, 2]], atol=2e-3)
    assert list(content["inputs"].values()) == list(MIXED)
    with trained() as simulation:
        pfl.export_bundle(simulation, [3], tmp_path / "one")
        (client,) = served_clients(simulation, [3])
        examples, labels = simulation.data.train.of(3)
    functions = tf.saved_model.load(str(tmp_path / "one" / "model")).signatures
    about = {"head": client.weights.head, "classes": client.classes}
    found = learn_on(functions, examples, labels, 15, 0.0, **about)["head"]
    expected = learnt(client, examples, labels, rate=0.0).head
    np.testing.assert_allclose(found, expected, atol=1e-4)


def as_rest(signature, request):
    """Calls a signature as the REST interface of TensorFlow Serving does.

    Rows have an object each in `instances`, and columns a list of each input in `inputs`.
    """
    body = json.loads(request)
    rows = body.get("instances")
    columns = body["inputs"] if rows is None else {k: [row[k] for row in rows] for k in rows[0]}
    specs = signature.structured_input_signature[1]
    assert columns.keys() == specs.keys()
    called = {name: tf.constant(cells, specs[name].dtype) for name, cells in columns.items()}
    outputs = {name: one.numpy().tolist() for name, one in signature(**called).items()}
    if rows is None:
        return json.loads(json.dumps({"outputs": outputs}))["outputs"]
    each = [dict(zip(outputs, cells, strict=True)) for cells in zip(*outputs.values(), strict=True)]
    return json.loads(json.dumps({"predictions": each}))["predictions"]


def test_requests_in_json_by_rows_and_by_columns(tmp_path):
    """All inputs are named, have an unknown number of rows, and are numbers or texts in JSON."""
    pfl.export_bundle(simulation_with("mixed"), "all", tmp_path / "bundle")
    signature = tf.saved_model.load(str(tmp_path / "bundle" / "model")).signatures[
        "serving_default"
    ]
    columns = {"Sex": ["Female", "Male"], "family_income___": [0.5, -2.0], "year": [1990, 77]}
    columns["client"] = ["1296", "none"]
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    of_rows = as_rest(signature, json.dumps({"instances": rows}))
    of_columns = as_rest(signature, json.dumps({"inputs": columns}))
    assert [row["known"] for row in of_rows] == of_columns["known"] == [True, False]
    assert [row["probabilities"] for row in of_rows] == of_columns["probabilities"]
    given = {"Sex": columns["Sex"], "family income, $": [0.5, -2.0], "year": [1990, 77]}
    expected, _ = pfl.PersonalModels(tmp_path / "bundle").predict(columns["client"], given)
    np.testing.assert_allclose(of_columns["probabilities"], expected, rtol=1e-6)


def test_heads_learn_and_are_kept(tmp_path):
    """Also the head of a new client, and never for another body."""
    clients = clients_of(label_space="global")
    with trained("pflego_shared_head", clients, 4) as simulation:
        pfl.export_bundle(simulation, "all", tmp_path / "bundle")
        examples, labels = simulation.data.train.of(3)
        (client,) = served_clients(simulation, [3])
        (new,) = pfl.NewClients(simulation, clients.part(3, 4), steps=15).learnt()
        simulation.run_round()
        pfl.export_bundle(simulation, "all", tmp_path / "later")
    models, later = (pfl.PersonalModels(tmp_path / name) for name in ("bundle", "later"))
    others, _ = models.predict(["Süd 2"] * 8, examples)
    for name, start, kept in (("Süd 3", client.weights, "old"), ("Nord", new.weights, "new")):
        models.personalize(name, examples, labels, steps=15)
        found, known = models.predict([name] * 8, examples)
        assert known.all()
        head = start.head if name == "Nord" else learnt(client, examples, labels, rate=0.0).head
        logits = client.predict(start._replace(head=head), examples, client.classes)
        np.testing.assert_allclose(found, tf.nn.softmax(logits), atol=1e-4)
        models.save(name, tmp_path / f"{kept}.npz")
        again = pfl.PersonalModels(tmp_path / "bundle")
        assert again.restore(tmp_path / f"{kept}.npz") == name
        np.testing.assert_array_equal(again.predict([name] * 8, examples)[0], found)
        with pytest.raises(ValueError, match="must be for the body"):
            later.restore(tmp_path / f"{kept}.npz")
    np.testing.assert_array_equal(models.predict(["Süd 2"] * 8, examples)[0], others)
    with pytest.raises(FileExistsError, match="`path` must be a new file"):
        models.save("Süd 3", tmp_path / "old.npz")
    with pytest.raises(ValueError, match="`path` must be a file from `save`"):
        models.restore(tmp_path / "bundle" / "heads.npy")
    with pytest.raises(ValueError, match=r"`labels` must have the shape \[None\]"):
        models.personalize("Süd 3", examples, labels + 4)
    with pytest.raises(ValueError, match="must give a finite head"):
        models.personalize("Süd 3", np.nan * examples, labels, learning_rate=1.0)


@pytest.mark.thorough
def test_networks_of_their_own_and_other_bodies_are_refused(tmp_path):
    with trained("local") as simulation:
        with pytest.raises(ValueError, match="each client of local has its own network"):
            pfl.export_bundle(simulation, "all", tmp_path / "bundle")
        with pytest.raises(ValueError, match="`heads` must be one of float32, float16"):
            pfl.export_bundle(simulation, "all", tmp_path / "bundle", heads="int8")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="`bundle` must be the directory"):
        pfl.PersonalModels(tmp_path)
    with trained() as simulation:
        pfl.export_bundle(simulation, "all", tmp_path / "bundle")
    about = tmp_path / "bundle" / "clients.json"
    content = json.loads(about.read_text())
    content["digests"]["body"] = "0" * 64
    pathlib.Path(about).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"heads in .* must be for its body"):
        pfl.PersonalModels(tmp_path / "bundle")
