"""A method whose new states are unlike its first ones is refused in its first round."""

import pytest
import tensorflow as tf

from tf_pflego.core.algorithm import Algorithm, ClientResult, Exchange, Served
from tf_pflego.core.participation import Participation
from tf_pflego.simulation.simulation import Simulation


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
def test_a_state_unlike_the_first_is_refused(side, changed, message, tiny_model, tiny_clients):
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
    with Simulation(method, tiny_clients, Participation(3, 2), "in_process") as simulation:
        with pytest.raises(ValueError, match=f"^{must}{message}"):
            simulation.run_round()
