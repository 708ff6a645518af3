"""The registry of algorithms: a new algorithm needs its own file and one line here."""

import dataclasses
from collections.abc import Callable
from typing import Any

from tf_pflego.algorithms.apfl import ApflConfig, build_apfl
from tf_pflego.algorithms.ditto import DittoConfig, build_ditto
from tf_pflego.algorithms.fedavg import FedAvgConfig, build_fedavg
from tf_pflego.algorithms.fedbabu import FedBabuConfig, build_fedbabu
from tf_pflego.algorithms.feddane import FedDaneConfig, build_feddane
from tf_pflego.algorithms.feddyn import FedDynConfig, build_feddyn
from tf_pflego.algorithms.fedfomo import FedFomoConfig, build_fedfomo
from tf_pflego.algorithms.fedper import FedPerConfig, build_fedper
from tf_pflego.algorithms.fedprox import FedProxConfig, build_fedprox
from tf_pflego.algorithms.fedrecon import FedReconConfig, build_fedrecon
from tf_pflego.algorithms.fedrep import FedRepConfig, build_fedrep
from tf_pflego.algorithms.fedrod import FedRodConfig, build_fedrod
from tf_pflego.algorithms.lg_fedavg import LgFedAvgConfig, build_lg_fedavg
from tf_pflego.algorithms.local import LocalConfig, build_local
from tf_pflego.algorithms.per_fedavg import PerFedAvgConfig, build_per_fedavg
from tf_pflego.algorithms.pfedme import PFedMeConfig, build_pfedme
from tf_pflego.algorithms.pflego import PflegoConfig, build_pflego
from tf_pflego.algorithms.pflego_shared_head import (
    PflegoSharedHeadConfig,
    build_pflego_shared_head,
)
from tf_pflego.algorithms.pgfed import PGFedConfig, build_pgfed
from tf_pflego.algorithms.pgfed_ce import PGFedCeConfig, build_pgfed_ce
from tf_pflego.algorithms.pgfedmo import PGFedMoConfig, build_pgfedmo
from tf_pflego.core import values
from tf_pflego.core.algorithm import Algorithm
from tf_pflego.models.split import SplitModel

REGISTRY: dict[str, tuple[type, Callable[..., Algorithm]]] = {
    "pflego": (PflegoConfig, build_pflego),
    "pflego_shared_head": (PflegoSharedHeadConfig, build_pflego_shared_head),
    "fedrecon": (FedReconConfig, build_fedrecon),
    "fedper": (FedPerConfig, build_fedper),
    "fedrep": (FedRepConfig, build_fedrep),
    "fedbabu": (FedBabuConfig, build_fedbabu),
    "fedavg": (FedAvgConfig, build_fedavg),
    "fedprox": (FedProxConfig, build_fedprox),
    "feddane": (FedDaneConfig, build_feddane),
    "ditto": (DittoConfig, build_ditto),
    "pgfed": (PGFedConfig, build_pgfed),
    "pgfedmo": (PGFedMoConfig, build_pgfedmo),
    "pgfed_ce": (PGFedCeConfig, build_pgfed_ce),
    "local": (LocalConfig, build_local),
    "feddyn": (FedDynConfig, build_feddyn),
    "pfedme": (PFedMeConfig, build_pfedme),
    "fedfomo": (FedFomoConfig, build_fedfomo),
    "apfl": (ApflConfig, build_apfl),
    "lg_fedavg": (LgFedAvgConfig, build_lg_fedavg),
    "per_fedavg": (PerFedAvgConfig, build_per_fedavg),
    "fedrod": (FedRodConfig, build_fedrod),
}


def build(name: str, model: SplitModel, **hyper_parameters: Any) -> Algorithm:
    """Returns an algorithm for `model`.

    Args:
      name: One of the keys of `REGISTRY`.
      model: The model that it learns.
      **hyper_parameters: Fields of the algorithm's configuration; the others keep their defaults.

    Raises:
      ValueError: There is no such algorithm, or a hyper-parameter has a value that it does not
        take.
      TypeError: The algorithm has no such hyper-parameter, or `model` is no `SplitModel`.
    """
    values.instance("model", model, SplitModel, "Make one: `SplitModel(body, num_classes)`.")
    config = check(name, hyper_parameters)
    return REGISTRY[name][1](model, config)


def check(name: str, hyper_parameters: dict[str, Any]) -> Any:
    """Returns the configuration of an algorithm; see `build` for the arguments and the errors."""
    name = values.one_of("algorithm", name, tuple(REGISTRY))
    config = REGISTRY[name][0]
    known = [field.name for field in dataclasses.fields(config)]
    for given in hyper_parameters:
        if given not in known:
            raise TypeError(
                f"`{given}` must be a hyper-parameter of {name}, which has {', '.join(known)}. "
                "Leave it out or correct its name."
            )
    return config(**hyper_parameters)
