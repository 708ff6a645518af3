"""Searches of a range by Optuna."""

import dataclasses
import shutil

import pytest

from tests.sweeps.conftest import rows_of
from tf_pflego.sweeps import Experiment, Range, grid, runner, store

# Optuna is installed with the current line.
pytestmark = pytest.mark.usefixtures("traced_once")
SMALL = {"num_clients": 10, "clients_per_round": 4, "num_rounds": 2, "local_steps": 5}
SMALL |= {"partition": "dirichlet", "label_space": "global"}
TRIALS = 4  # The first two are random.


@pytest.fixture(scope="module")
def searched(tmp_path_factory, digits_dir):
    """A search for a setting with which nothing is traced anew."""
    pytest.importorskip("optuna")
    base = SMALL | {"dirichlet_alpha": Range(0.1, 10, log=True), "data_dir": digits_dir}
    how = {"tuning_seeds": (10,), "trials": TRIALS, "show": lambda sweep: {}}  # No pictures.
    searching = Experiment(grid(algorithm="fedavg"), base, **how)
    return searching, runner.sweep(searching, tmp_path_factory.mktemp("searched") / "sweep")


def test_a_search_that_was_interrupted_goes_on_with_the_same_proposals(searched, tmp_path):
    searching, whole = searched

    def stop_in_the_third_trial():
        if len(list(tmp_path.glob("sweep/runs/fedavg/*=*"))) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.make(searching, tmp_path / "sweep", between_steps=stop_in_the_third_trial)
    again = runner.sweep(searching, tmp_path / "sweep")
    for name in (store.TUNING, store.RUNS):
        assert rows_of(whole.path, name) == rows_of(again.path, name)


def test_a_search_keeps_its_trials_where_other_cells_are_run(searched, tmp_path):
    searching, whole = searched
    both = [*searching.cells, {"algorithm": "local", "dirichlet_alpha": (0.2, 2)}]
    shutil.copytree(whole.path, tmp_path / "sweep")
    experiment = dataclasses.replace(searching, cells=both)
    local = [cell for cell in experiment.planned if cell.name == "local"]
    again = runner.make(experiment, tmp_path / "sweep", cells=local)
    assert [row["run"] for row in again.tuning_rows] == TRIALS * ["fedavg"] + 2 * ["local"]
