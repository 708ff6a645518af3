"""The registry of algorithms: a new algorithm needs its own file and one line here.

A user's own needs no line; see `algorithms.own_methods`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from tf_pflego.algorithms import own_methods
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
from tf_pflego.algorithms.own_methods import Method
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
from tf_pflego.core.algorithm import Algorithm
from tf_pflego.models.split import SplitModel
from tf_pflego.system import errors, values

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


# What names a method: a registered name, FILE.py:FUNCTION, its builder, or what these stand for.
Named = str | Callable[..., Algorithm] | Method


def build(name: Named, model: SplitModel, **hyper_parameters: Any) -> Algorithm:
    """Returns an algorithm for `model`.

    Args:
      name: One of the keys of `REGISTRY`; or, for a method of your own, its builder, or
        FILE.py:FUNCTION.
      model: The model that it learns.
      **hyper_parameters: Fields of the algorithm's configuration; the others keep their defaults.

    Raises:
      ValueError: There is no such algorithm, or a hyper-parameter has a value that it does not
        take, or the file cannot be run.
      TypeError: The algorithm has no such hyper-parameter, or `model` is no `SplitModel`, or a
        builder returns something else than an `Algorithm`.
    """
    values.instance("model", model, SplitModel, "Make one: `SplitModel(body, num_classes)`.")
    method = method_of(name)
    config = check(method, hyper_parameters)
    try:
        algorithm = method.build(model, config)
    except Exception as error:
        if not method.is_own or errors.is_ours(error):
            raise
        must = f"{method.name} must build an `Algorithm`"
        raise own_methods.failed(must, method.build.__code__.co_filename, error) from error
    if not isinstance(algorithm, Algorithm):
        raise TypeError(
            f"`algorithm` {method.name} must return an `Algorithm`; got "
            f"{type(algorithm).__name__}. Return one from it."
        )
    return algorithm


def method_of(name: Named) -> Method:
    """Returns the method that has a name; see `build` for the argument and the errors."""
    if isinstance(name, Method):
        return name
    if not isinstance(name, str):
        return own_methods.from_builder(name)
    if own_methods.names_file(name):
        return own_methods.from_file(name)
    return Method(check_name(name), *REGISTRY[name])


def check_name(name: Any) -> str:
    """Returns the name of a method; raises ValueError if it has not the form of one."""
    if own_methods.names_file(name):
        return name
    if isinstance(name, str) and name.endswith(".py"):
        raise ValueError(
            f"`algorithm` must name a file and its builder, as {own_methods.FORM}; got {name!r}. "
            f"Add the builder, as in `algorithm={name}:build_x`."
        )
    return values.one_of("algorithm", name, (*REGISTRY, own_methods.FORM))


def check(name: Named, hyper_parameters: dict[str, Any]) -> Any:
    """Returns the configuration of an algorithm; see `build` for the arguments and the errors."""
    method = method_of(name)
    known = [field.name for field in dataclasses.fields(method.settings)]
    for given in hyper_parameters:
        if given not in known:
            raise TypeError(
                f"`{given}` must be a hyper-parameter of {method.name}, which has "
                f"{', '.join(known) or 'none'}. Leave it out or correct its name."
            )
    return method.settings(**hyper_parameters)
