"""tools/reproduce.py as a user runs it, on digits in place of the paper's data, and what it writes."""

import csv
import json
import pathlib
import signal
import subprocess
import sys
import time

import experiments
import figures
import paper
import pytest
import reproduce
import tables
from absl import flags

from tf_pflego import config

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "results"

TIMEOUT_SECONDS = 300
CONFIGS = sorted((ROOT / "run_configs").rglob("*.flags"))


def command(results, digits_dir, *options):
    small = ["--dataset=digits", "--num_clients=20", "--clients_per_round=4", "--engine=in_process", f"--data_dir={digits_dir}"]
    asked = ["table1", "--datasets=fashion_mnist", "--personalizations=high", f"--results={results}", *options]
    return [sys.executable, "tools/reproduce.py", *asked, "--", *small]


def reproduce_once(results, digits_dir, *options):
    return subprocess.run(
        command(results, digits_dir, *options), cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )


def test_flag_files_are_those_that_the_tables_give():
    for experiment in experiments.TITLES:
        cells = experiments.cells(experiment)
        assert {cell.flagfile for cell in cells} == {path for path in CONFIGS if path.parent.name == experiment}
        for cell in cells:
            assert cell.flagfile.read_text(encoding="utf-8") == cell.text(), "run `python tools/reproduce.py configs`"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_flag_file_is_valid_and_fits_its_algorithm(path):
    values = flags.FlagValues()
    config.define_flags(values)
    values(["program", f"--flagfile={path}"])
    _, _, unused = config.from_flags(values)
    assert not unused


@pytest.mark.parametrize("experiment", sorted(path.stem for path in RESULTS.glob("*.md") if path.stem in experiments.TITLES))
def test_committed_tables_are_those_of_the_committed_runs(experiment):
    rows = reproduce.rows_of(experiment, RESULTS)
    assert (RESULTS / f"{experiment}.md").read_text(encoding="utf-8") == tables.page_of(experiments.TITLES[experiment], rows)
    with open(RESULTS / f"{experiment}.csv", encoding="utf-8") as file:
        written = list(csv.DictReader(file))
    assert written == [{key: "" if value is None else str(value) for key, value in row.items()} for row in rows]


def first_round_within_a_point(cell, of_cell, seed):
    """The first evaluated round of `cell` whose participants are within a point of where those of `of_cell` end."""

    def accuracies(name):
        lines = (RESULTS / "head_solvers" / name / f"seed{seed}" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        values = {line["round"]: line.get("participant_test_accuracy/example_mean") for line in map(json.loads, lines)}
        return {round_number: value for round_number, value in values.items() if value is not None}

    end = sum(list(accuracies(of_cell).values())[-10:]) / 10
    return next(round_number for round_number, value in accuracies(cell).items() if value >= end - 0.01)


@pytest.mark.parametrize("degree,tuned", [("medium", 0.006), ("no", 0.007)])
def test_newtons_participants_need_about_a_third_of_the_rounds(degree, tuned):
    """What docs/results.md says of Newton's method."""
    name = f"fashion_mnist_{degree}_"
    for seed in range(3):
        newton, descent = (
            first_round_within_a_point(name + cell, f"{name}gd_{tuned}", seed) for cell in ("newton_auto", f"gd_{tuned}")
        )
        assert 0.2 <= newton / descent <= 0.45


def test_a_sweep_is_drawn_with_a_line_for_each_method_and_a_colour_for_each_value():
    styles = figures.styles([f"{method}_tau{steps}" for method in ("pflego", "fedrecon") for steps in (5, 10, 25)])
    assert [style["linestyle"] for style in styles] == 3 * ["-"] + 3 * ["--"]
    colors = [tuple(style["color"]) for style in styles]
    assert colors[:3] == colors[3:]
    assert len(set(colors)) == 3
    colors = [style["color"] for style in figures.styles(["pflego", "fedrecon", "pflego_auto"])]
    assert len(set(colors)) == 3


def test_hyper_parameters_of_tables_6_and_7():
    """A few cells by hand, from each table."""
    assert paper.hyper_parameters("pflego", "fashion_mnist", "no") == {
        "client_learning_rate": 0.007, "server_learning_rate": 0.003, "server_optimizer": "adam"
    }  # fmt: skip
    assert paper.hyper_parameters("ditto", "mnist", "medium") == {"client_learning_rate": 0.007, "proximal_weight": 0.5}
    assert paper.hyper_parameters("fedavg", "cifar10", "no") == {"client_learning_rate": 0.006}
    assert paper.hyper_parameters("pflego", "omniglot", "high")["client_learning_rate"] == 0.1341


def test_a_table_is_run_written_skipped_and_gone_on_with(tmp_path, digits_dir):
    """Interrupted in its second run; called again it keeps the first, makes the second, and writes everything."""
    algorithms = "--algorithms=pflego,fedper"
    running = subprocess.Popen(
        command(tmp_path, digits_dir, algorithms, "--rounds=3"), cwd=ROOT, stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler), start_new_session=True,
    )  # fmt: skip
    for line in running.stdout:
        if "pflego" in line:  # The second: FedPer comes first.
            break
    time.sleep(1)
    running.send_signal(signal.SIGINT)
    running.wait(TIMEOUT_SECONDS)
    first = tmp_path / "table1" / "fashion_mnist_high_fedper" / "seed0"
    made = (first / "summary.json").stat().st_mtime_ns
    result = reproduce_once(tmp_path, digits_dir, algorithms, "--rounds=3")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "fashion_mnist_high_fedper seed 0: finished" in result.stdout
    assert (first / "summary.json").stat().st_mtime_ns == made
    rows = list(csv.DictReader(open(tmp_path / "table1.csv", encoding="utf-8")))
    assert [row["algorithm"] for row in rows] == ["fedper", "pflego"]
    for row in rows:
        summary = json.loads((tmp_path / "table1" / row["run"] / "seed0" / "summary.json").read_text())
        assert row["participant_test_accuracy/example_mean/last10"] == str(
            summary["participant_test_accuracy/example_mean/last10"]
        )
        assert row["num_rounds"] == "3"
    table = (tmp_path / "table1.md").read_text(encoding="utf-8")
    ours = 100 * float(rows[1]["participant_test_accuracy/example_mean/last10"])
    assert f"| `fashion_mnist_high_pflego` | 3 | 1 | {ours:.2f} | 96.34 | {ours - 96.34:+.2f} |" in table
    assert (tmp_path / "table1" / "digits_high.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--algorithms=fedsomething", "reproduce: no cell of table1 fits"),
        ("--names=fashion_mnist_low_*", "reproduce: no cell of table1 fits"),
        ("--seeds=0;1", "reproduce: `seeds` must be whole numbers with commas between them; got '0;1'."),
    ],
)
def test_nothing_to_run_is_said_and_nothing_written(tmp_path, digits_dir, option, said):
    result = reproduce_once(tmp_path, digits_dir, option)
    assert result.returncode == 2
    assert result.stderr.startswith(said)
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())
