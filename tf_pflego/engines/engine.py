"""The interface of all engines. An engine has the clients' data and states, and tests them."""

from collections.abc import Iterable, Mapping, Set
from typing import Any, NamedTuple, Protocol

import numpy as np

from tf_pflego.core.algorithm import Algorithm, Exchange, Round, Sums
from tf_pflego.core.nests import Structure
from tf_pflego.core.participation import Participation
from tf_pflego.data.clients import ClientData
from tf_pflego.engines.client_states import ClientIds


class Asked:
    """The clients that are asked in a round. Here all of them report.

    Attributes:
      ids: By the name of the cohort, [c] int64, ascending.
      absent: The clients that have not reported, in an engine where that can happen. They are not
        finite in the outcome either, and have no part in the round.
    """

    absent: Set[int] = frozenset()

    def __init__(self, ids: Mapping[str, np.ndarray]):
        self.ids = ids

    def scale(self, cohort: str) -> float:
        """Returns the expected number of reports divided by the number that there are."""
        return 1.0

    def missing(self) -> int:
        """Returns the number of reports that the round lacks since clients were absent."""
        return 0


class Cohort(NamedTuple):
    """The participants of an exchange, c of them, in ascending order of their ids."""

    ids: np.ndarray  # [c] int64
    seeds: np.ndarray  # [c, 2] int32
    messages: Structure  # what the server sends to each alone; each leaf [c, ...]


class Outcome(NamedTuple):
    """The uploads that the server receives in an exchange, and facts about the participants.

    If a participant is not finite, the rest must not be used.
    """

    summed: Sums  # added up over the participants
    individual: Structure  # each leaf [c, ...]
    finite: np.ndarray  # [c] bool, whether all numbers of its new state and of its uploads are
    # By split and by statistic [c, m] float64: tests after local training, if there were any.
    sums: dict[str, dict[str, np.ndarray]]


class WorkerError(ChildProcessError):
    """An engine's worker did not start, or failed. `log` is the end of its log."""

    def __init__(self, what: str, log: str = ""):
        super().__init__(f"{what}; its log ends with:\n{log}" if log.strip() else what)
        self.what, self.log = what, log


class ShardLostError(WorkerError):
    """A process with a shard, or its machine, is lost with the clients' states.

    The simulation can continue from a restored checkpoint, with new processes.
    """


class Engine(Protocol):
    """The clients of a federation, and the place where they run.

    A round's new client states are staged by its exchanges, and `commit` keeps them. `states` are
    as in `ClientStates`. A second engine at the same time runs at `place`, a name or a `Place`.
    """

    states: Any
    place: Any

    def asked(
        self, participation: Participation, seed: int, number: int, cohorts: Iterable[str]
    ) -> Asked:
        """Returns the clients that are asked in a round, before its first exchange."""
        return Asked({name: participation.draw(seed, number, name) for name in cohorts})

    def run_exchange(
        self,
        exchange: Exchange,
        message: Structure,
        cohort: Cohort,
        server_state: Structure,
        round_: Round,
        evaluate: bool,
    ) -> Outcome:
        """Runs an exchange of the algorithm at its participants, at least one.

        A client's first state may depend on the server's state. With `evaluate`, each participant's
        weights are tested on its test and validation examples after its local training. If the
        engine's worker fails repeatedly, this raises `WorkerError`, and no state has changed.
        """

    def commit(self) -> None:
        """Keeps the client states that exchanges have staged since the last commit."""

    def roll_back(self) -> None:
        """Discards the client states that exchanges have staged since the last commit."""

    def evaluate(
        self, ids: ClientIds, seeds: np.ndarray, train: bool, server_state: Structure
    ) -> dict[str, dict[str, dict[str, np.ndarray]]]:
        """Tests the served models of clients, and stores no results.

        `seeds` [c, 2] int32 are for clients that are fine-tuned first. `train` is whether to test
        them on their training examples too. It returns sums [c, m] float64, by served model, split
        and statistic.
        """

    def predict(
        self, ids: ClientIds, seeds: np.ndarray, split: str, name: str, server_state: Structure
    ) -> list[np.ndarray]:
        """Returns each client's predictions by its served model of this name, [n_i, K] float32."""

    def read_states(self, ids: ClientIds, server_state: Structure) -> Structure:
        """Returns the states of clients, each leaf [c, ...], first states for those without one."""

    def write_states(self, ids: ClientIds, states: Structure) -> None:
        """Replaces the states of clients."""

    def close(self) -> None:
        """Frees the resources of the engine. It cannot be used afterwards."""


class Place(Protocol):
    """Machines or processes with their own engine, as an argument of a simulation."""

    def engine(
        self, algorithm: Algorithm, clients: ClientData, server_state: Structure, seed: int
    ) -> Engine:
        """Returns the engine of a federation in this place."""
