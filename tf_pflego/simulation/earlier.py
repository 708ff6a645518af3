"""A simulation begins with the states of another one's checkpoint, with other clients."""

import os
from collections.abc import Sequence

import numpy as np

from tf_pflego.core.algorithm import specs_of
from tf_pflego.core.last_cohort import regrouped
from tf_pflego.data import checks
from tf_pflego.simulation.checkpoint import CheckpointError, Checkpoints, differences, identity
from tf_pflego.simulation.trained import Trained
from tf_pflego.system import values

_MOST_CLIENTS = 10**7  # of a checkpoint, which may come from others; each takes eight bytes


def start_from(
    self: Trained, directory: str | os.PathLike, former: Sequence[int] | None = None
) -> None:
    """Begins with the states of another simulation's newest checkpoint.

    The method and the shapes of its states must be the same. Clients, examples and settings may
    differ. The server's state continues, its parts for single clients follow these, and known
    clients keep their states. All others start like any client at its first participation. Rounds
    are counted from 1.

    Args:
      directory: The checkpoints, as `save` or a run wrote them.
      former: For each client of this simulation its number in the other one, or -1 if it is new.
        None if they are the same.

    Raises:
      CheckpointError: There is no whole checkpoint, or it is one of another method, or of states
        of other shapes.
      ValueError: This simulation has had a round, or its method or the checkpoint is private, and
        its spent privacy would not be counted, or `former` does not name different clients of the
        other one.
    """
    if self.round_number or self.algorithm.release.participation is not None:
        what = "is private" if self.algorithm.release.participation else "has had a round"
        raise ValueError(
            "`start_from` must be called on a simulation without privacy before its first "
            f"round; this one {what}. Make a new one."
        )
    checkpoints = Checkpoints(values.path("directory", directory, may_be_empty=False))
    content = checkpoints.newest()
    if content is None:
        raise CheckpointError(
            f"`directory` must have a checkpoint; {directory} has none. Correct the path."
        )
    if "claim" in content or "wrapper/0/secret" in (content.get("server_state") or ""):
        raise ValueError(
            "`directory` must have the checkpoint of a run without privacy, since epsilon would "
            f"not include further releases; {directory} has a private run. Start a new run, and "
            "add the epsilons of both runs."
        )
    about = identity(self)
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
    if numbers.shape != (self.data.num_clients,) or numbers.dtype.kind not in "iu":
        raise ValueError(
            f"`former` must have a whole number for each of the {self.data.num_clients} "
            f"clients; got {numbers.dtype} of shape {numbers.shape}. Give -1 for new clients."
        )
    stay = np.flatnonzero(numbers != -1)
    positions = np.full(count, -1)
    positions[checks.client_ids(numbers[stay], count, "former", different=True)] = stay
    init_server = self.algorithm.init_server
    spec = specs_of(init_server(self.federation._replace(num_clients=count)))
    server_state = checkpoints.load(content, spec, self._engine, positions)
    self.server_state = regrouped(server_state, numbers, self.federation, init_server)
