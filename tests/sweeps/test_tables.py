"""Tables of a real sweep, recomputed from the raw runs by numpy and csv alone."""

import csv
import io
import json

import numpy as np
import pytest

from tf_pflego import sweeps
from tf_pflego.core.statistic_names import CATALOGUE
from tf_pflego.reports.page_parts import Table
from tf_pflego.sweeps import Cell, remarks, store, tables

RATES, SEEDS = (0.003, 0.1), (0, 1)
METHODS = "fedavg", "pflego"


def accuracies(directory):
    with open(directory / "clients.csv", newline="") as file:
        return {row["client"]: float(row["test_accuracy"]) for row in csv.DictReader(file)}


def of_seeds(root, method, key):
    """Returns a number of the summaries of the runs that are reported."""
    paths = [root / method / f"seed{seed}" / "summary.json" for seed in SEEDS]
    return np.array([json.loads(path.read_text())[key] for path in paths])


def best_rate(directory):
    """Returns the rate whose validation accuracy is highest."""
    by_rate = {}
    for path in directory.glob("*/seed1000/summary.json"):
        (rate,) = (rate for rate in RATES if path.parts[-3].endswith(f"={rate:g}"))
        value = json.loads(path.read_text())["validation_accuracy/client_mean/last10"]
        by_rate[rate] = value
    assert by_rate.keys() == set(RATES)
    return max(by_rate, key=by_rate.get)


def recomputed(root, method):
    """Returns what a row must have, from the files that the runs themselves wrote."""
    served, base, best = (
        100 * of_seeds(root, name, f"test_accuracy/client_mean/{which}")
        for name, which in ((method, "last10"), ("fedavg", "last10"), (method, "best"))
    )
    participants = 100 * of_seeds(root, method, "participant_test_accuracy/example_mean/last10")
    compared = {"difference": None, "difference_error": None, "clients_that_gain": None}
    if method != "fedavg":
        gains = []
        for seed in SEEDS:
            mine, other = (accuracies(root / name / f"seed{seed}") for name in (method, "fedavg"))
            gains.append(np.mean([mine[client] > other[client] for client in mine]))
        compared = {
            "difference": (served - base).mean(),
            "difference_error": (served - base).std(ddof=1) / np.sqrt(len(SEEDS)),
            "clients_that_gain": 100 * np.mean(gains),
        }
    moved = sum(of_seeds(root, method, f"bytes_{way}") for way in ("down", "up"))
    return compared | {
        "test_accuracy": served.mean(),
        "test_accuracy_deviation": served.std(ddof=1),
        "best_round": best.mean(),
        "best_round_deviation": best.std(ddof=1),
        "participants": participants.mean(),
        "participants_deviation": participants.std(ddof=1),
        "seconds_per_round": of_seeds(root, method, "seconds_per_round/median").mean(),
        "megabytes": np.mean(moved) / 1e6,
        "seeds": len(SEEDS),
        "tuning_runs": len(RATES),
        "tuning_rounds": 2 * len(RATES),
        "client_learning_rate": best_rate(root / method),
    }


def test_the_table_is_what_the_raw_runs_say(finished):
    sweep = sweeps.load_sweep(finished)
    compared = sweep.table()
    assert tuple(row["method"] for row in compared.rows) == METHODS
    (table,) = compared.tables
    for row, cells in zip(compared.rows, table.rows, strict=True):
        expected = recomputed(finished / "runs", row["method"])
        for key, value in expected.items():
            assert row[key] == (None if value is None else pytest.approx(value, rel=1e-12)), key
        rate = expected["client_learning_rate"]
        assert sweep.best()[row["method"]] == {"client_learning_rate": rate}
        cells = dict(zip(table.head, cells, strict=True))
        spread = f"{expected['test_accuracy']:.2f} ± {expected['test_accuracy_deviation']:.2f}"
        assert cells["test accuracy, %"] == spread
        assert cells["runs to choose"] == "2 (4 rounds)"
        if value := expected["difference"]:
            error = expected["difference_error"]
            assert cells["difference, points"] == f"{value:+.2f} ± {error:.2f}"
    assert any("(1000); up to 2 settings" in one for one in compared.notes)
    # There is a line for each end, and each of two values is one.
    edges = [
        one for one in compared.warnings if one.startswith("A better client_learning_rate may")
    ]
    assert sum(name in edge for edge in edges for name in ("fedavg: 0.", "pflego: 0.")) == 2


def test_the_same_is_in_files_and_another_reference_turns_the_difference_round(finished):
    sweep = sweeps.load_sweep(finished)
    compared = sweep.table()
    files = {path.name: path.read_bytes() for path in finished.glob("tables.*")}
    rows = list(csv.DictReader(io.StringIO(files["tables.csv"].decode())))
    accuracies = [row["test_accuracy"] for row in compared.rows]
    assert [float(row["test_accuracy"]) for row in rows] == accuracies
    assert compared.markdown() in files["tables.md"].decode()
    assert str(compared) == compared._repr_markdown_() == compared.markdown()
    assert files["tables.tex"].decode() == compared.latex()
    pflego, fedavg = compared.rows[1], sweep.table(reference="pflego").rows[0]
    assert fedavg["difference"] == pytest.approx(-pflego["difference"], rel=1e-12)
    assert fedavg["difference_error"] == pytest.approx(pflego["difference_error"], rel=1e-12)
    with pytest.raises(
        ValueError, match=r"`reference` must be one of fedavg, pflego; got 'fedavk'"
    ):
        sweep.table("fedavk")


def test_a_difference_is_over_the_seeds_that_both_have(swept):
    rows = store.read(swept / store.RUNS)
    kept = [row for row in rows if (row["run"], row["seed"]) != ("pflego", "1")]
    store.write(swept / store.RUNS, kept)
    (table,) = sweeps.load_sweep(swept).table().tables
    pflego = dict(zip(table.head, table.rows[1], strict=True))
    served = {(row["run"], row["seed"]): float(row[store.SERVED]) for row in kept}
    difference = 100 * (served["pflego", "0"] - served["fedavg", "0"])
    assert pflego["seeds"] == "1 of 2"
    assert pflego["difference, points"] == f"{difference:+.2f}"  # One pair has no error.
    assert "±" not in "".join(table.rows[1])


def test_a_verdict_says_how_sure_it_is():
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
    alone = remarks.verdict(share, {"a": {0: 90.0}, "b": {}})
    assert alone == "a has a test accuracy of 90.00 %."


def test_a_rate_that_nobody_chose_is_named():
    cells = [
        Cell("p", {"algorithm": "pflego", "client_learning_rate": 0.1}, label="pflego"),
        Cell("f", {"algorithm": "fedavg", "client_learning_rate": 0.1}, label="fedavg"),
        Cell("s", {"algorithm": "pflego"}, label="pflego"),
    ]
    assert [remarks.rates_left(cell) for cell in cells] == [["server_learning_rate 0.001"], [], []]


def test_a_run_that_ended_early_counts_as_its_cost_and_is_not_chosen(swept):
    rows = store.read(swept / store.TUNING)
    chosen = sweeps.load_sweep(swept).best()["fedavg"]["client_learning_rate"]
    for row in rows:
        if row["run"] == "fedavg" and float(row["client_learning_rate"]) == chosen:
            row |= {"state": "not finite", "num_rounds": "1"}
    store.write(swept / store.TUNING, rows)
    row = sweeps.load_sweep(swept).table().rows[0]
    assert (row["tuning_runs"], row["tuning_rounds"]) == (2, 2 + 1)
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
