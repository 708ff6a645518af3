"""Tables of a real sweep, recomputed from the raw runs by numpy and csv alone."""

import csv
import io
import itertools
import json
import shutil

import numpy as np
import pytest

from tf_pflego import sweeps
from tf_pflego.core.statistic_names import CATALOGUE
from tf_pflego.reports.page_parts import Table
from tf_pflego.sweeps import Cell, remarks, runner, store, tables

RATES = (0.003, 0.1)
CELLS = ("high", "local"), ("high", "fedavg"), ("no", "fedavg")
SEEDS, TUNING_SEEDS = (0, 1), (7, 8)
ROUNDS, TUNING_ROUNDS = 3, 2


@pytest.fixture(scope="module")
def finished(made_once, digits_dir):
    """The directory of a sweep of two methods, of which one has another condition too."""
    base = {"data_dir": digits_dir, "num_clients": 5, "clients_per_round": 2}
    base |= {"label_space": "global"}  # Cells of both conditions share what is traced.
    experiment = sweeps.Experiment(
        [{"personalization": degree, "algorithm": method} for degree, method in CELLS],
        base | {"num_rounds": ROUNDS, "client_learning_rate": RATES},
        seeds=SEEDS,
        tuning_seeds=TUNING_SEEDS,
        tuning={"num_rounds": TUNING_ROUNDS},
        title="Digits",
    )
    return made_once("compared", lambda path: runner.sweep(experiment, path))


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the directory, which a test may change."""
    return shutil.copytree(finished, tmp_path / "copied")


def accuracies(directory):
    with open(directory / "clients.csv", newline="") as file:
        return {row["client"]: float(row["test_accuracy"]) for row in csv.DictReader(file)}


def summary(directory):
    return json.loads((directory / "summary.json").read_text())


def best_rate(directory):
    """Returns the rate whose validation accuracy is highest, as the mean over tuning seeds."""
    by_rate = {}
    for path in directory.glob("*/seed*/summary.json"):
        (rate,) = (rate for rate in RATES if path.parts[-3].endswith(f"={rate:g}"))
        value = json.loads(path.read_text())["validation_accuracy/client_mean/last10"]
        by_rate.setdefault(rate, []).append(value)
    assert {len(values) for values in by_rate.values()} == {len(TUNING_SEEDS)}
    return max(by_rate, key=lambda rate: np.mean(by_rate[rate]))


def recomputed(root, condition, method):
    """Returns what a row must have, from the files that the runs themselves wrote."""
    runs = [root / f"{condition}_{method}" / f"seed{seed}" for seed in SEEDS]
    served = 100 * np.array([summary(run)["test_accuracy/client_mean/last10"] for run in runs])
    best = 100 * np.array([summary(run)["test_accuracy/client_mean/best"] for run in runs])
    key = "participant_test_accuracy/example_mean/last10"
    participants = 100 * np.array([summary(run)[key] for run in runs])
    compared = {"difference": None, "difference_error": None, "clients_that_gain": None}
    if (condition, method) == ("high", "fedavg"):
        others = [root / "high_local" / f"seed{seed}" for seed in SEEDS]
        base = 100 * np.array([summary(run)["test_accuracy/client_mean/last10"] for run in others])
        gains = [
            np.mean([mine > accuracies(other)[name] for name, mine in accuracies(run).items()])
            for run, other in zip(runs, others, strict=True)
        ]
        compared = {
            "difference": (served - base).mean(),
            "difference_error": (served - base).std(ddof=1) / np.sqrt(len(SEEDS)),
            "clients_that_gain": 100 * np.mean(gains),
        }
    moved = [summary(run)["bytes_down"] + summary(run)["bytes_up"] for run in runs]
    return compared | {
        "test_accuracy": served.mean(),
        "test_accuracy_deviation": served.std(ddof=1),
        "best_round": best.mean(),
        "best_round_deviation": best.std(ddof=1),
        "participants": participants.mean(),
        "participants_deviation": participants.std(ddof=1),
        "seconds_per_round": np.mean([summary(run)["seconds_per_round/median"] for run in runs]),
        "megabytes": np.mean(moved) / 1e6,
        "seeds": len(SEEDS),
        "tuning_runs": len(RATES) * len(TUNING_SEEDS),
        "tuning_rounds": len(RATES) * len(TUNING_SEEDS) * TUNING_ROUNDS,
        "client_learning_rate": best_rate(root / f"{condition}_{method}"),
    }


def test_the_table_is_what_the_raw_runs_say(finished):
    sweep = sweeps.load_sweep(finished)
    compared = sweep.table()
    assert [(row["personalization"], row["method"]) for row in compared.rows] == list(CELLS)
    lines = [(table, cells) for table in compared.tables for cells in table.rows]
    for row, (table, cells) in zip(compared.rows, lines, strict=True):
        expected = recomputed(finished / "runs", row["personalization"], row["method"])
        for key, value in expected.items():
            assert row[key] == (None if value is None else pytest.approx(value, rel=1e-12)), key
        name = f"{row['personalization']}_{row['method']}"
        rate = expected["client_learning_rate"]
        assert sweep.best()[name] == {"client_learning_rate": rate}
        # The runs that are reported were made with it, on all training examples.
        config = json.loads((finished / f"runs/{name}/seed0/config.json").read_text())
        assert (config["client_learning_rate"], config["validation_fraction"]) == (rate, 0)
        cells = dict(zip(table.head, cells, strict=True))
        spread = f"{expected['test_accuracy']:.2f} ± {expected['test_accuracy_deviation']:.2f}"
        assert cells["test accuracy, %"] == spread
        assert cells["runs to choose"] == "4 (8 rounds)"
        if value := expected["difference"]:
            error = expected["difference_error"]
            assert cells["difference, points"] == f"{value:+.2f} ± {error:.2f}"


def test_the_same_is_in_files_and_columns(finished):
    compared = sweeps.load_sweep(finished).table()
    files = {path.name: path.read_bytes() for path in finished.glob("tables.*")}
    rows = list(csv.DictReader(io.StringIO(files["tables.csv"].decode())))
    accuracies = [row["test_accuracy"] for row in compared.rows]
    assert [float(row["test_accuracy"]) for row in rows] == accuracies
    assert compared.markdown() in files["tables.md"].decode()
    assert str(compared) == compared._repr_markdown_() == compared.markdown()
    assert files["tables.tex"].decode() == compared.latex()
    for kind, condition in itertools.product(("clients", "settings"), ("high", "no")):
        picture = finished / f"{kind}_{condition}.png"
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_another_reference_turns_the_difference_round(finished):
    sweep = sweeps.load_sweep(finished)
    fedavg, local = sweep.table().rows[1], sweep.table(reference="fedavg").rows[0]
    assert local["difference"] == pytest.approx(-fedavg["difference"], rel=1e-12)
    assert local["difference_error"] == pytest.approx(fedavg["difference_error"], rel=1e-12)
    with pytest.raises(ValueError, match=r"`reference` must be one of local, fedavg; got 'fedavk'"):
        sweep.table("fedavk")


def test_a_difference_is_over_the_seeds_that_both_have(copied):
    rows = store.read(copied / "runs.csv")
    kept = [row for row in rows if (row["run"], row["seed"]) != ("high_fedavg", "1")]
    store.write(copied / "runs.csv", kept)
    sweep = sweeps.load_sweep(copied)
    high, no = sweep.table().tables
    fedavg = dict(zip(high.head, high.rows[1], strict=True))
    served = {(r["run"], r["seed"]): float(r["test_accuracy/client_mean/last10"]) for r in kept}
    difference = 100 * (served["high_fedavg", "0"] - served["high_local", "0"])
    assert fedavg["seeds"] == "1 of 2"
    assert fedavg["difference, points"] == f"{difference:+.2f}"  # One pair has no error.
    assert not {"difference, points", "clients that gain, %"} & set(no.head)
    assert "±" not in "".join(high.rows[1])
    store.write(copied / "runs.csv", [row for row in kept if row["run"] != "high_local"])
    sweep = sweeps.load_sweep(copied)
    assert [row["method"] for row in sweep.table().rows] == ["fedavg", "fedavg"]
    missing = (
        "Of 3 cells, local (personalization=high) have no run yet: they are not in the tables."
    )
    assert missing in sweep.table().warnings


def test_what_is_not_fair_or_not_whole_is_said(copied):
    sweep = sweeps.load_sweep(copied)
    edges = [one for one in sweep.table().warnings if one.startswith("A better")]
    assert all(one.startswith("A better client_learning_rate may lie beyond the") for one in edges)
    assert 1 <= len(edges) <= 2  # A line for each end, and of two values each is one.
    assert sum(one.count("(personalization=") for one in edges) == 3
    assert any("(7 and 8); up to 2 settings" in one for one in sweep.table().notes)


def test_a_verdict_says_how_sure_it_is(copied):
    """Of two seeds' leads, 1 and 3, the standard error is 1; that of one seed has none."""
    share = CATALOGUE["accuracy"]
    assert remarks.verdict(share, {"a": {0: 90.0, 1: 80.0}, "b": {0: 91.0, 1: 83.0}}) == (
        "b has the best test accuracy, 87.00 %, and a is next, 2.00 ± 1.00 points behind over 2 "
        "seeds."
    )
    level = {"a": {0: 90.0, 1: 80.0}, "b": {0: 91.0, 1: 79.5}}
    assert "b has the best test accuracy, 85.25 %, but is level with a: 0.25 ±" in remarks.verdict(
        share, level
    )
    assert remarks.verdict(share, {"a": {0: 90.0}, "b": {0: 88.5}}).endswith(
        "b is next, 1.50 points behind; one seed cannot say how sure it is."
    )
    assert not remarks.verdict(share, {"a": {0: 90.0}, "b": {}})


def test_a_rate_that_nobody_chose_is_named():
    cells = [
        Cell("p", {"algorithm": "pflego", "client_learning_rate": 0.1}, label="pflego"),
        Cell("f", {"algorithm": "fedavg", "client_learning_rate": 0.1}, label="fedavg"),
        Cell("s", {"algorithm": "pflego"}, label="pflego"),
    ]
    assert [remarks.rates_left(cell) for cell in cells] == [["server_learning_rate 0.001"], [], []]


def test_a_run_that_ended_early_counts_as_its_cost_and_is_not_chosen(copied):
    rows = store.read(copied / "tuning.csv")
    chosen = sweeps.load_sweep(copied).best()["high_local"]["client_learning_rate"]
    for row in rows:
        if row["run"] == "high_local" and float(row["client_learning_rate"]) == chosen:
            row |= {"state": "not finite", "num_rounds": "1"}
    store.write(copied / "tuning.csv", rows)
    row = sweeps.load_sweep(copied).table().rows[0]
    assert (row["tuning_runs"], row["tuning_rounds"]) == (4, 2 * TUNING_ROUNDS + 2)
    assert row["client_learning_rate"] in set(RATES) - {chosen}


def test_texts_are_escaped():
    table = Table("-", ["a|b*", "n, %"], [["x_y & <b>\\`$~^#{}[", "1.50 ± 0.25"], ["\x1b\n", "–"]])
    lines = [line.split() for line in tables.markdown(table).splitlines()]
    assert lines[0] == ["|", "a\\|b\\*", "|", "n,", "%", "|"]
    assert lines[2] == ["|", "x_y", "&", "\\<b>\\\\\\`$~^#{}\\[", "|", "1.50", "±", "0.25", "|"]
    assert lines[3] == ["|", "\\\\x1b\\\\n", "|", "–", "|"]
    assert tables.latex(table) == (
        "\\begin{tabular}{lr}\n\\toprule\na|b* & n, \\% \\\\\n\\midrule\n"
        "x\\_y \\& <b>\\textbackslash{}`\\$\\textasciitilde{}\\textasciicircum{}\\#\\{\\}[ & "
        "1.50 $\\pm$ 0.25 \\\\\n"
        "\\textbackslash{}x1b\\textbackslash{}n & -- \\\\\n\\bottomrule\n\\end{tabular}\n"
    )
