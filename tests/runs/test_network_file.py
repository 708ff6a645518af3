"""A run whose network is a Keras file of the user's, named by its path."""

import os

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tf_pflego.runs import build
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
    clients = build.load_clients(config)
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


@pytest.mark.parametrize(
    ("network", "message"),
    [(None, "`network` must be given .* names it"), ("other.keras", "has another content")],
)
def test_it_is_read_only_with_the_file_that_it_had(run, digits_dir, network, message):
    named = network and str(run / network)
    with (
        pfl.load_run(run / "run", digits_dir, network=named) as stored,
        pytest.raises(RunDirectoryError, match=message),
    ):
        stored.simulation()


def test_it_goes_on_with_the_same_content_alone(run, digits_dir):
    with pytest.raises(RunDirectoryError, match="network_digest"):
        (run / "moved").mkdir()
        (run / "other.keras").rename(run / "moved" / "body.keras")
        kept = (run / "body.keras").rename(run / "kept.keras")
        (run / "moved" / "body.keras").rename(run / "body.keras")
        try:
            _trained(run, digits_dir, num_rounds=3, resume=True)
        finally:
            (run / "body.keras").rename(run / "other.keras")
            kept.rename(run / "body.keras")
    assert _trained(run, digits_dir, num_rounds=3, resume=True)["round"] == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory"),
        ("a pipe", "no regular file"),
        (b"no archive", "can load, without code of its own"),
    ],
)
def test_no_network_is_refused(tmp_path, digits_dir, content, message):
    path = tmp_path / "body.keras"
    if content == "a pipe":
        os.mkfifo(path)
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=f"`network` must be a file .*{message}"):
        _trained(tmp_path, digits_dir, num_rounds=1)
    assert not (tmp_path / "run").exists()


def test_code_in_a_file_is_not_run(tmp_path, digits_dir):
    inputs = tf.keras.Input([8, 8, 1])
    flat = tf.keras.layers.Flatten()(inputs)
    output = tf.keras.layers.Lambda(lambda x: x[:, :4])(flat)
    tf.keras.Model(inputs, tf.keras.layers.Dense(2)(output)).save(tmp_path / "body.keras")
    with pytest.raises(ValueError, match=r"`network` must be a file .*without code of its own"):
        _trained(tmp_path, digits_dir, num_rounds=1)
