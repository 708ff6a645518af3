import itertools
import math

import numpy as np
import pytest

from tf_pflego.core.participation import Participation

# How many take part in some round, where it is not a matter of chance for each client.
NUMBERS = {"fixed": {6}, "range": {*range(2, 11)}}


@pytest.mark.parametrize(
    "participation",
    [
        Participation(20, 6),
        Participation(20, 6, "binomial"),
        Participation(20, 1, "range", (2, 10)),
        Participation(20, 8, client_dropout=0.25),
        Participation(20, 12, "binomial", client_dropout=0.5),
        Participation(20, 8, "cyclic", client_dropout=0.25),
    ],
    ids=lambda p: f"{p.mode}, {p.client_dropout}",
)
def test_every_client_takes_part_with_probability_r_over_i(participation):
    rounds, counts, sizes = 2500, np.zeros(20), set()
    for number in range(1, rounds + 1):
        ids = participation.draw(1, number)
        assert (np.diff(ids) > 0).all()
        counts[ids] += 1
        sizes.add(len(ids))
    if participation.mode in NUMBERS and not participation.client_dropout:
        assert sizes == NUMBERS[participation.mode]
    assert participation.federation.mean_clients_per_round == 6
    assert participation.federation.participation_scale == 20 / 6
    # 5 standard deviations of a binomial proportion. The seed fixes the draws, so the outcome does
    # not change from run to run.
    np.testing.assert_allclose(counts / rounds, 6 / 20, atol=5 * np.sqrt(0.3 * 0.7 / rounds))


def test_binomial_has_the_spread_of_independent_draws():
    sizes = [len(Participation(20, 6, "binomial").draw(2, number)) for number in range(1, 4001)]
    assert abs(np.var(sizes) - 20 * 0.3 * 0.7) < 0.4
    assert any(not len(Participation(20, 1, "binomial").draw(2, k)) for k in range(1, 50))


@pytest.mark.parametrize(("num_clients", "clients_per_round"), [(20, 5), (20, 6), (7, 5), (4, 4)])
def test_cyclic_participants_come_back_after_as_many_rounds(num_clients, clients_per_round):
    cyclic, rounds = Participation(num_clients, clients_per_round, "cyclic"), 50
    taken = np.zeros((rounds, num_clients), bool)
    for number in range(1, rounds + 1):
        ids = cyclic.draw(3, number)
        assert (np.diff(ids) > 0).all()
        taken[number - 1, ids] = True
    assert (taken.sum(axis=1) == clients_per_round).all()
    ratio = num_clients / clients_per_round
    for client in taken.T:
        gaps = np.diff(np.flatnonzero(client))
        assert {*gaps.tolist()} <= {math.floor(ratio), math.ceil(ratio)}
        assert client.sum() in (math.floor(rounds / ratio), math.ceil(rounds / ratio))
    # Who is where on the circle follows from the seed alone, for each cohort.
    if clients_per_round < num_clients:
        others = cyclic.draw(4, 1), cyclic.draw(3, 1, "gradients")
        assert all(other.tolist() != cyclic.draw(3, 1).tolist() for other in others)


def test_a_round_is_a_pure_function_of_seed_and_number():
    drawn = [Participation(100, 20).draw(3, number).tolist() for number in (5, 6, 5)]
    assert drawn[0] == drawn[2] != drawn[1]
    assert Participation(100, 20).draw(4, 5).tolist() != drawn[0]
    # Exchanges that name the same cohort have the same survivors.
    for one in (Participation(100, 20), Participation(30, 30, client_dropout=0.5)):
        first, again = (one.draw(3, 5, "gradients").tolist() for _ in range(2))
        assert first == again != one.draw(3, 5).tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((50, 80), r"must be in \[1, num_clients=50\]; got 80. Lower `clients_per_round`"),
        ((50, 5, "some"), "one of fixed, binomial, range, cyclic; got 'some'"),
        ((50, 5, "range"), "least,most with 0 <= least <= most <= num_clients=50"),
        ((50, 5, "range", (0, 0)), "most >= 1"),
        ((50, 5, "fixed", None, 1.0), "`client_dropout` must be below 1; got 1.0"),
        ((50, 5, "fixed", None, -0.1), "`client_dropout` must be at least 0; got -0.1"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Participation(*arguments)


def test_those_who_are_drawn_report_or_drop_out():
    """Whatever the rate, the same clients are drawn; they drop out independently."""
    rounds, rate = 1500, 0.3
    everybody, some = Participation(20, 3), Participation(20, 3, client_dropout=rate)
    patterns = dict.fromkeys(itertools.product((False, True), repeat=3), 0)
    for number in range(1, rounds + 1):
        drawn = everybody.draw(5, number)
        reporting, dropped = some.draw(5, number), some.dropped(5, number)
        np.testing.assert_array_equal(np.sort([*reporting, *dropped]), drawn)
        patterns[tuple(np.isin(drawn, dropped).tolist())] += 1
        assert everybody.dropped(5, number).size == 0
    for pattern, count in patterns.items():
        share = rate ** sum(pattern) * (1 - rate) ** (3 - sum(pattern))
        spread = np.sqrt(share * (1 - share) / rounds)
        assert abs(count / rounds - share) < 5 * spread, pattern
