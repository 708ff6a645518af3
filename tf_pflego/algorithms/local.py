"""Local: each client trains its own network without communication.

The baseline that any collaboration must beat. Learnt: a network theta_i per client.

A round:
  1. Client i takes local steps of rate beta on its own f_i, from its theta_i, and keeps the result.

Served: theta_i as the client last trained it. Client i keeps theta_i, and the server keeps nothing.

  paper     here                    shape
  theta_i   PersonalState.weights   body and classifier
  beta      client_learning_rate

Differences from the paper: none, since PGFed's authors only name it. Participants are sampled as
for every other method, and clients train as often.
"""

from typing import NamedTuple

from tf_pflego.core.algorithm import Algorithm, ClientResult, Weights
from tf_pflego.core.local_training import MiniBatches
from tf_pflego.models.split_model import SplitModel


class PersonalState(NamedTuple):
    """The state of client i if it keeps its own whole network."""

    weights: Weights  # theta_i


def build_local(model: SplitModel, config: MiniBatches) -> Algorithm:
    """Returns Local for `model`."""

    def client_update(message, state, client, round_):
        weights = config.minimize(model.loss, state.weights, client)
        return ClientResult(weights, PersonalState(weights))

    return Algorithm.with_one_exchange(
        "local",
        model,
        init_server=lambda federation: (),
        init_client=lambda server, seed, classes: PersonalState(model.initial_weights()),
        broadcast=lambda server, round_: (),
        client_update=client_update,
        server_update=lambda server, uploads, round_: (),
        served={"personalized": lambda server, client: client.weights},
    )
