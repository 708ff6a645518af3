"""What a simulation refuses before it trains, or in its first round."""

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


@pytest.fixture(name="eagerly")
def eagerly_fixture():
    yield lambda: tf.config.run_functions_eagerly(True)
    tf.config.run_functions_eagerly(False)


def test_functions_that_are_not_traced_are_refused(tiny_model, tiny_clients, eagerly):
    algorithm = pfl.build_algorithm("pflego", tiny_model)
    given = algorithm, tiny_clients, pfl.Participation(tiny_clients.num_clients, 2), "in_process"
    remedy = r"Call `tf\.config\.run_functions_eagerly\(False\)` first"
    with pfl.Simulation(*given) as simulation:
        eagerly()
        with pytest.raises(RuntimeError, match=remedy):
            simulation.run_round()
        with pytest.raises(RuntimeError, match=remedy):
            pfl.Simulation(*given)
        tf.config.run_functions_eagerly(False)
        assert simulation.run_round()["round"] == 1


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
