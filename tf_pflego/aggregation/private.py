"""Differential privacy by any of the mechanisms."""

from __future__ import annotations

from typing import Any

from tf_pflego.aggregation import accounting, privacy, secure, skellam
from tf_pflego.aggregation.accounting import Accountant
from tf_pflego.aggregation.declared import Declared
from tf_pflego.aggregation.privacy import ADAPTIVE
from tf_pflego.core.algorithm import Algorithm
from tf_pflego.core.participation import FIRST_ROUND, Participation
from tf_pflego.system import log, values

_WITHOUT_NOISE = "whether an upload was longer would be uploaded without noise"
_NOT_ADAPTIVE = {
    accounting.SKELLAM: _WITHOUT_NOISE,
    accounting.LOCAL: _WITHOUT_NOISE,
    accounting.BANDED: "noise that earlier rounds cancel would not fit a bound that falls",
}
_LEAST_NOISE = 1e-9  # No accountant has a meaningful epsilon for less.


def with_dp(
    algorithm: Algorithm,
    participation: Participation,
    *,
    num_rounds: int,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    delta: float = 1e-5,
    clip_norm: float | str = ADAPTIVE,
    mechanism: str = accounting.MECHANISMS[0],
    bits: int = secure.BITS,
) -> Algorithm:
    """Returns an algorithm with user-level differential privacy (see `aggregation.privacy`).

    Args:
      algorithm: A method that only adds up uploads over the participants.
      participation: The sampling of participants, which the claim depends on: `binomial` amplifies
        it most. A simulation with another participation is an error.
      num_rounds: T, the rounds of the claimed epsilon.
      epsilon: The epsilon after T rounds. The noise is the least that gives it.
      noise_multiplier: z, the deviation of the noise over the bound, in place of `epsilon`.
      delta: The probability of a violation of epsilon, well below 1 / I.
      clip_norm: C, the largest norm of an upload: the difference of weights of an averaging method,
        and the gradient of a client's loss of a method that sums gradients. Or adaptive, for the
        mechanism gaussian.
      mechanism: gaussian; banded, which needs the participation `cyclic`; skellam, noise that
        exactly r participants add to integers of secure sums; or local.
      bits: The bits of skellam's integers (see `secure`).

    Raises:
      TypeError: `algorithm` or `participation` is of another class.
      ValueError: An argument does not take its value, or both or neither of `epsilon` and
        `noise_multiplier` are given, or the server of the method must see single uploads.
      ImportError: dp-accounting is not installed.

    Example, explained in docs/privacy.md:
      >>> sampling = pfl.Participation(num_clients=3, clients_per_round=2, mode="binomial")
      >>> pfl.with_dp(algorithm, sampling, num_rounds=10, noise_multiplier=1.0, clip_norm=1.0)
      Algorithm(pflego, 1 exchange per round, serves personalized)
    """
    values.instance("algorithm", algorithm, Algorithm, "Make one with `build_algorithm`.")
    remedy = "Make one: `Participation(num_clients, clients_per_round)`."
    values.instance("participation", participation, Participation, remedy)
    numbers = num_rounds, epsilon, noise_multiplier, delta, mechanism, bits
    accountant = accountant_of(participation, len(algorithm.exchanges), *numbers)
    if accountant.delta * participation.num_clients >= 1:
        log.warning(
            f"`delta` is {accountant.delta:g}, and one in {participation.num_clients} clients may "
            "be without any privacy then: a mechanism that shows one of them to everybody has this "
            "delta and epsilon 0. Choose one well below 1 / I"
        )
    bound = clip_norm
    if not values.is_word(bound, ADAPTIVE):
        bound = values.number("clip_norm", clip_norm, words=(ADAPTIVE,), above=0)
    if bound == ADAPTIVE and mechanism != accounting.MECHANISMS[0]:
        raise ValueError(
            f"`clip_norm` must be a number for the mechanism {mechanism}, since "
            f"{_NOT_ADAPTIVE[mechanism]}; got adaptive. Give a number."
        )
    if any(exchange.cohort == FIRST_ROUND for exchange in algorithm.exchanges):
        raise ValueError(
            "`algorithm` must draw participants for each of its exchanges, as the accounting of "
            f"privacy assumes; got {algorithm.name}, which begins with an exchange with all "
            "clients. Choose another method."
        )
    if mechanism == accounting.SKELLAM:
        return skellam.wrap(algorithm, accountant, float(bound))
    return privacy.wrap(algorithm, accountant, bound)


def claimed(run: Any) -> dict[str, Any]:
    """Returns the arguments of `private` with the claims of a private run."""
    return {
        "num_rounds": run.num_rounds,
        "epsilon": run.dp_epsilon or None,
        "noise_multiplier": run.dp_noise_multiplier or None,
        "delta": run.dp_delta,
        "mechanism": run.dp_mechanism,
        "bits": run.secure_sum_bits or secure.BITS,
    }


def _asked_for(algorithm, run, participation):
    if not run.is_private:
        return algorithm
    return with_dp(algorithm, participation, clip_norm=run.clip_norm, **claimed(run))


_NAMED = {name: f"dp_{name}" for name in ("epsilon", "delta", "noise_multiplier", "mechanism")}
DECLARED = Declared(3, _asked_for, _NAMED | {"bits": "secure_sum_bits"})


def accountant_of(
    participation: Participation,
    num_exchanges: int,
    num_rounds: int,
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float,
    mechanism: str,
    bits: int,
) -> Accountant:
    """Returns the accountant of a method with this number of exchanges (see `private`)."""
    values.one_of("mechanism", mechanism, accounting.MECHANISMS)
    delta = values.number("delta", delta, above=0, below=1)
    num_rounds = values.whole("num_rounds", num_rounds, 1)
    bits = values.whole("bits", bits, 2, secure.MOST_BITS)
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError(
            "one of `epsilon` and `noise_multiplier` must be given; got "
            f"{'neither' if epsilon is None else 'both'}. Give one of them."
        )
    fields = delta, num_rounds, num_exchanges, bits
    if noise_multiplier is not None:
        z = values.number("noise_multiplier", noise_multiplier, at_least=_LEAST_NOISE)
        return Accountant(participation, mechanism, z, *fields)
    epsilon = values.number("epsilon", epsilon, above=0)
    return accounting.calibrated(Accountant(participation, mechanism, 1.0, *fields), epsilon)
