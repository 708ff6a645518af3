"""Local: each client trains a network of its own, and nothing is sent.

The baseline that any collaboration must beat. Learnt: a network theta_i per client.

A round:
  1. Client i takes local steps of rate beta on its own f_i, from its theta_i, and keeps the result.

Served: theta_i as the client last trained it. Client i keeps theta_i; the server keeps nothing.

  paper     here                    shape
  theta_i   PersonalState.weights   body and classifier
  beta      client_learning_rate

Differences from the paper: none; PGFed's authors name it only. Participants are drawn as for every
other method, so that clients train as often.
"""

import dataclasses
from typing import NamedTuple

from tf_pflego.core.algorithm import Algorithm, ClientResult, Weights
from tf_pflego.core.local_training import MiniBatches
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class LocalConfig(MiniBatches):
    """Hyper-parameters of Local."""


class PersonalState(NamedTuple):
    """The state that client i keeps if it keeps a whole network of its own."""

    weights: Weights  # theta_i


def build_local(model: SplitModel, config: LocalConfig) -> Algorithm:
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
