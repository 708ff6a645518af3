"""A run whose network is a Keras file of the user's, named by its path."""

import os

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.starts import assert_refused, in_this_process
from tf_pflego.runs import loading
from tf_pflego.runs.run_directory import RunDirectoryError

SETTINGS = {
    "dataset": "digits",
    "engine": "in_process",
    "num_clients": 5,
    "clients_per_round": 5,
    "personalization": "high",
}


def body(seed):
    """Returns a network whose first layer is frozen."""
    weights = [tf.keras.initializers.GlorotUniform(seed + number) for number in range(2)]
    frozen = tf.keras.layers.Dense(6, "tanh", kernel_initializer=weights[0])
    frozen.trainable = False
    return tf.keras.Sequential(
        [
            tf.keras.Input([8, 8, 1]),
            tf.keras.layers.Flatten(),
            frozen,
            tf.keras.layers.Dense(4, "tanh", kernel_initializer=weights[1]),
        ]
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory, digits_dir):
    """The directory of a run of two rounds, beside body.keras and other.keras."""
    place = tmp_path_factory.mktemp("network")
    body(1).save(place / "body.keras")
    body(2).save(place / "other.keras")
    _trained(place, digits_dir, num_rounds=2)
    return place


def _trained(place, digits_dir, **settings):
    settings = {"network": str(place / "body.keras"), "output_dir": str(place / "run")} | settings
    config = pfl.RunConfig(**SETTINGS | settings, data_dir=str(digits_dir))
    return pfl.run(config, local_steps=3)


def test_it_learns_what_a_run_with_that_model_does(run, digits_dir):
    config = pfl.RunConfig(**SETTINGS, data_dir=str(digits_dir), num_rounds=2)
    clients = loading.load_clients(config)
    model = pfl.SplitModel(body(1), int(clients.num_classes.max()))
    with pfl.build_simulation(config, clients, model, local_steps=3) as expected:
        for _ in range(2):
            expected.run_round()
        network = str(run / "body.keras")
        with pfl.load_run(run / "run", digits_dir, network=network) as stored:
            with stored.simulation() as got:
                states = expected.server_state.theta, got.server_state.theta
                for one, other in zip(*states, strict=True):
                    np.testing.assert_array_equal(one, other)


@pytest.mark.thorough
def test_it_is_read_and_goes_on_with_the_same_content_alone(run, digits_dir):
    other = {"network": str(run / "other.keras")}
    for given, message in (({}, "must be given .* name"), (other, "must .* another content")):
        with pfl.load_run(run / "run", digits_dir, **given) as stored:
            with pytest.raises(RunDirectoryError, match=f"`network` {message}"):
                stored.simulation()
    path, more = run / "body.keras", {"num_rounds": 3, "resume": True}
    kept = path.read_bytes()
    path.write_bytes((run / "other.keras").read_bytes())
    with pytest.raises(RunDirectoryError, match="network_digest"):
        _trained(run, digits_dir, **more)
    path.write_bytes(kept)
    assert _trained(run, digits_dir, **more)["round"] == 3


@pytest.mark.thorough
def test_an_audit_loads_it_only_where_the_user_names_it(run, digits_dir, tmp_path, capsys):
    private = {"dp_noise_multiplier": 1.0, "clip_norm": 1.0, "output_dir": str(tmp_path / "run")}
    _trained(run, digits_dir, num_rounds=1, participation="binomial", **private)
    flags = [f"--run={tmp_path / 'run'}", f"--data_dir={digits_dir}", "--canaries=1"]
    assert_refused(in_this_process(["audit", *flags], capsys), "--network must be given")
    named = in_this_process(["audit", *flags, f"--network={run / 'body.keras'}"], capsys)
    assert "looked inside" in named.stdout


def write_code(path):
    inputs = tf.keras.Input([8, 8, 1])
    flat = tf.keras.layers.Flatten()(inputs)
    output = tf.keras.layers.Lambda(lambda x: x[:, :4])(flat)
    tf.keras.Model(inputs, tf.keras.layers.Dense(2)(output)).save(path)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: None, "No such file or directory"),
        (os.mkfifo, "no regular file"),
        (lambda path: path.write_bytes(b"no archive"), "can load without other code"),
        (write_code, "can load without other code"),
    ],
    ids=["nothing", "a pipe", "no archive", "code"],
)
def test_no_network_is_refused(tmp_path, digits_dir, write, message):
    write(tmp_path / "body.keras")
    with pytest.raises(ValueError, match=f"`network` must be a file .*{message}"):
        _trained(tmp_path, digits_dir, num_rounds=1)
    assert not (tmp_path / "run").exists()
