"""What the results in the repository must show, and that they are made as the tools make them."""

import json
import pathlib
import shutil

import cell_runs
import experiments
import experiments_pgfed
import experiments_shared_head
import numpy as np
import pytest
import reproduce
import tables
import tables_pgfed
import tables_shared_head

from tf_pflego import algorithms

pytestmark = pytest.mark.same_on_both_lines

RESULTS = pathlib.Path(__file__).parents[2] / "results"
WITH_RUNS = [name for name in experiments.TITLES if (RESULTS / f"{name}.csv").exists()]
LAST_ROUNDS = 10
# The mean of ten numbers in another order of summation.
SUMMATION_TOLERANCE = 1e-12
# clients.csv has six digits of an accuracy.
SIX_DIGITS = 1e-6


@pytest.mark.parametrize("experiment", WITH_RUNS)
def test_committed_tables_are_those_of_the_committed_runs(experiment, tmp_path):
    """They agree byte for byte, and no raw run is needed."""
    shutil.copy(RESULTS / f"{experiment}.csv", tmp_path)
    rows = tables.read_runs(tmp_path, experiment)
    page = reproduce.page_of(experiment, RESULTS)
    assert (RESULTS / f"{experiment}.md").read_text(encoding="utf-8") == page
    tables.write(tmp_path / "again.csv", rows)
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / f"{experiment}.csv").read_bytes()


@pytest.mark.parametrize("experiment", WITH_RUNS)
def test_committed_curves_and_clients_are_those_of_the_committed_runs(experiment):
    rows = tables.read_runs(RESULTS, experiment)
    curves = tables.read_curves(RESULTS, experiment)
    clients = {}
    for client in tables.read(tables.clients_path(RESULTS, experiment)):
        accuracies = clients.setdefault((client["run"], int(client["seed"])), [])
        accuracies.append(float(client["test_accuracy"]))
    assert list(curves) == list(clients) == [(row["run"], row["seed"]) for row in rows]
    for row in rows:
        curve = curves[row["run"], row["seed"]]
        np.testing.assert_array_equal(curve["round"], np.arange(1, row["num_rounds"] + 1))
        assert curve["bytes_down"].sum() == float(row["bytes_down"])
        assert np.median(curve["seconds"]) == row[tables.SECONDS]
        for key in (tables.PARTICIPANTS, tables.SERVED):
            mean = curve[key.removesuffix("/last10")][-LAST_ROUNDS:].mean()
            assert mean == pytest.approx(row[key], abs=SUMMATION_TOLERANCE)
        served = np.mean(clients[row["run"], row["seed"]])
        assert served == pytest.approx(curve["test_accuracy/client_mean"][-1], abs=SIX_DIGITS)


@pytest.mark.parametrize("experiment", WITH_RUNS)
def test_a_committed_run_is_finished_until_its_cells_flags_change(experiment):
    cells = {cell.name: cell for cell in experiments.cells(experiment)}
    for row in tables.read_runs(RESULTS, experiment):
        wanted = cells[row["run"]].flags | {"seed": row["seed"]}
        wanted = {name: str(value) for name, value in wanted.items()}
        assert cell_runs.is_made_with(row, wanted)
        engine = wanted.get("engine", "tff")  # TFF was the default then.
        other = {"tff": "in_process", "in_process": "tff"}[engine]
        assert cell_runs.is_made_with(row, wanted | {"engine": engine})
        assert not cell_runs.is_made_with(row, wanted | {"seed": "17"})
        assert not cell_runs.is_made_with(row, wanted | {"engine": other})
        assert not cell_runs.is_made_with(row, wanted | {"unknown": "1"})
        for name in wanted:
            fewer = {other: value for other, value in wanted.items() if other != name}
            assert not cell_runs.is_made_with(row, fewer)


def test_the_settings_of_the_pgfed_papers_twin_are_those_that_tuning_found_best():
    best = {}
    for row in tables.read_runs(RESULTS, "pgfed_tuning"):
        known = best.setdefault(row["algorithm"], row)
        if row[tables.SERVED] > known[tables.SERVED]:
            best[row["algorithm"]] = row
    assert set(best) == set(experiments_pgfed.TUNED)
    cells = {cell.name: cell for cell in experiments.cells("pgfed_tuning")}
    for algorithm, row in best.items():
        flags = cells[row["run"]].flags
        chosen = experiments_pgfed.TUNED[algorithm]
        assert chosen == {name: flags[name] for name in chosen}
        (twin,) = [
            cell
            for cell in experiments.cells("pgfed_table1")
            if cell.name == f"fashion_mnist_25_{algorithm}"
        ]
        varied = {"num_rounds", "network"}
        assert {k: v for k, v in twin.flags.items() if k not in varied} == {
            k: v for k, v in flags.items() if k not in varied
        }


def test_the_settings_with_a_shared_head_are_those_that_the_rule_takes():
    rows = tables.read_runs(RESULTS, "shared_head_tuning")
    assert tables_shared_head.chosen_setting(rows) == "as_chosen"
    cells = {cell.name: cell for cell in experiments.cells("shared_head_tuning")}
    flags = cells["no_1_as_chosen"].flags
    chosen = experiments_shared_head.TUNED
    assert chosen == {name: flags[name] for name in chosen}
    defaults = algorithms.check("pflego_shared_head", {})
    assert chosen == {name: getattr(defaults, name) for name in chosen}


def test_the_rates_beside_a_shared_head_are_those_that_tuning_found_best():
    rows = tables.read_runs(RESULTS, "shared_head_field_tuning")
    accuracies = tables_shared_head.validation_of_rates(rows)
    best = {method: max(of_rates, key=of_rates.get) for method, of_rates in accuracies.items()}
    assert best == experiments_shared_head.TUNED_RATES


@pytest.mark.parametrize(("degree", "points"), [("high", 0.5), ("medium", 3), ("no", 5)])
def test_a_shared_head_adds_to_plain_pflego(degree, points):
    rows = tables.read_runs(RESULTS, "shared_head")
    served = {}
    for row in tables_shared_head.with_plain_pflego(rows, RESULTS):
        served.setdefault(row["run"], {})[row["seed"]] = 100 * row[tables.SERVED]
    shared, plain = served[f"{degree}_pflego_shared_head"], served[f"{degree}_pflego"]
    assert shared.keys() == plain.keys() == {0, 1, 2}
    assert np.mean([shared[seed] - plain[seed] for seed in shared]) >= points


def test_no_group_of_clients_that_disagree_is_far_below_plain_pflego():
    """But for one that docs/results/shared_head.md names: all permuted, all classes held by all."""
    groups = tables_shared_head.groups_in_conflict(
        tables.read_runs(RESULTS, "shared_head_conflicts")
    )
    below = {key for key, (shared, plain, _) in groups.items() if shared < plain - 0.5}
    assert below == {("no permuted 1", "permuted")}


def test_pgfed_is_above_local_and_fedavg_with_every_seed():
    """docs/results/pgfed.md says so of the twin on Fashion-MNIST."""
    rows = tables.read_runs(RESULTS, "pgfed_table1")
    served = {(row["run"], row["seed"]): row[tables.SERVED] for row in rows}
    for seed in range(3):
        of_pgfed = served["fashion_mnist_25_pgfed", seed]
        assert of_pgfed > served["fashion_mnist_25_local", seed] + 0.01
        assert of_pgfed > served["fashion_mnist_25_fedavg", seed] + 0.1


def test_pflego_with_as_many_passes_is_above_local():
    """docs/results/pgfed.md says so of the first seed at every rate, and PGFed is above both."""

    def first_seed_of(experiment):
        rows = tables.read_runs(RESULTS, experiment)
        return {row["run"]: row[tables.SERVED] for row in rows if row["seed"] == 0}

    of_all, varied = first_seed_of("pgfed_table1"), first_seed_of("pgfed_variations")
    for rate in (0.1, 0.01, "auto"):
        of_pflego = varied[f"fashion_mnist_25_pflego_{rate}_T600"]
        local = of_all["fashion_mnist_25_local"]
        assert varied[f"fashion_mnist_25_pflego_{rate}_T120"] < local < of_pflego
        assert of_pflego < of_all["fashion_mnist_25_pgfed"]


def test_rows_of_a_fall_with_a_clients_examples_and_columns_rise():
    """docs/results/pgfed.md says so of every run on Fashion-MNIST, as the paper's Figure 3 does."""
    rows = tables.read_runs(RESULTS, "pgfed_table1")
    changes = tables_pgfed.regressions(rows, "pgfed_table1", RESULTS)
    changes = [change for change in changes if change["federation"].dataset == "fashion_mnist"]
    assert len(changes) >= 6
    for change in changes:
        assert change["rows"][2] < -0.8
        assert 0 < change["columns"][2] < 0.6


def test_the_committed_speeds_are_those_of_the_benchmark():
    report = json.loads((RESULTS / "benchmark.json").read_text(encoding="utf-8"))
    page = tables_pgfed.page_of_speeds(report)
    assert (RESULTS / "local_speed.md").read_text(encoding="utf-8") == page
    assert "| `pgfed` |" in page


def first_round_within_a_point(curves, cell, of_cell, seed):
    """The first round of `cell` whose participants are within a point of where `of_cell` ends."""
    accuracy = "participant_test_accuracy/example_mean"
    near = curves[of_cell, seed][accuracy][-LAST_ROUNDS:].mean() - 0.01
    curve = curves[cell, seed]
    return curve["round"][curve[accuracy] >= near][0]  # NaN, if not measured, is not near.


@pytest.mark.parametrize("degree,tuned", [("medium", 0.006), ("no", 0.007)])
def test_newtons_participants_need_about_a_third_of_the_rounds(degree, tuned):
    """docs/results/pflego.md says so about Newton's method."""
    curves = tables.read_curves(RESULTS, "head_solvers")
    newton, descent = (f"fashion_mnist_{degree}_{cell}" for cell in ("newton_auto", f"gd_{tuned}"))
    for seed in range(3):
        rounds = first_round_within_a_point(curves, newton, descent, seed)
        of_descent = first_round_within_a_point(curves, descent, descent, seed)
        assert 0.2 <= rounds / of_descent <= 0.45
