"""LG-FedAvg: each client keeps its body, and all share the head."""

from typing import NamedTuple

from tf_pflego.algorithms.averaging import SharedState, broadcast, take_mean, weighted
from tf_pflego.core import optimizers
from tf_pflego.core.algorithm import Algorithm, ClientResult, Exchange, Served, Weights
from tf_pflego.core.local_training import minimize


class ClientState(NamedTuple):
    """What client i keeps."""

    theta: list


def build_lg_fedavg(model, rate=0.1, momentum=0.9, epochs=2, batch_size=2):
    """Returns LG-FedAvg for `model`."""
    model = model.with_shared_classifier()
    optimizer = optimizers.sgd(rate, momentum)

    def client_update(head, state, client, round_):
        start = Weights(state.theta, head)
        trained = minimize(model.loss, start, client, optimizer, epochs, batch_size)
        return ClientResult(
            trained, ClientState(trained.theta), summed=weighted(trained.head, client)
        )

    def init_client(server, seed, num_classes):
        return ClientState(model.initial_weights().theta)

    def own_body_with_shared_head(server, client):
        return Weights(client.theta, server.weights)

    return Algorithm(
        name="lg_fedavg",
        model=model,
        init_server=lambda federation: SharedState(model.initial_weights().head),
        init_client=init_client,
        exchanges=(Exchange(broadcast, client_update, take_mean),),
        served={"personalized": Served(own_body_with_shared_head, model.predict)},
    )
