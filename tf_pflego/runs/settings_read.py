"""The settings that a run reads, depending on its other settings and its clients."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from tf_pflego import algorithms
from tf_pflego.core import tasks
from tf_pflego.core.settings import unread
from tf_pflego.runs.config import RunConfig, chosen


def read_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings and hyper-parameters of a run, with the default of each that it reads not.

    Versions before this one let it be set, and stored it.
    """
    fields = dataclasses.fields(RunConfig)
    if settings.get("algorithm") in algorithms.REGISTRY:
        fields += dataclasses.fields(algorithms.REGISTRY[settings["algorithm"]][0])
    defaults = {field.name: field.default for field in fields}
    known = defaults | {name: value for name, value in settings.items() if value is not None}
    left = [name for name, _ in unread(fields, functools.partial(chosen, known))]
    return {**settings, **{name: defaults[name] for name in left}}


def changed(run_config: RunConfig, **changes: Any) -> RunConfig:
    """Returns a changed configuration, with the defaults of settings that it no longer reads."""
    return RunConfig(**read_of(vars(run_config) | changes))


def refuse_unread_of(run_config: RunConfig, task: str, has_own_model: bool) -> None:
    """Raises ValueError if a setting of quantities is set and the clients' model learns none."""
    not_read = {
        "huber_delta": run_config.huber_delta and (has_own_model or task != tasks.REGRESSION),
        "standardize_labels": not run_config.standardize_labels and task != tasks.REGRESSION,
    }
    for name in filter(not_read.get, not_read):
        raise ValueError(
            f"`{name}` must be given only for quantities with the run's own network; got "
            f"{getattr(run_config, name)} for {task}. Leave it out."
        )


def refuse_others(run_config: RunConfig, of_clients: Mapping[str, Any]) -> None:
    """Raises ValueError if a setting contradicts clients that were made without it."""
    for name, value in of_clients.items():
        if getattr(run_config, name) not in (getattr(RunConfig, name), value):
            raise ValueError(
                f"`{name}` must not be given where `clients` are given that were not made with "
                f"it; got {getattr(run_config, name)}. Leave it out, or give it where they are "
                "made."
            )
