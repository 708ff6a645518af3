"""The terms of private and secure sums, in addition to an algorithm's own functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tf_pflego.core.nests import Structure


@dataclasses.dataclass(frozen=True)
class Release:
    """The terms of an algorithm's released sums; `tf_pflego.aggregation` makes it.

    No wrapper may be put around an algorithm with these terms, since its claims hold only for its
    own sums of uploads. In the functions, a `position` is the place of an exchange in a round.

    Attributes:
      participation: The only supported `Participation`, or None for any. Claims of privacy depend
        on it.
      participation_seed: (server_state) -> the seed for sampling participants, if it must be
        secret. None for the seed of the run.
      claim: The mechanism and delta of a private algorithm as JSON, which a checkpoint must share.
      seeded: (server_state, position, client_ids [c], round number) -> server_state, with the
        secret seeds of the exchange. It is called before the exchange, outside of TensorFlow's
        graphs, which know 32 bits of a seed where a secret must have 128. None if nothing is
        secret.
      of_nobody: (server_state, position) -> the `Sums` of no participants, if the server also acts
        in rounds without any. None if such rounds change nothing.
      fits: (server_state, position, the `Sums` of one client) -> whether a client can upload them;
        None if that is not known.
      counts_lost_as_zero: Whether a lost upload counts as zero. If not, the round starts again
        without this client.
    """

    participation: Any = None
    participation_seed: Callable[[Structure], int] | None = None
    claim: Mapping[str, Any] | None = None
    seeded: Callable[[Structure, int, np.ndarray, int], Structure] | None = None
    of_nobody: Callable[[Structure, int], Any] | None = None
    fits: Callable[[Structure, int, Any], bool] | None = None
    counts_lost_as_zero: bool = False


NOTHING = Release()  # of an algorithm that neither is private nor has secure sums
