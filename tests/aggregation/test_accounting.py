"""Epsilon against dp-accounting called by hand, and against published figures."""

import dataclasses
import math
import sys

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation, rdp

from tests.methods import thorough
from tf_pflego.aggregation import accounting
from tf_pflego.aggregation.accounting import Accountant, calibrated
from tf_pflego.core.participation import Participation

ADDED, REPLACED = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE


def _by_hand(event, count, relation=ADDED, delta=1e-5):
    accountant = rdp.RdpAccountant(neighboring_relation=relation)
    accountant.compose(event, count)
    return accountant.get_epsilon(delta)


def _sampled(rate, noise_multiplier):
    return dp_accounting.PoissonSampledDpEvent(
        rate, dp_accounting.GaussianDpEvent(noise_multiplier)
    )


@pytest.mark.parametrize(
    ("mode", "clients_per_round", "mechanism", "rounds", "expected"),
    [
        ("binomial", 20, "gaussian", 30, lambda: _by_hand(_sampled(0.2, 3.0), 30)),
        (
            "fixed",
            20,
            "gaussian",
            30,
            # Of one client for another the sum moves by 2 C.
            lambda: _by_hand(
                dp_accounting.SampledWithoutReplacementDpEvent(
                    100, 20, dp_accounting.GaussianDpEvent(1.5)
                ),
                30,
                REPLACED,
            ),
        ),
        ("fixed", 100, "gaussian", 30, lambda: _by_hand(dp_accounting.GaussianDpEvent(3.0), 30)),
        # 31 rounds of 20 of 100 clients are six or seven of one client; 50 are ten.
        ("cyclic", 20, "gaussian", 31, lambda: _by_hand(dp_accounting.GaussianDpEvent(3.0), 7)),
        ("cyclic", 20, "banded", 50, lambda: _by_hand(dp_accounting.GaussianDpEvent(3.0), 1)),
        (
            "cyclic",
            20,
            "banded",
            31,
            lambda: _by_hand(dp_accounting.GaussianDpEvent(3.0 * math.sqrt(10 / 7)), 1),
        ),
        ("fixed", 20, "local", 30, lambda: _by_hand(dp_accounting.GaussianDpEvent(1.5), 30)),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_epsilon_is_that_of_dp_accounting(mode, clients_per_round, mechanism, rounds, expected):
    participation = Participation(100, clients_per_round, mode)
    accountant = Accountant(participation, mechanism, 3.0, 1e-5, 50)
    assert accountant.epsilon(rounds) == pytest.approx(expected(), rel=2e-3)


@pytest.mark.parametrize(
    ("num_clients", "clients_per_round", "mode", "noise_multiplier", "rounds", "published"),
    [
        # TensorFlow Privacy 0.9.0, compute_dp_sgd_privacy_lib_test.py: multiplier 2 with
        # microbatches, which is 1, over 5 epochs of 10,000 examples in batches of 64; by the bound
        # of today. Once per epoch, and with Poisson sampling.
        (10_000, 10_000, "fixed", 1.0, 5, 13.376),
        (10_000, 64, "binomial", 1.0, 782, 1.616),
    ],
)
def test_epsilon_is_the_published_one(
    num_clients, clients_per_round, mode, noise_multiplier, rounds, published
):
    participation = Participation(num_clients, clients_per_round, mode)
    accountant = Accountant(participation, "gaussian", noise_multiplier, 1e-6, rounds)
    assert round(accountant.epsilon(rounds), 3) == published


@pytest.mark.parametrize(
    ("num_clients", "clients_per_round", "noise_multiplier", "rounds", "published"),
    [
        # Abadi et al., "Deep Learning with Differential Privacy" (2016), section 3.2: q = 0.01.
        (60_000, 600, 4.0, 10_000, 1.26),
        # TensorFlow Privacy, tutorials/README.md, MNIST in batches of 256 for 15, 60, 45 epochs.
        (60_000, 256, 1.3, math.ceil(15 * 60_000 / 256), 1.19),
        (60_000, 256, 1.1, math.ceil(60 * 60_000 / 256), 3.01),
        (60_000, 256, 0.7, math.ceil(45 * 60_000 / 256), 7.10),
    ],
)
def test_divergences_give_the_published_epsilon_of_the_moments_accountant(
    num_clients, clients_per_round, noise_multiplier, rounds, published
):
    """These figures are from the bound of that time, min of the divergence + log(1/delta)/(a-1)."""
    participation = Participation(num_clients, clients_per_round, "binomial")
    accountant = Accountant(participation, "gaussian", noise_multiplier, 1e-5, rounds)
    orders = np.array(accounting._ORDERS)
    bounds = rounds * accountant._divergences() - math.log(1e-5) / (orders - 1)
    assert round(float(bounds.min()), 2) == published


@pytest.mark.parametrize(
    ("num_clients", "clients_per_round", "mode", "rounds", "multipliers"),
    [
        thorough(100, 20, "binomial", 200, {1: 11.6, 2: 6.2, 4: 3.5, 8: 2.0}),
        (2000, 2000, "fixed", 40, {0.25: 92.13, 1: 25.6, 2: 13.6, 4: 7.3, 8: 4.0}),
        thorough(10_000, 100, "binomial", 1000, {1: 1.5, 2: 1.0, 4: 0.8, 8: 0.6}),
    ],
)
def test_the_least_noise_for_epsilon(num_clients, clients_per_round, mode, rounds, multipliers):
    participation = Participation(num_clients, clients_per_round, mode)
    for epsilon, multiplier in multipliers.items():
        accountant = calibrated(participation, "gaussian", epsilon, 1e-5, rounds)
        assert accountant.noise_multiplier == pytest.approx(multiplier, abs=0.06)
        assert epsilon * (1 - 1e-4) < accountant.epsilon(rounds) <= epsilon


def test_a_small_epsilon_is_not_limited_by_the_orders():
    """The tightest order of plain Gaussian noise is far below the largest, and near one of them."""
    accountant = calibrated(Participation(2000, 2000), "gaussian", 0.25, 1e-5, 40)
    many = np.arange(2, 2000, 0.5)
    finer = rdp.compute_epsilon(many, 20 * many / accountant.noise_multiplier**2, 1e-5)[0]
    assert finer == pytest.approx(accountant.epsilon(40), rel=1e-3)


def test_epsilon_grows_with_rounds_and_falls_with_noise_and_delta():
    accountant = Accountant(Participation(100, 10, "binomial"), "gaussian", 1.5, 1e-5, 40)
    grown = [accountant.epsilon(rounds) for rounds in range(41)]
    assert grown[0] == 0
    assert (np.diff(grown) > 0).all()
    for change in ({"noise_multiplier": 1.6}, {"delta": 1e-4}):
        assert dataclasses.replace(accountant, **change).epsilon(40) < grown[-1]


def test_drop_out_amplifies_nothing():
    accountants = [
        Accountant(Participation(100, 10, "binomial", dropout_rate=p), "gaussian", 1.5, 1e-5, 40)
        for p in (0.0, 0.9)
    ]
    assert accountants[0].epsilon(40) == accountants[1].epsilon(40)


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
            calibrated(Participation(9, 9), "gaussian", epsilon, 1e-5, 4)


def test_an_absent_dp_accounting_is_an_error_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    accountant = Accountant(Participation(9, 9), "gaussian", 1.0, 1e-5, 4)
    with pytest.raises(ImportError, match=r"pip install 'tf_pflego\[privacy\]'"):
        accountant.epsilon(4)
