"""Who takes part in a round: a pure function of (seed, round), the same for every algorithm.

Source: PFLEGO, section 3.2.1 (binomial and fixed) and Figure 7 (range).
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tf_pflego.core import seeds, values
from tf_pflego.core.algorithm import Federation

MODES = ("fixed", "binomial", "range")


@dataclasses.dataclass(frozen=True)
class Participation:
    """How the participants of a round are drawn, uniformly among `num_clients` clients.

    Attributes:
      num_clients: I.
      clients_per_round: r, the number of participants if `mode` is fixed, or their mean number if
        it is binomial. It is not used if `mode` is range.
      mode: With fixed, exactly r clients are drawn without replacement. With binomial, each client
        takes part independently with probability r/I. With range, a number is drawn uniformly from
        `clients_per_round_range` in each round, and then that many clients without replacement.
      clients_per_round_range: (least, most) for the mode range, both included.

    Raises:
      ValueError: There is no such mode, a number is not whole, or there are not so many clients.
    """

    num_clients: int
    clients_per_round: int
    mode: str = "fixed"
    clients_per_round_range: tuple[int, int] | None = None

    def __post_init__(self):
        values.one_of("participation", self.mode, MODES)
        for name in ("num_clients", "clients_per_round"):
            # Frozen is for users: what they gave is replaced once, by an int.
            object.__setattr__(self, name, values.whole(name, getattr(self, name)))
        if self.num_clients < 1:
            raise ValueError(
                f"`num_clients` must be at least 1; got {self.num_clients}. Raise `num_clients`."
            )
        if self.mode == "range":
            bounds = self.clients_per_round_range
            if bounds is not None:
                if not isinstance(bounds, Sequence | np.ndarray) or isinstance(bounds, str):
                    bounds = (bounds,)
                bounds = tuple(values.whole("clients_per_round_range", one) for one in bounds)
                object.__setattr__(self, "clients_per_round_range", bounds)
            if (
                bounds is None
                or len(bounds) != 2
                or not 0 <= bounds[0] <= bounds[1] <= self.num_clients
                or not bounds[1]
            ):
                raise ValueError(
                    "`clients_per_round_range` must be least,most with 0 <= least <= most <= "
                    f"num_clients={self.num_clients} and most >= 1; got {bounds}. "
                    "Set `clients_per_round_range` to such a pair."
                )
        elif not 1 <= self.clients_per_round <= self.num_clients:
            raise ValueError(
                f"`clients_per_round` must be in [1, num_clients={self.num_clients}]; got "
                f"{self.clients_per_round}. "
                f"{'Lower' if self.clients_per_round > 1 else 'Raise'} `clients_per_round`."
            )

    @property
    def federation(self) -> Federation:
        """I, r, and the largest number of participants that a round can have."""
        mean = largest = self.clients_per_round
        if self.mode == "binomial":
            largest = self.num_clients
        elif self.mode == "range":
            least, largest = self.clients_per_round_range
            mean = (least + largest) / 2
        return Federation(self.num_clients, float(mean), largest)

    def draw(self, seed: int, round_number: int, cohort: str = "participants") -> np.ndarray:
        """Returns the ids of a round's participants in ascending order; there may be none.

        Args:
          seed: The seed of the run.
          round_number: 1, 2, ...
          cohort: The name of the cohort. A method with several exchanges per round may draw a
            cohort for each; each name has its own draws.

        Returns:
          [c] int64.
        """
        rng = seeds.generator(seed, f"participation/{cohort}", round_number)
        if self.mode == "binomial":
            # Given their number, independent participants are uniform without replacement.
            count = rng.binomial(self.num_clients, self.clients_per_round / self.num_clients)
        elif self.mode == "range":
            count = rng.integers(
                self.clients_per_round_range[0], self.clients_per_round_range[1], endpoint=True
            )
        else:
            count = self.clients_per_round
        return np.sort(rng.choice(self.num_clients, size=int(count), replace=False))
