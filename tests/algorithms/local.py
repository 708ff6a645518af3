"""Local: each client trains a network of its own, and nothing is sent."""

from typing import NamedTuple

from tf_pflego.core import optimizers
from tf_pflego.core.algorithm import Algorithm, ClientResult, Exchange, Served, Weights
from tf_pflego.core.local_training import minimize


class ClientState(NamedTuple):
    """What client i keeps."""

    weights: Weights


def build_local(model, rate=0.1, momentum=0.9, epochs=2, batch_size=2):
    """Returns Local for `model`."""
    optimizer = optimizers.sgd(rate, momentum)

    def client_update(message, state, client, round_):
        own = minimize(model.loss, state.weights, client, optimizer, epochs, batch_size)
        return ClientResult(own, ClientState(own))

    def init_client(server, seed, num_classes):
        return ClientState(model.initial_weights())

    return Algorithm(
        name="local",
        model=model,
        init_server=lambda federation: (),
        init_client=init_client,
        exchanges=(
            Exchange(lambda server, round_: (), client_update, lambda server, uploads, round_: ()),
        ),
        served={"personalized": Served(lambda server, client: client.weights, model.predict)},
    )
