"""The audit of private sums: its mathematics, and that it can fail."""

import math
from statistics import NormalDist

import numpy as np
import pytest

import tf_pflego as pfl
from tests.aggregation.probe import probe
from tests.comparison import assert_identical
from tests.conftest import make_clients
from tests.methods import thorough
from tf_pflego.aggregation import accounting, canaries, privacy
from tf_pflego.aggregation.accounting import Accountant
from tf_pflego.core import seeds
from tf_pflego.core.participation import Participation

SEED = 3
BOUND = 0.5
CLIENTS, CANARIES, ROUNDS, DELTA = 3, 150, 4, 1e-5
MU = 1.2  # of the Gaussian differential privacy that the noise gives


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.5])
def test_epsilon_of_two_gaussians(mu):
    """delta = E[(1 - exp(epsilon - privacy loss))+], an integral over N(mu, 1) beside N(0, 1)."""
    epsilon = accounting.gaussian_epsilon(mu, DELTA)
    x = np.linspace(mu - 12, mu + 12, 400_001)
    loss = mu * x - mu**2 / 2
    density = np.exp(-((x - mu) ** 2) / 2) / math.sqrt(2 * math.pi)
    delta = (density * np.maximum(-np.expm1(epsilon - loss), 0)).sum() * (x[1] - x[0])
    assert delta == pytest.approx(DELTA, rel=1e-3)


def test_epsilon_of_what_hides_all_is_0():
    assert [accounting.gaussian_epsilon(mu, DELTA) for mu in (0.0, 1e-6)] == [0.0, 0.0]
    assert canaries.lower_bound(np.full(50, -1.0), DELTA, 0.95) == (0.0, 0)


@pytest.mark.thorough
def test_the_bound_is_wrong_as_seldom_as_it_says_and_near_with_many_canaries():
    rng, truth = np.random.default_rng(0), accounting.gaussian_epsilon(1.5, DELTA)
    bounds = [canaries.lower_bound(rng.normal(1.5, 1, 100), DELTA, 0.9)[0] for _ in range(1000)]
    # A Clopper-Pearson bound errs on the safe side; 3 deviations of a share of 1000.
    assert 0.02 < np.mean(np.array(bounds) > truth) < 0.1 + 3 * math.sqrt(0.09 / 1000)
    near, recognised = canaries.lower_bound(rng.normal(1.5, 1, 10**6), DELTA, 0.95)
    assert 0.99 * truth < near < truth
    assert recognised / 10**6 == pytest.approx(NormalDist().cdf(1.5 - 1.645), abs=2e-3)


def trained(algorithm, count):
    clients = make_clients((2,) * count, (2,) * count, (2,) * count)
    with pfl.Simulation(algorithm, clients, Participation(count, count), "in_process") as one:
        for _ in range(ROUNDS):
            one.run_round()
        return one.server_state


def algorithm_of(model, size):
    """Clients sum and average as many numbers each, which are more than there are canaries."""
    vectors = np.random.default_rng(0).normal(size=(CLIENTS + CANARIES, size))
    return probe(model, vectors, size)


@pytest.mark.parametrize("halved", [True, thorough(False)])
def test_the_audit_fails_where_the_noise_is_half_of_what_is_claimed(
    halved, tiny_model, monkeypatch
):
    monkeypatch.setattr(seeds, "secret", lambda: np.array([1, 2]))
    if halved:
        normals = privacy.normals
        monkeypatch.setattr(privacy, "normals", lambda count, seed: normals(count, seed) / 2)
    count = CLIENTS + CANARIES
    participation = Participation(count, count)
    accountant = Accountant(participation, "gaussian", math.sqrt(ROUNDS) / MU, DELTA, ROUNDS)
    algorithm = canaries.planted(algorithm_of(tiny_model, 4000), CLIENTS, SEED)
    state = trained(privacy.wrap(algorithm, accountant, BOUND), count)
    claimed = accountant.epsilon(ROUNDS)
    scores = canaries.scores(state, CANARIES, SEED)
    bound, recognised = canaries.lower_bound(scores, DELTA, 0.99)
    # A canary is known as well as noise of this size allows, and the rest of the sum hides it
    # a little more; another direction is not known at all.
    expected = MU * (2 if halved else 1)
    assert 0.85 * expected < scores.mean() < expected + 4 / math.sqrt(CANARIES)
    others = canaries.scores(state, CANARIES, SEED + 1)
    assert abs(others.mean()) < 4 / math.sqrt(CANARIES)
    assert others.std() == pytest.approx(1, abs=0.15)
    assert recognised == (scores > NormalDist().inv_cdf(0.95)).sum()
    assert (bound > claimed) == halved
    assert bound > 0.5 * accounting.gaussian_epsilon(expected, DELTA)


def test_without_canaries_no_bit_changes(tiny_model):
    plain = algorithm_of(tiny_model, 50)
    planted = trained(canaries.planted(plain, CLIENTS, SEED), CLIENTS)
    assert_identical(planted.method, trained(plain, CLIENTS))
