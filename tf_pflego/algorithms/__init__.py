"""The registry of algorithms: a new algorithm needs its own file and its name here.

A user's own algorithm needs no line (see `algorithms.own_methods`).
"""

import dataclasses
import functools
import importlib
from collections.abc import Callable
from typing import Any, cast

from tf_pflego.algorithms import own_methods
from tf_pflego.algorithms.own_methods import Method
from tf_pflego.core import execution
from tf_pflego.core.algorithm import Algorithm
from tf_pflego.models.split_model import SplitModel
from tf_pflego.system import errors, values

# A method is called like its file, which has a function `build_NAME`. Its second parameter is
# annotated with the method's hyper-parameters.
_NAMES = (
    *("pflego", "pflego_shared_head", "fedrecon", "fedper", "fedrep", "fedbabu", "fedavg"),
    *("fedprox", "feddane", "ditto", "pgfed", "pgfedmo", "pgfed_ce", "local", "feddyn", "pfedme"),
    *("fedfomo", "apfl", "lg_fedavg", "per_fedavg", "fedrod", "fedbn", "scaffold", "fednova"),
    *("mr_mtl", "fedala", "fedamp", "fedcp", "gpfl", "moon", "fedproto", "feddbe", "fedas", "ifca"),
    *("pfedfda", "fedpac", "fedmuon"),
)


def _registered(name: str) -> tuple[type, Callable[..., Algorithm]]:
    builder = getattr(importlib.import_module(f"{__name__}.{name}"), f"build_{name}")
    return own_methods.settings_of(builder), builder


REGISTRY = {name: _registered(name) for name in _NAMES}


def settings_of_methods() -> dict[str, dataclasses.Field]:
    """Returns the hyper-parameters of all registered methods by their names."""
    kinds = [kind for kind, _ in REGISTRY.values()]
    return {field.name: field for kind in kinds for field in dataclasses.fields(kind)}


# A method: a registered name, FILE.py:FUNCTION, its builder, or the `Method` itself.
Named = str | Callable[..., Algorithm] | Method


def build(name: Named, model: SplitModel, **hyper_parameters: Any) -> Algorithm:
    """Returns an algorithm for `model`.

    Args:
      name: A key of `REGISTRY`, or, for your own method, its builder or FILE.py:FUNCTION.
      model: The model that it learns. A `Simulation` computes its frozen part once for each
        example, unless the algorithm is wrapped, as by `private` (see `with_frozen_features`).
      **hyper_parameters: Fields of the algorithm's configuration. The rest keep their defaults.

    Raises:
      ValueError: There is no such algorithm, or a hyper-parameter has a value that it does not
        take, or the file cannot be run.
      TypeError: The algorithm has no such hyper-parameter, or `model` is no `SplitModel`, or a
        builder returns something else than an `Algorithm`.

    Example, explained in docs/methods.md:
      >>> pfl.build_algorithm("fedper", model, local_steps=5, client_learning_rate=0.1)
      Algorithm(fedper, 1 exchange per round, serves personalized)
    """
    execution.refuse_others("a method must be built")
    values.instance("model", model, SplitModel, "Make one: `SplitModel(body, num_outputs)`.")
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
    if model.parts.any_personal and not algorithm.keeps_personal:
        raise ValueError(
            f"`personal` must be empty for {method.name}, which has one owner for all weights of "
            "a body. Leave it out, or choose fedavg, fedper, fedrep or pflego."
        )
    served = algorithm.served
    if model.has_statistics:
        served = {name: _with_statistics(one) for name, one in served.items()}
    if algorithm.keeps_personal and cast(SplitModel, algorithm.model).parts.any_personal:
        pairs = served.items()  # No rule of a head trains them.
        served = {name: dataclasses.replace(one, personalize=None) for name, one in pairs}
    algorithm = dataclasses.replace(algorithm, served=served)
    # For a `Simulation`, on a part of the model. What a wrapper returns does not have it.
    vars(algorithm)["_built"] = model, functools.partial(build, method, **hyper_parameters)
    return algorithm


def _with_statistics(served):
    """Returns served models that use the client's own statistics if they have none."""
    model = getattr(served.predict, "__self__", None)
    if not isinstance(model, SplitModel):
        return served

    def fine_tune(weights, client):
        if served.fine_tune is not None:
            weights = served.fine_tune(weights, client)
        return model.with_statistics(weights, client)

    return dataclasses.replace(served, fine_tune=fine_tune)


def method_of(name: Named) -> Method:
    """Returns the method with a name; see `build` for the argument and the errors."""
    if isinstance(name, Method):
        return name
    if not isinstance(name, str):
        return own_methods.from_builder(name)
    if own_methods.names_file(name):
        return own_methods.from_file(name)
    return Method(check_name(name), *REGISTRY[name])


def check_name(name: Any) -> str:
    """Returns the name of a method; raises ValueError if its form is wrong."""
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
    for one in hyper_parameters:
        if one not in known:
            raise TypeError(
                f"`{one}` must be a hyper-parameter of {method.name}, which has "
                f"{', '.join(known) or 'none'}. Leave it out or correct its name."
            )
    return method.settings(**hyper_parameters)
