"""Skellam's noise on secure sums: its deviation, the bound that it hides, and its epsilon."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp
from scipy import special

import tf_pflego as pfl
from tests.aggregation.probe import probe, rounds_of
from tests.engines.agreement import ENGINES
from tf_pflego.aggregation import accounting, skellam
from tf_pflego.aggregation.accounting import Accountant
from tf_pflego.core.participation import Participation
from tf_pflego.simulation.simulation import Simulation

EVERYBODY = Participation(3, 3)
NUMBERS = 200_000  # So many make the deviation of their noise known to 0.16 %.
SILENT = 1e-9  # A noise multiplier of which no Poisson number is above 0.


def noised(model, vectors, multiplier, bound, bits=24):
    vectors = np.asarray(vectors, np.float32)
    accountant = Accountant(EVERYBODY, accounting.SKELLAM, multiplier, 1e-5, 10, 1, bits)
    return skellam.wrap(probe(model, vectors, vectors.shape[1]), accountant, bound), accountant


@pytest.mark.parametrize("engine", ENGINES[:2])
def test_noise_of_the_sum_has_the_deviation_that_is_claimed(tiny_model, tiny_clients, engine):
    """It is z C, on a grid of integers, around the sum of what the clients upload."""
    vectors = np.zeros([3, NUMBERS // 2])
    vectors[:, 0] = 1.0  # Twice, so that the norm is above C.
    algorithm, accountant = noised(tiny_model, vectors, 2.5, 0.4, bits=20)
    (first, second), (record, _) = rounds_of(algorithm, tiny_clients, 2, engine)
    of_sum, again = (
        3 * np.concatenate([one.summed[1:], one.averaged[1:]]) for one in (first, second)
    )
    assert of_sum.std() == pytest.approx(2.5 * 0.4, rel=0.01)
    assert abs(of_sum.mean()) < 5 * 2.5 * 0.4 / np.sqrt(NUMBERS)
    assert abs(np.corrcoef(of_sum, again)[0, 1]) < 0.02
    # Nothing has wrapped around: 3 C / sqrt(2), give or take the noise.
    assert 3 * first.averaged[0] == pytest.approx(3 * 0.4 / np.sqrt(2), abs=6 * 2.5 * 0.4)
    assert np.abs(of_sum).max() < 6 * 2.5 * 0.4
    steps = of_sum * accountant.integer_norm / 0.4
    assert np.abs(steps - np.round(steps)).max() < 0.2
    assert record["privacy_epsilon"] == accountant.epsilon(1)
    assert record["privacy_clip_norm"] == 0.4


def test_no_upload_is_longer_than_the_bound_and_rounding_has_no_bias(
    tiny_model, tiny_clients, monkeypatch
):
    """Also where rounding at random always leaves the ball: then it is towards zero."""
    rng = np.random.default_rng(0)
    vectors = np.zeros([3, 100])
    vectors[:, 0] = np.inf, 0, np.nan  # What is not finite counts as zero.
    vectors[1] = rng.normal(size=100)  # Only client 1 uploads something.
    as_it_is = vectors[1] / np.linalg.norm(vectors[1]) / np.sqrt(2)
    for bits, is_tight in ((9, False), (9, True)):
        if is_tight:
            monkeypatch.setattr(skellam, "radius_before_rounding", lambda radius, numbers: radius)
        algorithm, accountant = noised(tiny_model, vectors, SILENT, 1.0, bits)
        (received,), (record,) = rounds_of(algorithm, tiny_clients, 1)
        assert (record["participants"], record["not_finite"]) == (3, 0)
        upload = 3 * np.concatenate(received[:2])
        assert np.linalg.norm(upload) <= 1 + 1e-6
        step = 1 / accountant.integer_norm
        wanted = np.tile(as_it_is, 2)
        if is_tight:
            expected = np.trunc(wanted / step) * step
        else:
            expected = wanted * skellam.radius_before_rounding(1 / step, 200) * step
        assert np.abs(upload - expected).max() < (1e-6 if is_tight else 1.0001 * step)
        assert is_tight or (np.abs(upload) > np.abs(expected)).any()


# The bound is for whole orders, which is felt where epsilon is large.
@pytest.mark.parametrize(("multiplier", "beyond"), [(1.0, 0.05), (5.0, 0.01), (20.0, 0.003)])
def test_epsilon_is_never_below_that_of_a_gaussian_and_nears_it(multiplier, beyond):
    """It nears the one by Renyi divergences, which is above the exact one."""
    gaussian = Accountant(EVERYBODY, "gaussian", multiplier, 1e-5, 10)  # All clients: no sampling.
    by_divergences = rdp.RdpAccountant()
    by_divergences.compose(dp_accounting.GaussianDpEvent(multiplier), 10)
    epsilons = [
        Accountant(EVERYBODY, accounting.SKELLAM, multiplier, 1e-5, 10, 1, bits).epsilon(10)
        for bits in (32, 24, 16, 10)
    ]
    assert gaussian.epsilon(10) <= epsilons[0]
    assert epsilons[1] == pytest.approx(by_divergences.get_epsilon(1e-5), rel=beyond)
    assert sorted(epsilons) == epsilons


def test_the_divergence_is_above_the_exact_one_of_one_integer():
    """Of Skellam's distribution moved by B = 1 and by 3, summed over the integers."""
    k = np.arange(-60, 61)
    for moved, multiplier in ((1, 2.0), (3, 1.5)):
        variance = (multiplier * moved) ** 2
        p, q = (special.ive(np.abs(k - shift), variance) for shift in (0, moved))
        inside = (p > 1e-250) & (q > 1e-250)
        for order in (2, 2.5, 16):
            ratios = np.exp(order * np.log(p[inside]) - (order - 1) * np.log(q[inside]))
            exact = np.log(ratios.sum()) / (order - 1)
            (bound,) = accounting.skellam_divergences([order], multiplier, moved)
            assert 0 < exact <= bound < 3 * exact


def test_private_algorithms_take_it(tiny_model, tiny_clients):
    """An epsilon asks for it by the mechanism's name; its bound is a number."""
    method, settings = probe(tiny_model, np.ones([3, 9]), 9), {"num_rounds": 2, "epsilon": 8.0}
    settings |= {"mechanism": accounting.SKELLAM, "bits": 22}
    with pytest.raises(ValueError, match=r"`clip_norm` must be a number .*; got adaptive. Give"):
        pfl.with_dp(method, EVERYBODY, **settings)
    algorithm = pfl.with_dp(method, EVERYBODY, **settings, clip_norm=0.5)
    with Simulation(algorithm, tiny_clients, EVERYBODY, "in_process") as simulation:
        records = [simulation.run_round() for _ in range(2)]
    assert [record["bytes_up"] for record in records] == [3 * -(-2 * 9 * 22 // 8)] * 2
    assert records[0]["privacy_epsilon"] < records[1]["privacy_epsilon"]
    assert 8.0 * (1 - 1e-4) <= records[1]["privacy_epsilon"] <= 8.0  # It is calibrated.


def test_what_would_make_the_noise_less_or_the_integers_too_coarse_is_refused(tiny_model):
    for participation in (Participation(3, 2, "binomial"), Participation(3, 2, client_dropout=0.1)):
        with pytest.raises(ValueError, match=r"`participation` must have the mode fixed and no dr"):
            Accountant(participation, accounting.SKELLAM, 1.0, 1e-5, 10)
    with pytest.raises(ValueError, match=r"`bits` must leave room for uploads of 20000 numbers"):
        noised(tiny_model, np.zeros([3, 10_000]), 1.0, 1.0, bits=10)
