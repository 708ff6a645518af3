"""A simulation begins with the states of another one's checkpoint, with other clients."""

import os
from collections.abc import Sequence

import numpy as np

from tf_pflego.core.algorithm import specs_of
from tf_pflego.core.last_cohort import regrouped
from tf_pflego.core.nests import Structure
from tf_pflego.data import checks
from tf_pflego.simulation.checkpoint import CheckpointError, Checkpoints, differences, identity
from tf_pflego.simulation.trained import Trained
from tf_pflego.system import values

_MOST_CLIENTS = 10**7  # of a checkpoint, which may come from others; each takes eight bytes


def take_over(
    simulation: Trained, directory: str | os.PathLike, former: Sequence[int] | None
) -> Structure:
    """Puts clients' earlier states into a simulation's engine, and returns the server's state.

    Arguments and errors are as in `Simulation.start_from`.
    """
    checkpoints = Checkpoints(values.path("directory", directory, may_be_empty=False))
    content = checkpoints.newest()
    if content is None:
        raise CheckpointError(
            f"`directory` must hold a checkpoint; {directory} has none. Correct the path."
        )
    if "claim" in content or "wrapper/0/secret" in (content.get("server_state") or ""):
        raise ValueError(
            f"`directory` must have the checkpoint of a run without privacy, since nothing counts "
            f"what is released from now on; {directory} has a private one. Start anew, and add the "
            "epsilons of both runs."
        )
    about = identity(simulation)
    wanted = {name: about[name] for name in ("algorithm", "client_state")}
    if differing := differences(wanted, content):
        raise CheckpointError(
            f"the checkpoint in {directory} must be one of the same method and model; it differs "
            f"in {differing}. Choose them as they were, or begin without it."
        )
    count = content.get("num_clients")
    if type(count) is not int or not 1 <= count <= _MOST_CLIENTS:
        raise CheckpointError(
            f"the checkpoint in {directory} must be of 1 to {_MOST_CLIENTS} clients; got "
            f"{values.shown(count)}. Put back a whole copy, or begin without it."
        )
    numbers = np.asarray(range(count) if former is None else former)
    if numbers.shape != (simulation.data.num_clients,) or numbers.dtype.kind not in "iu":
        raise ValueError(
            f"`former` must have a whole number for each of the {simulation.data.num_clients} "
            f"clients; got {numbers.dtype} of shape {numbers.shape}. Give -1 for new clients."
        )
    stay = np.flatnonzero(numbers != -1)
    positions = np.full(count, -1)
    positions[checks.client_ids(numbers[stay], count, "former", different=True)] = stay
    init_server = simulation.algorithm.init_server
    spec = specs_of(init_server(simulation.federation._replace(num_clients=count)))
    server_state = checkpoints.load(content, spec, simulation._engine, positions)
    return regrouped(server_state, numbers, simulation.federation, init_server)
