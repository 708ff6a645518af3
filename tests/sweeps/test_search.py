"""Searches of a range by Optuna."""

import dataclasses
import shutil

import pytest

from tests.sweeps.conftest import rows_of
from tf_pflego.sweeps import Experiment, Range, grid, runner, store

# Optuna is installed with the current line.
pytestmark = pytest.mark.usefixtures("traced_once")
SMALL = {"num_clients": 10, "clients_per_round": 4, "num_rounds": 3, "local_steps": 5}


def experiment(rates, digits_dir, **how):
    base = SMALL | {"client_learning_rate": rates, "data_dir": digits_dir}
    how["show"] = lambda sweep: {}  # Pictures would take most of the time.
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


def test_a_search_keeps_its_trials_where_other_cells_are_run(searched, tmp_path):
    searching, whole = searched
    both = [*searching.cells, {"algorithm": "local", "client_learning_rate": (0.1, 0.2)}]
    shutil.copytree(whole.path, tmp_path / "sweep")
    again = runner.sweep(
        dataclasses.replace(searching, cells=both), tmp_path / "sweep", only=["local"]
    )
    assert [row["run"] for row in again.tuning_rows] == 10 * ["fedavg"] + 2 * ["local"]
