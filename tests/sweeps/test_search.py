"""Searches of a range by Optuna, and what ends trials early."""

import statistics

import pytest

from tests.sweeps.conftest import rows_of
from tf_pflego.sweeps import Experiment, Range, grid, runner, store
from tf_pflego.sweeps.search import MedianPruning

# Optuna is installed with the current line.

SMALL = {"num_clients": 10, "clients_per_round": 4, "num_rounds": 12, "local_steps": 20}


def experiment(rates, digits_dir, **how):
    base = SMALL | {"client_learning_rate": rates, "data_dir": digits_dir}
    return Experiment(grid(algorithm="fedavg"), base, tuning_seeds=(10,), **how)


@pytest.fixture(scope="module")
def searched(tmp_path_factory, digits_dir):
    pytest.importorskip("optuna")
    searching = experiment(Range(1e-3, 1, log=True), digits_dir, trials=10)
    return searching, runner.sweep(searching, tmp_path_factory.mktemp("searched") / "sweep")


def test_a_search_that_was_interrupted_goes_on_with_the_same_proposals(searched, tmp_path):
    searching, whole = searched

    def stop_in_the_fifth_trial():
        if len(list(tmp_path.glob("sweep/runs/fedavg/*=*"))) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.sweep(searching, tmp_path / "sweep", between_steps=stop_in_the_fifth_trial)
    again = runner.sweep(searching, tmp_path / "sweep")
    for name in (store.TUNING, store.RUNS):
        assert rows_of(whole.path, name) == rows_of(again.path, name)


@pytest.mark.parametrize(("statistic", "sign"), [("accuracy", 1), ("perplexity", -1)])
@pytest.mark.parametrize(
    ("values", "ended_at"),
    [((0.3, 0.4, 0.5, 0.6), None), ((0.3, 0.3, 0.3, 0.6), 3), ((0.2, 0.2, 0.9, 0.9), 2)],
)
def test_a_trial_ends_when_it_is_worse_than_the_median_of_the_others(
    values, ended_at, statistic, sign
):
    others = [
        [[number, 0.1 * number + shift] for number in (1, 2, 3, 4)] for shift in (0, 0, 0.2, 0.1)
    ]
    for number in (2, 3):
        median = statistics.median(dict(map(tuple, curve))[number] for curve in others)
        assert median == pytest.approx(0.1 * number + 0.05)
    others = [[[number, sign * value] for number, value in curve] for curve in others]
    pruning = MedianPruning(others, 5)
    name = f"validation_{statistic}/client_mean"
    rounds = [{"round": number, name: sign * one} for number, one in enumerate(values, 1)]
    ends = [record["round"] for record in rounds if pruning.after_round(None, record)]
    assert ends[:1] == ([] if ended_at is None else [ended_at])
    # A run that goes on knows of its rounds what one in one go does.
    assert MedianPruning(others, 5).on_run_begin(None, rounds) == (ended_at is not None)


def test_three_others_are_too_few_to_end_a_trial():
    others = [[[1, 0.9]]] * 3
    assert not MedianPruning(others, 1).after_round(
        None, {"round": 1, "validation_accuracy/client_mean": 0.1}
    )
