"""A private simulation counts what it has released, also what no checkpoint has."""

import numpy as np
import pytest

import tf_pflego as pfl
from tests.methods import thorough
from tf_pflego.aggregation.accounting import Accountant
from tf_pflego.simulation.records import LEDGER

SETTINGS = {"num_rounds": 5, "noise_multiplier": 2.0, "clip_norm": 1.0}


@pytest.fixture(name="opened")
def opened_fixture(tiny_model, tiny_clients):
    drawn = pfl.Participation(tiny_clients.num_clients, tiny_clients.num_clients)
    private = pfl.with_dp(pfl.build_algorithm("pflego", tiny_model), drawn, **SETTINGS)
    return lambda: pfl.Simulation(private, tiny_clients, drawn, "in_process")


def dies_before_its_checkpoint(simulation, *_):
    raise KeyboardInterrupt


def without(simulation, lost):
    """Lets a client's upload be lost, so that the sum is another one."""
    run = simulation._engine.run_exchange

    def exchange(exchange, message, cohort, *more):
        here = ~np.isin(cohort.ids, lost)
        cohort = cohort._replace(ids=cohort.ids[here], seeds=cohort.seeds[here])
        return run(exchange, message, cohort, *more)._replace(finite=here)

    simulation._engine.run_exchange = exchange


@pytest.mark.parametrize("lost", [thorough(()), (2,)])
def test_a_sum_that_was_sent_before_its_checkpoint_is_counted(opened, lost, tmp_path):
    with opened() as first:
        first.save(tmp_path)
        first._engine.evaluate = dies_before_its_checkpoint  # It sends the new weights.
        with pytest.raises(KeyboardInterrupt):
            first.run_round(evaluate=True)
    assert (tmp_path / LEDGER).stat().st_mode & 0o777 == 0o600
    with opened() as again:
        again.restore(tmp_path)
        without(again, lost)
        records = [again.run_round() for _ in range(2)]
    more = len(lost)  # The same sum again releases nothing new.
    assert [one["privacy_releases"] for one in records] == [1 + more, 2 + more]
    accountant = Accountant(pfl.Participation(3, 3), "gaussian", 2.0, 1e-5, 5)
    for record in records:
        epsilon = accountant.epsilon(record["privacy_releases"])
        assert record["privacy_epsilon"] == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.thorough
def test_an_older_checkpoint_forgets_nothing(opened, tmp_path):
    with opened() as simulation:
        simulation.save(tmp_path)
        whole = [simulation.run_round() for _ in range(3)]
    with opened() as again:
        again.restore(tmp_path)
        counted = [again.run_round() for _ in range(3)]
        assert [one["privacy_releases"] for one in counted] == [3, 3, 3]
        for pair in zip(
            again.server_state.method.theta, simulation.server_state.method.theta, strict=True
        ):
            np.testing.assert_array_equal(*pair)
    assert [one["privacy_releases"] for one in whole] == [1, 2, 3]


def test_a_simulation_without_privacy_has_none(tiny_model, tiny_clients, tmp_path):
    drawn = pfl.Participation(3, 3)
    method = pfl.build_algorithm("pflego", tiny_model)
    with pfl.Simulation(method, tiny_clients, drawn, "in_process") as simulation:
        simulation.save(tmp_path)
        simulation.run_round()
        simulation.save(tmp_path)
    assert not (tmp_path / LEDGER).exists()
