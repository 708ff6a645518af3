"""What the configuration of a run says of clients that were given to it and not loaded by it."""

import functools
from collections.abc import Callable
from typing import Any

from tf_pflego.data import ClientData
from tf_pflego.runs.config import RunConfig
from tf_pflego.runs.reader import DEALING, OF_CLIENTS, OWN_CLIENTS


def recorded(run_config: RunConfig, clients: ClientData, load: Callable) -> dict[str, Any]:
    """Returns those settings of a run that its clients decide.

    Where they are what `load`, by which the run would have loaded clients, makes of its
    configuration, this already says what they are.
    """
    settings = {"dataset": clients.dataset, "num_clients": clients.num_clients}
    if _are_loaded(run_config, clients, load):
        return settings
    if clients.validation is not None:  # It was not drawn as the run would.
        settings["validation_fraction"] = None
    return {
        **settings,
        **dict.fromkeys(DEALING),
        "partition": OWN_CLIENTS,
        "network": run_config.chosen("network"),
        "label_space": clients.label_space,
        "class_mask": clients.class_mask,
    }


def _are_loaded(run_config, clients, load):
    """Returns whether the clients are those that the configuration describes."""
    loader = clients.origin and clients.partition and clients.origin.load
    if not isinstance(loader, functools.partial) or loader.func is not load:
        return False
    (of_clients,) = loader.args
    names = {*OF_CLIENTS, "dataset", "num_clients", "seed"} - {"network"}
    return all(getattr(of_clients, name) == getattr(run_config, name) for name in names)
