"""A Keras file of others runs no code, reads no other file and takes no more memory than it has."""

import io
import json
import pathlib
import zipfile

import h5py
import numpy as np
import pytest
import tensorflow as tf

from tests.comparison import assert_identical
from tf_pflego.models import networks

pytestmark = pytest.mark.lines("tff", "current")
SHAPE = (8, 8, 1)
WEIGHTS, CONFIG = "model.weights.h5", "config.json"


def body(units=5):
    """Returns a network with an operation between its layers."""
    inputs = tf.keras.Input(SHAPE)
    x = tf.keras.layers.Dense(units, "relu")(tf.keras.layers.Flatten()(inputs))
    return tf.keras.Model(inputs, x + 2.0 * x)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """The members of a file that loads."""
    path = tmp_path_factory.mktemp("body") / "body.keras"
    body().save(path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def written(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return str(path)


class Evil:
    """Makes a file when it is read by pickle."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.touch, (self.path,)


def with_pickle(parts, place):
    file = io.BytesIO()
    np.savez(file, root=np.array([Evil(place / "ran")], object))
    return {name: parts[name] for name in parts if name != WEIGHTS} | {
        "model.weights.npz": file.getvalue()
    }


def with_layer(**about):
    def changed(parts, place):
        config = json.loads(parts[CONFIG])
        layer = {"module": "keras.layers", "registered_name": None, "config": {}} | about
        config["config"]["layers"].append(layer)
        return parts | {CONFIG: json.dumps(config).replace("PLACE", str(place))}

    return changed


def with_units(parts, _):
    return parts | {CONFIG: parts[CONFIG].replace(b'"units": 5', b'"units": 200000000')}


def with_weights(change):
    """The weights of the first layer are replaced by what `change` makes of another file's."""

    def changed(parts, place):
        secret, file = np.arange(320, dtype=np.float32).reshape(64, 5), io.BytesIO(parts[WEIGHTS])
        secret.tofile(place / "secret.bin")
        with h5py.File(place / "other.h5", "w") as other:
            other["secret"] = secret
        with h5py.File(file, "r+") as weights:
            names = []
            weights.visititems(
                lambda name, one: (
                    names.append(name) if getattr(one, "shape", None) == secret.shape else None
                )
            )
            del weights[names[0]]
            change(weights, names[0], place)
        return parts | {WEIGHTS: file.getvalue()}

    return changed


def external(weights, name, place):
    weights.create_dataset(name, (64, 5), "f4", external=[(str(place / "secret.bin"), 0, 1280)])


def link(weights, name, place):
    weights[name] = h5py.ExternalLink(str(place / "other.h5"), "secret")


def wide(weights, name, _):
    weights.create_dataset(name, (10**5, 10**5), "f4", chunks=(1000, 1000), compression="gzip")


READS = {"class_name": "StringLookup", "config": {"vocabulary": "PLACE/words.txt"}}
CALLS = {"class_name": "TFOpLambda", "config": {"function": "io.read_file"}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_pickle, "only the members config.json, metadata.json, model.weights.h5. A"),
        (lambda parts, _: parts | {"assets/words.txt": b"a"}, "must have only the members"),
        (with_layer(class_name="Lambda"), "it names Lambda, which can run code"),
        (with_layer(class_name="run", module="subprocess"), "subprocess.run, which is neither"),
        (with_layer(class_name="load_model", module="keras.saving"), "which is neither Keras' nor"),
        (with_layer(**READS), "must contain their vocabulary; no file is read"),
        (with_layer(**CALLS), "operation io.read_file is not one of those between layers"),
        (with_units, "its configuration has more weights than the file"),
        (with_weights(external), "must be numbers in the file itself"),
        (with_weights(link), "which is not followed"),
        (with_weights(wide), "have 40000000020 bytes; at most"),
    ],
)
def test_what_could_run_or_read_is_refused(change, message, parts, tmp_path):
    (tmp_path / "words.txt").write_text("alpha\n", encoding="utf-8")
    held = sorted(tmp_path.iterdir())
    path = written(tmp_path / "evil.keras", change(parts, tmp_path))
    with pytest.raises(ValueError, match=message):
        networks.build(path, SHAPE, 0)
    made = {"evil.keras", "secret.bin", "other.h5"}
    assert [one for one in sorted(tmp_path.iterdir()) if one.name not in made] == held


def test_the_network_is_in_the_bytes_of_the_digest(parts, tmp_path):
    path = written(tmp_path / "body.keras", parts)
    first = networks.build(path, SHAPE, 0).get_weights()
    networks.digest(path)
    compiled = body(7)
    compiled.compile("adam", "mse")
    compiled.save(path)
    assert_identical(networks.build(path, SHAPE, 0).get_weights(), first)
    assert networks.build(path, SHAPE, 0).output_shape == (None, 7)


def test_members_are_packed_by_deflate_alone_which_is_read_within_limits(parts, tmp_path):
    networks.build(written(tmp_path / "a.keras", parts, zipfile.ZIP_DEFLATED), SHAPE, 0)
    with pytest.raises(ValueError, match="a member must be stored or deflated"):
        networks.build(written(tmp_path / "b.keras", parts, zipfile.ZIP_BZIP2), SHAPE, 0)
