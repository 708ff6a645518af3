"""A server whose clients are programs on other machines: the rounds of a simulation, in earnest."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tf_pflego import data
from tf_pflego.devices.definition import Definition
from tf_pflego.devices.server_links import DeviceOptions, Links
from tf_pflego.runs import build, config, device_settings, settings_read, training
from tf_pflego.runs.callbacks import Callback
from tf_pflego.simulation.checkpoint import KEPT
from tf_pflego.system import log


def define(
    run_config: config.RunConfig,
    clients_like: data.ClientData | None = None,
    name: str = "",
    **hyper_parameters: Any,
) -> Definition:
    """Returns what the server and all clients of a federation have to agree on.

    Args:
      run_config: The run; its `client_names` are the clients.
      clients_like: Clients that stand in for the real ones; None for the clients that the run has
        in a simulation. Only their shapes, classes and preprocessing of tables are used.
      name: The name of the federation; empty for the data's.
      **hyper_parameters: The method's; those left out keep their defaults.
    """
    names = device_settings.names_of(run_config)
    if clients_like is None:
        clients_like = build.load_clients(settings_read.changed(run_config, engine="in_process"))
    return Definition.of(run_config, hyper_parameters, clients_like, names, name)


def serve(
    run_config: config.RunConfig,
    on_clients: Callable[[Mapping[str, Sequence[Any]]], None] | None = None,
    between_steps: Callable[[], None] = lambda: None,
    callbacks: Sequence[Callback] = (),
    definition: Definition | None = None,
    **hyper_parameters: Any,
) -> dict[str, Any]:
    """Trains with clients on other machines, as `run` does with simulated ones.

    It waits until every client has introduced itself, unless the run goes on. After the last round
    the clients are told that it has ended, and stop.

    Args:
      run_config: The run, with `engine="devices"`.
      on_clients: As in `run`.
      between_steps: As in `run`; it is also called while the server waits.
      callbacks: As in `run`.
      definition: The definition that the clients have; None for the one of `define`.
      **hyper_parameters: The method's; those left out keep their defaults.

    Returns:
      The summary; see `run`.
    """
    if definition is None:
        definition = define(run_config, **hyper_parameters)
    options = DeviceOptions(
        run_config.sockets,
        tuple(definition.clients),
        definition.identity,
        run_config.client_weights == "examples",
        run_config.round_deadline,
        run_config.min_reports,
        definition.participation.clients_per_round,
        run_config.spare_clients,
        # The oldest checkpoint that stays is of at most so many rounds ago.
        max(1, run_config.checkpoint_every * (KEPT + 1)),
    )
    log.info(f"the definition is {definition.identity}")
    with contextlib.closing(Links(options, between_steps)) as links:
        links.wait_for(len(definition.clients), known=True)
        summary = training.run(
            run_config,
            clients=definition.server_clients(links.examples),
            between_steps=between_steps,
            on_clients=on_clients,
            callbacks=callbacks,
            elsewhere=build.Elsewhere(definition.model_facts, links),
            **hyper_parameters,
        )
        links.tell_the_end()
    return summary
