"""A method of a user's own, with a hyper-parameter that no other method has."""

import dataclasses

import tf_pflego as pfl
from tf_pflego.core.settings import HyperParameters, setting


@dataclasses.dataclass(frozen=True)
class MineConfig(HyperParameters):
    """Of a method that is FedAvg under another name."""

    pull: float = setting(0.5, "what it is called with", at_least=0)
    client_learning_rate: float = setting(0.1, "the clients' learning rate", above=0)


def build_mine(model, config: MineConfig):
    """Returns FedAvg with another rate."""
    return pfl.build_algorithm("fedavg", model, client_learning_rate=config.client_learning_rate)
