"""A server with clients that are programs on other machines: a simulation's rounds for real."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tf_pflego.core.settings import Role, names_with
from tf_pflego.devices.definition import Definition
from tf_pflego.devices.server_links import Links
from tf_pflego.runs import callbacks as callbacks_lib
from tf_pflego.runs import device_settings, loading, settings_read, training
from tf_pflego.runs.callbacks import Callback
from tf_pflego.runs.config import RunConfig
from tf_pflego.runs.plan import Elsewhere, Plan
from tf_pflego.system import log


def define(plan: Plan, name: str = "") -> Definition:
    """Returns the definition that the server and all clients of a federation share.

    Args:
      plan: The run; its `client_names` are the clients. Its own clients, if any, represent the real
        clients, or else the clients of its simulation. Only their shapes, classes and preprocessing
        of tables are used.
      name: The name of the federation; empty for the name of the data.
    """
    names = device_settings.names_of(plan.settings)
    if plan.clients is None:
        simulated = settings_read.changed(plan.settings, engine="in_process")
        plan = dataclasses.replace(plan, clients=loading.load_clients(simulated))
    return Definition.of(plan, names, name)


def serve(
    run_config: RunConfig,
    on_clients: Callable[[Mapping[str, Sequence[Any]]], None] | None = None,
    between_steps: Callable[[], None] = lambda: None,
    callbacks: Sequence[Callback] = (),
    definition: Definition | None = None,
    **hyper_parameters: Any,
) -> dict[str, Any]:
    """Trains with clients on other machines, as `run` does with simulated ones.

    It waits until every client has introduced itself, unless the run continues. After the last
    round it ends the clients.

    Args:
      run_config: The run, with `engine="devices"`.
      on_clients: Called with the columns of clients.csv.
      between_steps: Called where nothing is half done, and while the server waits. It may raise.
      callbacks: As in `run`, and so are the hyper-parameters.
      definition: The clients' definition; None for the result of `define`.

    Returns:
      The summary (see `run`).
    """
    plan = Plan.of(run_config, **hyper_parameters)
    return train(plan, definition or define(plan), callbacks, between_steps, on_clients)


def train(
    plan: Plan,
    definition: Definition,
    callbacks: Sequence[Callback] = (),
    between_steps: Callable[[], None] = lambda: None,
    on_clients: Callable[[Mapping[str, Sequence[Any]]], None] | None = None,
) -> dict[str, Any]:
    """Trains the plan with clients that have the definition (see `serve`)."""
    settings = plan.settings
    # Other data stood for those of the clients.
    of_data = names_with(Role.DATA | Role.DEALING, RunConfig)
    others = {name: getattr(RunConfig, name) for name in (*of_data, "table")}
    network = settings.chosen("network")
    plan = dataclasses.replace(
        plan, settings=settings_read.changed(settings, network=network, **others)
    )
    log.info(f"the definition is {definition.identity}")
    agreed = definition.clients, definition.identity
    with contextlib.closing(Links(settings, *agreed, between_steps)) as links:
        links.wait_for(len(definition.clients), known=True)
        elsewhere = Elsewhere(definition.model_facts, links)
        clients = definition.server_clients(links.examples)
        served = dataclasses.replace(plan, clients=clients, elsewhere=elsewhere)
        summary = training.train(
            served, callbacks_lib.checked(callbacks), between_steps, on_clients
        )
        links.tell_the_end()
    return summary
