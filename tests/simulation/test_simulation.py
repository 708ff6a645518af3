"""What a simulation refuses before it trains, or in its first round."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tf_pflego.core.algorithm import Algorithm, ClientResult, Exchange, Served


def clients_of(examples, labels=(0, 1)):
    pair = [(np.asarray(examples), np.asarray(labels))] * 2
    return {"data": pfl.from_arrays(pair, pair)}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (clients_of(np.zeros([2, 3])), r"float32 of shape \(4,\); got float32 of shape \(3,\)"),
        (clients_of(np.zeros([2, 4], int)), r"float32 of shape \(4,\); got int32 of shape \(4,\)"),
        (clients_of(np.zeros([4, 4]), range(4)), "a head for 4 classes, the most that a client ha"),
        ({"participation": pfl.Participation(4, 1)}, "must be the 2 clients of `data`; got 4"),
        ({"engine": 3}, r"`engine` must be of the class RayOptions; got int\. Name"),
    ],
    ids=["shape", "dtype", "classes", "federation", "engine"],
)
def test_what_does_not_fit_is_refused(other, message, tiny_model):
    fits = clients_of(np.zeros([2, 4])) | {"participation": pfl.Participation(2, 1)}
    with pytest.raises((TypeError, ValueError), match=message):
        pfl.Simulation(pfl.build_algorithm("pflego", tiny_model), **fits | other)


@contextlib.contextmanager
def eagerly():
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


WAYS = {
    r"Call `tf\.config\.run_functions_eagerly\(False\)` first": eagerly,
    "with eager execution on, outside of .* Leave it on": lambda: tf.Graph().as_default(),
    "outside of the scope of a `tf.distribute` strategy. Leave the scope": lambda: (
        tf.distribute.MirroredStrategy(["/cpu:0"]).scope()
    ),
}


def test_tensorflow_that_runs_otherwise_is_refused(tiny_model, tiny_clients):
    def built(model):
        return pfl.build_algorithm("fedavg", model, fine_tuning_steps=1)

    drawn = pfl.Participation(tiny_clients.num_clients, 2)
    with pfl.Simulation(built(tiny_model), tiny_clients, drawn, "in_process") as simulation:
        new = pfl.NewClients(simulation, tiny_clients, 1, 0.1)
        body = tiny_model.body.clone(tiny_model.initial_theta)
        doors = {
            "mlp": lambda: pfl.mlp((4,), seed=0),
            "SplitModel": lambda: pfl.SplitModel(body, 3),
            "build_algorithm": lambda: built(tiny_model),
            "Simulation": lambda: pfl.Simulation(simulation.algorithm, tiny_clients, drawn),
            "run_round": simulation.run_round,
            "predict": simulation.predict,
            "client_model": lambda: simulation.client_model(0),
            "NewClients": lambda: pfl.NewClients(simulation, tiny_clients, 1, 0.1),
            "curve": lambda: new.curve([1], 1),
        }
        for remedy, way in WAYS.items():
            for door in doors.values():
                with way(), pytest.raises(RuntimeError, match=remedy):
                    door()
        assert simulation.run_round()["round"] == 1


def test_a_body_of_a_strategy_and_a_tensor_of_a_graph_are_refused():
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        body = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="`body` must be built outside of the scope of"):
        pfl.SplitModel(body, 3)
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match="with eager execution on"):
        pfl.from_arrays([(tf.ones([2, 3]), [0, 1])], [([[1.0] * 3], [0])])


def bare(state):
    return state["weights"]


def short(state):
    """A head of one row; written into rows for larger heads, it would be broadcast."""
    return {"weights": state["weights"]._replace(head=state["weights"].head[:1])}


def flat(state):
    return tf.nest.map_structure(lambda leaf: tf.reshape(leaf, [-1]), state)


def double(state):
    return tf.nest.map_structure(lambda leaf: tf.cast(leaf, tf.float64), state)


@pytest.mark.parametrize(
    ("side", "changed", "message"),
    [
        ("server", bare, r"dict with .* weights/theta/0, .*; got Weights with .* theta/0, "),
        ("server", double, r"weights/theta/0 to be float32 of shape .*; got float64 of shape "),
        ("server", flat, r"weights/theta/0 .* shape \(None, None\); got .* of shape \(20,\)\. "),
        ("client", bare, r"dict with .* weights/theta/0, .*; got Weights with .* theta/0, "),
        ("client", double, r"weights/theta/0 to be float32 of shape .*; got float64 of shape "),
        ("client", short, r"weights/head .* of shape \(3, 6\); got .* of shape \(1, 6\)\. "),
    ],
)
def test_a_method_whose_new_states_are_unlike_its_first_is_refused(
    side, changed, message, tiny_model, tiny_clients
):
    model = tiny_model.with_shared_classifier()

    def client_update(message, state, client, round_):
        new_state = changed(state) if side == "client" else state
        return ClientResult(message["weights"], new_state, summed=message)

    def server_update(server, uploads, round_):
        return changed(server) if side == "server" else server

    method = Algorithm(
        name="unlike",
        model=model,
        init_server=lambda federation: {"weights": model.initial_weights()},
        init_client=lambda server, seed, classes: server,
        exchanges=(Exchange(lambda server, round_: server, client_update, server_update),),
        served={"generic": Served(lambda server, client: server["weights"], model.predict)},
    )
    must = f"`{side}_update` must return a state like the one from `init_{side}`: expected "
    drawn = pfl.Participation(3, 2)
    with pfl.Simulation(method, tiny_clients, drawn, "in_process") as simulation:
        with pytest.raises(ValueError, match=f"^{must}{message}"):
            simulation.run_round()
