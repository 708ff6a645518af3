"""Participation in a round: a pure function of (seed, round), the same for every algorithm.

Clients are sampled, and some of them may drop out before they report: their devices run out of
power, or their connections fail. The client's state and the server then do not change.

Source: PFLEGO, section 3.2.1 (binomial and fixed) and Figure 7 (range).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_pflego.core import seeds
from tf_pflego.core.algorithm import Algorithm, Federation
from tf_pflego.system import values

MODES = ("fixed", "binomial", "range", "cyclic")
# The cohort of an exchange in which all clients take part once, before anything is learnt from some
# of them. The server waits for all: nobody drops out.
FIRST_ROUND = "all clients in round 1"


@dataclasses.dataclass(frozen=True)
class Participation:
    """The sampling of a round's participants, uniform among `num_clients` clients.

    With the mode cyclic only the order of the clients is random, determined once by the seed.

    Attributes:
      num_clients: I.
      clients_per_round: r, the number of participants if `mode` is fixed or cyclic, or their mean
        number if it is binomial. It is not used if `mode` is range.
      mode: With fixed, exactly r clients participate, sampled without replacement. With binomial,
        each client participates independently with probability r/I. With range, the number is
        uniform in `clients_per_round_range` in each round, and the clients are sampled without
        replacement. With cyclic, the clients are in a circle, and the next r participate: a client
        participates again after floor(I/r) or ceil(I/r) rounds.
      clients_per_round_range: (least, most) for the mode range, both included.
      client_dropout: p in [0, 1), the probability that a sampled client drops out, independently of
        all others. r (1 - p) clients then report on average, and an estimate that is scaled by I /
        (r (1 - p)) stays unbiased.

    Raises:
      ValueError: There is no such mode, a number is not whole or out of its range, or there are too
        few clients.

    Example, explained in docs/data.md#participants-of-a-round:
      >>> sampling = pfl.Participation(num_clients=100, clients_per_round=10, mode="cyclic")
      >>> len(sampling.draw(seed=0, round_number=1))
      10
    """

    num_clients: int
    clients_per_round: int
    mode: str = "fixed"
    clients_per_round_range: tuple[int, int] | None = None
    client_dropout: float = 0.0

    def __post_init__(self):
        values.one_of("mode", self.mode, MODES)
        # Frozen is for users: what they gave is replaced once, by an int.
        object.__setattr__(self, "num_clients", values.whole("num_clients", self.num_clients, 1))
        per_round = values.whole("clients_per_round", self.clients_per_round)
        object.__setattr__(self, "clients_per_round", per_round)
        if self.mode == "range":
            bounds: Any = self.clients_per_round_range
            if isinstance(bounds, str) or not isinstance(bounds, Sequence | np.ndarray):
                bounds = () if bounds is None else (bounds,)
            bounds = tuple(values.whole("clients_per_round_range", one) for one in bounds)
            object.__setattr__(self, "clients_per_round_range", bounds or None)
            least, most = bounds if len(bounds) == 2 else (-1, -1)
            if not 0 <= least <= most <= self.num_clients or not most:
                raise ValueError(
                    "`clients_per_round_range` must be least,most with 0 <= least <= most <= "
                    f"num_clients={self.num_clients} and most >= 1; got {bounds or None}. "
                    "Set `clients_per_round_range` to such a pair."
                )
        elif not 1 <= per_round <= self.num_clients:
            raise ValueError(
                f"`clients_per_round` must be in [1, num_clients={self.num_clients}]; got "
                f"{per_round}. {'Lower' if per_round > 1 else 'Raise'} `clients_per_round`."
            )
        rate = values.number("client_dropout", self.client_dropout, at_least=0, below=1)
        object.__setattr__(self, "client_dropout", rate)

    def __repr__(self) -> str:
        pairs = [(field, getattr(self, field.name)) for field in dataclasses.fields(self)]
        changed = [f"{field.name}={one!r}" for field, one in pairs if one != field.default]
        return f"Participation({', '.join(changed)})"

    @property
    def federation(self) -> Federation:
        """I, the mean number of clients that report, and the largest number that can."""
        largest = self.clients_per_round
        mean = float(largest)
        if self.mode == "binomial":
            largest = self.num_clients
        elif self.mode == "range" and self.clients_per_round_range is not None:
            least, largest = self.clients_per_round_range
            mean = (least + largest) / 2
        return Federation(self.num_clients, mean * (1.0 - self.client_dropout), largest)

    def federation_of(self, algorithm: Algorithm) -> Federation:
        """Returns the same for a method that may have an exchange with all clients."""
        federation = self.federation
        if all(exchange.cohort != FIRST_ROUND for exchange in algorithm.exchanges):
            return federation
        return federation._replace(max_clients_per_round=self.num_clients)

    def draw(self, seed: int, round_number: int, cohort: str = "participants") -> np.ndarray:
        """Returns the ids of the clients that report in a round, ascending; it may be empty.

        Args:
          seed: The seed of the run.
          round_number: 1, 2, ...
          cohort: The name of the cohort. A method with several exchanges per round may sample a
            cohort for each, and each name has its own random participants. `FIRST_ROUND` is all
            clients in the first round, and none in later rounds.

        Returns:
          [c] int64.
        """
        ids, drops_out = self._drawn(seed, round_number, cohort)
        return ids[~drops_out]

    def dropped(self, seed: int, round_number: int, cohort: str = "participants") -> np.ndarray:
        """Returns the ids of the clients that are sampled, as in `draw`, and drop out, [c]."""
        if not self.client_dropout:
            return np.zeros(0, np.int64)
        ids, drops_out = self._drawn(seed, round_number, cohort)
        return ids[drops_out]

    def _drawn(self, seed, round_number, cohort):
        """Returns the ids of the sampled clients, [c], and whether they drop out, [c]."""
        if cohort == FIRST_ROUND:
            ids = np.arange(self.num_clients if round_number == 1 else 0, dtype=np.int64)
            return ids, np.zeros(len(ids), bool)
        ids = np.sort(self._chosen(seed, round_number, cohort))
        if not self.client_dropout:
            return ids, np.zeros(len(ids), bool)
        rng = seeds.generator(seed, f"dropout/{cohort}", round_number)
        return ids, rng.random(len(ids)) < self.client_dropout

    def _chosen(self, seed, round_number, cohort):
        """Returns the ids of the sampled clients, in any order."""
        count = min(self.clients_per_round, self.num_clients)
        if self.mode == "cyclic":
            circle = seeds.generator(seed, f"order/{cohort}").permutation(self.num_clients)
            return circle[((round_number - 1) * count + np.arange(count)) % self.num_clients]
        rng = seeds.generator(seed, f"participation/{cohort}", round_number)
        if self.mode == "binomial":
            # Given their number, independent participants are uniform without replacement.
            count = int(rng.binomial(self.num_clients, count / self.num_clients))
        elif self.mode == "range" and self.clients_per_round_range is not None:
            least, most = self.clients_per_round_range
            count = int(rng.integers(least, most, endpoint=True))
        return rng.choice(self.num_clients, size=count, replace=False)
