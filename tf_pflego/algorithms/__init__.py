"""The registry of algorithms: a new one costs its file and one line here."""

from typing import Any

from tf_pflego.algorithms.fedavg import FedAvgConfig, build_fedavg
from tf_pflego.algorithms.fedper import FedPerConfig, build_fedper
from tf_pflego.algorithms.pflego import PflegoConfig, build_pflego
from tf_pflego.core.algorithm import Algorithm
from tf_pflego.models.split import SplitModel

REGISTRY = {
    "pflego": (PflegoConfig, build_pflego),
    "fedper": (FedPerConfig, build_fedper),
    "fedavg": (FedAvgConfig, build_fedavg),
}


def build(name: str, model: SplitModel, **hyper_parameters: Any) -> Algorithm:
    """Returns an algorithm for `model`.

    Args:
      name: One of the keys of `REGISTRY`.
      model: The model that it learns.
      **hyper_parameters: Fields of the algorithm's configuration; the others keep their defaults.

    Raises:
      ValueError: There is no such algorithm, or a hyper-parameter has a value that it does not take.
      TypeError: The algorithm has no such hyper-parameter.
    """
    if name not in REGISTRY:
        raise ValueError(f"`algorithm` must be one of {', '.join(REGISTRY)}; got {name!r}.")
    config, build_algorithm = REGISTRY[name]
    return build_algorithm(model, config(**hyper_parameters))
