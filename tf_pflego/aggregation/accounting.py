"""The privacy that the noise of a run gives.

Two runs are neighbours if one has zeros instead of all uploads of a client. I and r stay public. A
client participates in several releases. Each is a sum with Gaussian noise of deviation z C, to
which the client adds a vector of norm C at most. After t rounds, with k = ceil(T r/I) for a whole
run:

  mechanism  participation  what a client's part in all sums is hidden by
  gaussian   binomial       Gaussian z, t times, Poisson sampling with q = r/I (1)
  gaussian   fixed, r < I   Gaussian z, t times; or Gaussian z/2 without replacement (2), if less
  gaussian   fixed, r = I   Gaussian z, t times (3)
  gaussian   cyclic         Gaussian z, ceil(t r/I) times (3)
  banded     cyclic         Gaussian z sqrt(k), ceil(t r/I) times (3)
  local      any but range  Gaussian z/2, t times, as the server sees each upload beside others (3)
  skellam    fixed          Skellam z, t times, no sampling (2)

(1) by privacy loss distributions, (2) by Renyi divergences, both of dp-accounting, (3) exact.

Sampling amplifies privacy towards observers that do not know the participants. Towards the rest,
epsilon is the Gaussian's with z in all t rounds: without amplification. Drop-out is not counted: q
is r/I at any share of drop-outs.

The n exchanges of a round count as one release with z / sqrt(n). This is exact if a cohort
participates in all of them, and an upper bound if each samples its own cohort.

Without replacement the divergences compare any two uploads, which moves a sum by 2 C: the clients
that replace a client upload something too. The comparison includes zeros.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_pflego.core.participation import Participation
from tf_pflego.system import values

BANDED, SKELLAM, LOCAL = "banded", "skellam", "local"
MECHANISMS = ("gaussian", BANDED, SKELLAM, LOCAL)
# Those of dp-accounting from 2 on, below which they matter for an epsilon above 20 alone, and more
# of the large ones, which matter for an epsilon below 0.2.
_ORDERS = (*(x / 10 for x in range(20, 110)), *range(11, 64))
_ORDERS += tuple(round(64 * 2 ** (x / 2)) for x in range(9))
_NOISE_MULTIPLIERS = 0.1, 1e4  # the least and the largest that are tried
_TOLERANCE = 1e-6  # of what is calibrated, relative
_LARGE_MU = 1e3
_MOST_LOSSES = 10**6
_LOSS_INTERVAL = 0.05  # times the deviation of a privacy loss


@dataclasses.dataclass(frozen=True)
class Accountant:
    """Privacy accounting of the noised sums: how much they reveal about a client's participation.

    Attributes:
      participation: The sampling of participants.
      mechanism: One of `MECHANISMS`.
      noise_multiplier: z.
      delta: The probability of a violation of epsilon, in (0, 1).
      num_rounds: T.
      releases_per_round: n, the exchanges of a round. Each releases a sum.
      bits: b, of the integers that the mechanism skellam adds up.

    Raises:
      ValueError: The privacy of this mechanism with this participation is unknown.
    """

    participation: Participation
    mechanism: str
    noise_multiplier: float
    delta: float
    num_rounds: int
    releases_per_round: int = 1
    bits: int = 24

    def __post_init__(self):
        values.one_of("mechanism", self.mechanism, MECHANISMS)
        mode = self.participation.mode
        if mode == "range":
            raise ValueError(
                "`participation` must have the mode binomial, fixed or cyclic for differential "
                "privacy; got range. Set the mode to binomial, which needs the least noise."
            )
        if self.mechanism == BANDED and mode != "cyclic":
            raise ValueError(
                "`participation` must have the mode cyclic for the mechanism banded; got "
                f"{mode}. Set the mode to cyclic, or the mechanism to gaussian."
            )
        if self.mechanism == SKELLAM and (mode != "fixed" or self.participation.client_dropout):
            raise ValueError(
                "`participation` must have the mode fixed and no drop-out for the mechanism "
                "skellam, since each of r clients adds 1 / r of the noise; got "
                f"{self.participation}. Set these, or the mechanism to gaussian."
            )

    @property
    def claim(self) -> dict[str, Any]:
        """The mechanism and delta as JSON, which a number of releases needs for its meaning."""
        claim = {"mechanism": self.mechanism, "delta": self.delta}
        return claim | ({"bits": self.bits} if self.mechanism == SKELLAM else {})

    @property
    def integer_norm(self) -> float:
        """B, the largest norm of clients' integers with the mechanism skellam."""
        return integer_norm(self.bits, self.participation.clients_per_round, self.noise_multiplier)

    @property
    def bands(self) -> int:
        """b, the least distance of a client's rounds; 1 if the noise of rounds is independent."""
        if self.mechanism != BANDED:
            return 1
        return self.participation.num_clients // self.participation.clients_per_round

    @property
    def participations(self) -> int:
        """k, the most rounds of a client; 1 if each round is accounted for separately."""
        return self._participations(self.num_rounds) if self.mechanism == BANDED else 1

    def epsilon(self, releases: int, amplified: bool = True) -> float:
        """Returns epsilon after a number of sums, over all exchanges together.

        It is amplified if observers do not know the participants.
        """
        if not releases:
            return 0.0
        rounds = math.ceil(releases / self.releases_per_round)
        multiplier = self.noise_multiplier / math.sqrt(self.releases_per_round)
        if self.mechanism == SKELLAM:
            one = skellam_divergences(_ORDERS, self.noise_multiplier, self.integer_norm)
            divergences = rounds * self.releases_per_round * one
            return float(_library().rdp.compute_epsilon(_ORDERS, divergences, self.delta)[0])
        if self.mechanism == LOCAL:
            return gaussian_epsilon(2 * math.sqrt(rounds) / multiplier, self.delta)
        count = self._participations(rounds)
        multiplier *= math.sqrt(self.participations)
        plain = gaussian_epsilon(math.sqrt(count) / multiplier, self.delta)
        drawn = self.participation
        sampled = {"binomial": _poisson_epsilon, "fixed": _without_replacement_epsilon}
        if multiplier < _NOISE_MULTIPLIERS[0]:  # Its losses are too large to be counted.
            return plain
        if (
            not amplified
            or drawn.mode not in sampled
            or drawn.clients_per_round == drawn.num_clients
        ):
            return plain
        sampling = drawn.num_clients, drawn.clients_per_round
        return min(plain, sampled[drawn.mode](*sampling, multiplier, count, self.delta))

    def measures(self, noise_multiplier: float, states: Sequence[Any]) -> dict[str, float]:
        """Returns the privacy metrics of a round's record, from the releases counted in states.

        There is one state per exchange. The noise multiplier is the run's.
        """
        releases = sum(int(state.releases) for state in states)
        used = dataclasses.replace(self, noise_multiplier=noise_multiplier)
        return {
            "privacy_noise_multiplier": noise_multiplier,
            "privacy_releases": releases,
            "privacy_epsilon": used.epsilon(releases),
            "privacy_epsilon_unamplified": used.epsilon(releases, amplified=False),
            "privacy_delta": self.delta,
        }

    def _participations(self, rounds):
        """Returns the number of the first rounds that a client participates in or may join."""
        if self.participation.mode != "cyclic":
            return rounds
        return math.ceil(
            rounds * self.participation.clients_per_round / self.participation.num_clients
        )


@functools.lru_cache(maxsize=64)
def calibrated(accountant: Accountant, epsilon: float) -> Accountant:
    """Returns the accountant with the least noise that gives epsilon after all rounds."""

    def with_noise(log_multiplier):
        return dataclasses.replace(accountant, noise_multiplier=math.exp(log_multiplier))

    def epsilon_with(log_multiplier):
        releases = accountant.num_rounds * accountant.releases_per_round
        return with_noise(log_multiplier).epsilon(releases)

    def excess(log_multiplier):  # Of the logarithm, which is nearly linear.
        return math.log(max(epsilon_with(log_multiplier), _TOLERANCE) / epsilon)

    low, high = map(math.log, _NOISE_MULTIPLIERS)
    most, least = epsilon_with(low), epsilon_with(high)
    if not least <= epsilon <= most:
        raise ValueError(
            f"`epsilon` must be from {least:.2g} to {most:.2g} here, which noise multipliers from "
            f"{_NOISE_MULTIPLIERS[1]:g} to {_NOISE_MULTIPLIERS[0]:g} give; got {epsilon:g}. "
            f"{'Raise' if epsilon < least else 'Lower'} `epsilon`, or give `noise_multiplier`."
        )
    from scipy import optimize  # dp-accounting brings it.

    root = optimize.brentq(excess, low, high, xtol=_TOLERANCE)
    # The root may be this far to either side, and epsilon must not be exceeded.
    return with_noise(root + 2 * _TOLERANCE)


def integer_norm(bits: int, clients_per_round: int, noise_multiplier: Any) -> Any:
    """Returns B: neither r uploads nor ten deviations z B of noise let a sum wrap around."""
    return (2 ** (bits - 1) - 1) / (clients_per_round + 10 * noise_multiplier)


def skellam_divergences(
    orders: Sequence[float], multiplier: float, integer_norm: float
) -> np.ndarray:
    """Returns the Renyi divergences of a sum of integers, of norm B each, with Skellam's noise.

    For whole orders the bound is from Agarwal, Kairouz and Liu, "The Skellam Mechanism for
    Differentially Private Federated Learning" (NeurIPS 2021), Corollary 4.1, where the absolute
    values of integers of norm B have a sum of B^2 at most. Other orders are interpolated, as order
    - 1 times them is convex.
    """

    def moments(whole):
        finer = (2 * whole + 5) / (4 * multiplier**4 * integer_norm**2)
        bound = whole / (2 * multiplier**2) + np.minimum(finer, 1.5 / multiplier**2)
        return (whole - 1) * bound

    each = np.asarray(orders, np.float64)
    share = each - np.floor(each)
    between = (1 - share) * moments(np.floor(each)) + share * moments(np.ceil(each))
    return between / (each - 1)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Returns epsilon for delta of N(mu, 1) against N(0, 1), and 0 if mu is not positive.

    It solves delta = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu).

    Source: Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy" (ICML 2018).
    """
    _library()
    from scipy import optimize, stats  # dp-accounting brings it.

    def excess(epsilon):
        far = math.exp(epsilon + stats.norm.logsf(epsilon / mu + mu / 2))
        return stats.norm.sf(epsilon / mu - mu / 2) - far - delta

    if mu <= 0 or excess(0.0) <= 0:
        return 0.0
    most = mu * (mu / 2 + stats.norm.isf(delta))  # Where the first part alone is delta.
    if (
        mu > _LARGE_MU
    ):  # The second part is far smaller, and float64 cannot tell such epsilons apart.
        return float(most)
    return float(optimize.brentq(excess, 0.0, most + 1))


@functools.lru_cache(maxsize=4096)
def _poisson_epsilon(num_clients, clients_per_round, multiplier, count, delta):
    one = _poisson_losses(clients_per_round / num_clients, multiplier)
    return float(one.self_compose(count).get_epsilon_for_delta(delta))


@functools.lru_cache(maxsize=16)
def _poisson_losses(rate, multiplier):
    """Returns the privacy loss distribution of one sum, with and without a client."""
    from dp_accounting.pld import privacy_loss_distribution

    # Losses are rounded up to multiples of this, which must be small beside their deviation.
    interval = min(1e-3, _LOSS_INTERVAL * rate / multiplier)
    largest = math.log1p(rate * math.expm1(1 / (2 * multiplier**2) + 9 / multiplier))
    interval = max(interval, largest / _MOST_LOSSES)
    return privacy_loss_distribution.from_gaussian_mechanism(
        multiplier, value_discretization_interval=interval, sampling_prob=rate
    )


@functools.lru_cache(maxsize=4096)
def _without_replacement_epsilon(num_clients, clients_per_round, multiplier, count, delta):
    library = _library()
    event = library.SampledWithoutReplacementDpEvent(
        num_clients, clients_per_round, library.GaussianDpEvent(multiplier / 2)
    )
    accountant = library.rdp.RdpAccountant(_ORDERS, library.NeighboringRelation.REPLACE_ONE)
    accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))


def _library() -> Any:
    """Returns dp-accounting, which only private runs need."""
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ImportError as error:
        raise ImportError(
            "differential privacy needs dp-accounting, which cannot be imported "
            f"({error}). Install it: `pip install '.[privacy]'` in a checkout."
        ) from error
    return dp_accounting
