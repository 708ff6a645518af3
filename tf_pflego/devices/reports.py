"""The clients that are asked in a round on real machines, where some may not report."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from tf_pflego.core.participation import FIRST_ROUND, Participation
from tf_pflego.engines.engine import Asked, WorkerError


class Reports(Asked):
    """The clients that are asked in a round, with `spare` clients beyond r in each cohort.

    An estimate is scaled by the number of reports, of which r count at most if there are spares.

    Attributes:
      wanted: How many reports end an exchange, by the name of the cohort.
    """

    absent: set[int]

    def __init__(
        self, participation: Participation, seed: int, number: int, cohorts: Iterable[str], spare=0
    ):
        cohorts, per_round = tuple(cohorts), participation.clients_per_round
        # Where all clients are asked first, none is to spare: it would be left out of that too.
        spare = 0 if number == 1 and FIRST_ROUND in cohorts else spare
        if spare:
            most = min(per_round + spare, participation.num_clients)
            participation = dataclasses.replace(participation, clients_per_round=most)
        super().__init__({name: participation.draw(seed, number, name) for name in cohorts})
        self._round, self.absent = number, set()
        self.wanted = {
            name: min(len(ids), per_round) if spare else len(ids) for name, ids in self.ids.items()
        }

    def lose(self, ids: Iterable[int]) -> None:
        """Notes who does not report. It raises `WorkerError` if nobody else is asked."""
        self.absent.update(ids)
        if not any(map(self._reporting, self.ids)):
            raise WorkerError(
                f"round {self._round}: no participant sent a valid answer. The round is not kept"
            )

    def scale(self, cohort):
        wanted = self.wanted[cohort]
        return max(1, wanted) / max(1, min(self._reporting(cohort), wanted))

    def missing(self):
        return sum(max(0, n - self._reporting(name)) for name, n in self.wanted.items())

    def _reporting(self, cohort):
        return int(np.count_nonzero(~np.isin(self.ids[cohort], list(self.absent))))
