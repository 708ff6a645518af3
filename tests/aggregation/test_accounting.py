"""Epsilon against dp-accounting called by hand, and what it may never do."""

import dataclasses
import math
import sys

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation, pld, rdp

from tests.methods import thorough
from tf_pflego.aggregation.accounting import Accountant, calibrated
from tf_pflego.core.participation import Participation

DELTA = 1e-5


def by_losses(event, count):
    """Returns epsilon by privacy loss distributions, on dp-accounting's own grid."""
    accountant = pld.PLDAccountant()
    accountant.compose(event, count)
    return accountant.get_epsilon(DELTA)


def sampled(rate, multiplier):
    return dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier))


def gaussian(multiplier):
    return dp_accounting.GaussianDpEvent(multiplier)


@pytest.mark.parametrize(
    ("drawn", "mechanism", "multiplier", "rounds", "expected", "by_hand"),
    [
        ((1000, 100, "binomial"), "gaussian", 3.24, 200, 1.826, (sampled(0.1, 3.24), 200)),
        thorough((100, 20, "binomial"), "gaussian", 0.965, 20, 7.041, (sampled(0.2, 0.965), 20)),
        ((2000, 2000), "gaussian", 25.6, 40, 0.914, (gaussian(25.6), 40)),
        ((1000, 100, "cyclic"), "gaussian", 3.0, 200, 6.999, (gaussian(3.0), 20)),
        ((1000, 100, "cyclic"), "banded", 1.5, 200, 2.753, (gaussian(1.5), 1)),
        ((1000, 100), "local", 60.0, 200, 1.866, (gaussian(30.0), 200)),
        # Small losses, for which the grid must be finer than for large ones.
        ((100, 20, "binomial"), "gaussian", 100.0, 1000, 0.2069, (sampled(0.2, 100.0), 1000)),
        # 31 rounds of 20 of 100 clients are seven of one client at most; 50, for which the banded
        # noise is made, are ten.
        ((100, 20, "cyclic"), "gaussian", 3.0, 31, None, (gaussian(3.0), 7)),
        ((100, 20, "cyclic"), "banded", 3.0, 31, None, (gaussian(3.0 * math.sqrt(10 / 7)), 1)),
    ],
)
def test_epsilon_is_that_of_dp_accounting(drawn, mechanism, multiplier, rounds, expected, by_hand):
    accountant = Accountant(Participation(*drawn), mechanism, multiplier, DELTA, max(rounds, 50))
    epsilon = accountant.epsilon(rounds)
    assert expected is None or epsilon == pytest.approx(expected, rel=2e-3)
    assert epsilon == pytest.approx(by_losses(*by_hand), rel=2e-3)
    assert epsilon <= accountant.epsilon(rounds, amplified=False)


@pytest.mark.parametrize(
    ("drawn", "multiplier", "rounds", "is_sampled"),
    [((100, 20), 3.0, 30, False), ((1000, 100), 6.3, 200, True)],
)
def test_of_the_bounds_for_a_fixed_number_the_smaller_counts(drawn, multiplier, rounds, is_sampled):
    """One is of draws without replacement, where a sum moves by 2 C; one is of no amplification."""
    accountant = Accountant(Participation(*drawn), "gaussian", multiplier, DELTA, rounds)
    event = dp_accounting.SampledWithoutReplacementDpEvent(*drawn, gaussian(multiplier / 2))
    replaced = rdp.RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    replaced.compose(event, rounds)
    together = gaussian(multiplier / math.sqrt(rounds))  # As private as all rounds are.
    bounds = replaced.get_epsilon(DELTA), by_losses(together, 1)
    assert (bounds[0] < bounds[1]) == is_sampled
    assert accountant.epsilon(rounds) == pytest.approx(min(bounds), rel=2e-3)
    # Without amplification a client takes part in all rounds, however participants are drawn.
    for mode in ("fixed", "binomial"):
        known = dataclasses.replace(accountant, participation=Participation(*drawn, mode))
        assert known.epsilon(rounds, amplified=False) == pytest.approx(bounds[1], rel=2e-3)


@pytest.mark.parametrize(
    ("drawn", "rounds", "epsilon"),
    [((2000, 2000), 40, 0.25), thorough((100, 20, "binomial"), 20, 8.0)],
)
def test_the_noise_is_the_least_for_epsilon(drawn, rounds, epsilon):
    noised = Accountant(Participation(*drawn), "gaussian", 1.0, DELTA, rounds)
    accountant = calibrated(noised, epsilon)
    assert epsilon * (1 - 1e-3) < accountant.epsilon(rounds) <= epsilon
    smaller = dataclasses.replace(accountant, noise_multiplier=0.999 * accountant.noise_multiplier)
    assert smaller.epsilon(rounds) > epsilon


def test_epsilon_grows_with_rounds_and_falls_with_noise_and_delta_but_not_with_drop_out():
    accountant = Accountant(Participation(100, 10, "binomial"), "gaussian", 1.5, 1e-5, 40)
    grown = [accountant.epsilon(rounds) for rounds in (0, 1, 2, 3, 39, 40)]
    assert grown[0] == 0
    assert (np.diff(grown) > 0).all()
    for change in ({"noise_multiplier": 1.6}, {"delta": 1e-4}):
        assert dataclasses.replace(accountant, **change).epsilon(40) < grown[-1]
    dropping = Participation(100, 10, "binomial", client_dropout=0.9)
    assert dataclasses.replace(accountant, participation=dropping).epsilon(40) == grown[-1]


def test_several_exchanges_of_a_round_are_several_releases():
    """Of a cohort that is drawn once, as of one release whose noise is smaller by their root."""
    participation = Participation(100, 10, "binomial")
    both = Accountant(participation, "gaussian", 2.0, 1e-5, 40, releases_per_round=2)
    one = Accountant(participation, "gaussian", 2.0 / math.sqrt(2), 1e-5, 40)
    assert both.epsilon(60) == one.epsilon(30)
    # Other draws for each exchange tell less.
    assert Accountant(participation, "gaussian", 2.0, 1e-5, 40).epsilon(60) < both.epsilon(60)


def test_what_cannot_be_accounted_for_is_refused():
    with pytest.raises(ValueError, match=r"mode binomial, fixed or cyclic .* got range. Set"):
        Accountant(Participation(9, 1, "range", (1, 3)), "gaussian", 1.0, 1e-5, 4)
    with pytest.raises(ValueError, match=r"mode cyclic for the mechanism banded; got fixed. Set"):
        Accountant(Participation(9, 3), "banded", 1.0, 1e-5, 4)
    with pytest.raises(ValueError, match="`mechanism` must be one of gaussian, banded, skell"):
        Accountant(Participation(9, 3), "laplace", 1.0, 1e-5, 4)
    for epsilon, remedy in ((1e-4, "Raise"), (1e9, "Lower")):
        with pytest.raises(ValueError, match=f"`epsilon` must be from .* got .* {remedy} `epsil"):
            calibrated(Accountant(Participation(9, 9), "gaussian", 1.0, 1e-5, 4), epsilon)


def test_an_absent_dp_accounting_is_an_error_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    accountant = Accountant(Participation(9, 9), "gaussian", 1.0, 1e-5, 4)
    with pytest.raises(ImportError, match=r"pip install '\.\[privacy\]'"):
        accountant.epsilon(4)
