"""tools/reproduce.py as a user runs it, on digits; its results are in `test_results`."""

import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import cell_runs
import experiments
import figures
import numpy as np
import paper
import pytest
import reproduce
import tables
from absl import flags

from tf_pflego import algorithms
from tf_pflego.program import flags as program_flags
from tf_pflego.runs import config
from tf_pflego.runs.reader import PLACES
from tf_pflego.system.lock import DirectoryLock

pytestmark = pytest.mark.same_on_both_lines


ROOT = pathlib.Path(__file__).parents[2]
RESULTS = ROOT / "results"
TIMEOUT_SECONDS = 300


def command(results, digits_dir, *options):
    small = ["--dataset=digits", "--num_clients=20", "--clients_per_round=4"]
    selected = ["table1", "--datasets=fashion_mnist", "--personalizations=high"]
    return [
        *(*selected, f"--results={results}", *options),
        *("--", *small, "--engine=in_process", f"--data_dir={digits_dir}"),
    ]


@pytest.fixture
def reproduce_once(capsys):
    """A function that returns the exit code of `reproduce.py`, and what it says.

    The program itself is not started, which would take seconds; the runs that it makes are.
    """

    def once(*arguments):
        code = reproduce.main(command(*arguments))
        printed = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, printed.out, printed.err)

    return once


def parsed(*arguments):
    values = flags.FlagValues()
    program_flags.define_flags(values)
    values(["program", *arguments])
    return program_flags.from_flags(values)


def test_every_cell_is_valid_and_fits_its_algorithm():
    for experiment in experiments.TITLES:
        cells = experiments.cells(experiment)
        assert len({cell.name for cell in cells}) == len(cells)
        for cell in cells:
            _, _, unused = parsed(*(f"--{name}={value}" for name, value in cell.flags.items()))
            assert not unused, cell.name


def test_list_names_experiments_and_cells_and_what_is_finished(capsys):
    assert reproduce.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[len(experiments.TITLES)] == ""
    for line, (name, title) in zip(lines, experiments.TITLES.items(), strict=False):
        words = line.split()
        assert words[:2] == [name, str(len(experiments.cells(name)))]
        assert line.endswith(title)
        rows = tables.read_runs(RESULTS, name)
        names = {cell.name for cell in experiments.cells(name)}
        assert int(words[3]) <= len({row["run"] for row in rows} & names)
    assert any("all finished" in line and "head_solvers" in line for line in lines)
    assert reproduce.main(["list", "table1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [cell.name for cell in experiments.cells("table1")]
    assert [line.split()[0] for line in lines[: len(names)]] == names
    (line,) = [line for line in lines if line.startswith("fashion_mnist_high_pflego ")]
    assert line.endswith("finished with seeds 0, 1, 2")


def test_the_time_left_is_that_of_finished_cells_that_are_alike():
    cell = experiments.Cell("table1", "x", {"dataset": "a", "algorithm": "b", "num_rounds": 120})
    made_with = {"dataset": "a", "algorithm": "b"}
    row = {"experiment": "table1", "made_with": made_with, tables.SECONDS: 2.0}
    other = {"experiment": "table1", "made_with": made_with | {"dataset": "c"}, tables.SECONDS: 9.0}
    assert reproduce._time_of([cell], [row, other]) == "about 4 min"
    elsewhere = row | {"experiment": "table2", tables.SECONDS: 60.0}
    assert reproduce._time_of([cell], [elsewhere, other]) == "about 2 h 00 min"
    assert reproduce._time_of([cell], [other]) == "unknown time"


def test_flags_prints_a_flag_file_of_any_cell(capsys, tmp_path):
    assert reproduce.main(["flags", "local_steps", "omniglot_fedrecon_tau25"]) == 0
    path = tmp_path / "own.flags"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    (cell,) = [c for c in experiments.cells("local_steps") if c.name == "omniglot_fedrecon_tau25"]
    run_config, hyper_parameters, _ = parsed(f"--flagfile={path}")
    held = vars(run_config) | hyper_parameters
    assert {name: held[name] for name in cell.flags} == cell.flags


def test_flag_files_to_read_are_one_per_algorithm_with_what_was_measured():
    files = reproduce.example_files()
    quickstart = ROOT / "run_configs" / "quickstart.flags"
    alone = quickstart.with_stem("quickstart_local")
    assert set((ROOT / "run_configs").rglob("*.flags")) == {quickstart, alone, *files}
    names = []
    for path, text in files.items():
        assert path.read_text(encoding="utf-8") == text, "run `python tools/reproduce.py configs`"
        run_config, _, unused = parsed(f"--flagfile={path}")
        assert not unused
        names.append(run_config.algorithm)
    assert sorted(names) == sorted(algorithms.REGISTRY)


def test_a_flag_file_says_what_the_table_of_runs_says():
    (cell,) = [c for c in experiments.cells("table1") if c.name == "fashion_mnist_high_pflego"]
    runs = [
        {
            "run": cell.name,
            tables.SECONDS: seconds,
            tables.PARTICIPANTS: accuracy,
            tables.SERVED: accuracy - 0.1,
        }
        for seconds, accuracy in ((0.25, 0.96), (0.75, 0.98))
    ]
    other = {"run": "fashion_mnist_no_pflego", tables.SECONDS: 9.0, tables.PARTICIPANTS: 0.5}
    text = cell.flag_file("DIR/own.flags", [*runs, other])
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "# PFLEGO paper, Tables 1 and 6: fashion_mnist_high_pflego.",
        "#   python -m tf_pflego.main --flagfile=DIR/own.flags --output_dir=DIR",
        "# Measured with 2 seeds (results/table1.csv):",
        "#   0.500 seconds per round",
        "#   97.00 ± 1.41 percent test accuracy of the participants, mean of the last ten rounds",
        "#   87.00 ± 1.41 percent of all clients as served",
        "#   96.34 percent in the paper",
        "# Written by tools/reproduce.py.",
    ]
    text = cell.flag_file("DIR/own.flags", [other])
    assert "# Not measured yet: results/table1.csv has no run of it." in text


def test_a_sweep_is_drawn_with_a_line_for_each_method_and_a_colour_for_each_value():
    sweep = ("pflego_tau5", "pflego_tau10", "pflego_tau25")
    styles = figures.styles([*sweep, "fedrecon_tau5", "fedrecon_tau10", "fedrecon_tau25"])
    lines = [style["linestyle"] for style in styles]
    assert lines == 3 * lines[:1] + 3 * lines[3:4] and lines[0] != lines[3]
    colors = [tuple(style["color"]) for style in styles]
    assert colors[:3] == colors[3:]
    assert len(set(colors)) == 3
    colors = [style["color"] for style in figures.styles(["pflego", "fedrecon", "pflego_auto"])]
    assert len(set(colors)) == 3


def test_hyper_parameters_of_tables_6_and_7():
    """A few cells of each table were typed by hand."""
    assert paper.hyper_parameters("pflego", "fashion_mnist", "no") == {
        "client_learning_rate": 0.007,
        "server_learning_rate": 0.003,
        "server_optimizer": "adam",
    }
    assert paper.hyper_parameters("ditto", "mnist", "medium") == {
        "client_learning_rate": 0.007,
        "proximal_weight": 0.5,
    }
    assert paper.hyper_parameters("fedavg", "cifar10", "no") == {"client_learning_rate": 0.006}
    assert paper.hyper_parameters("pflego", "omniglot", "high")["client_learning_rate"] == 0.1341


def test_a_table_is_run_written_skipped_and_continued(tmp_path, digits_dir, reproduce_once):
    """It is interrupted in its second run; the next call keeps the first and makes the second."""
    options = ("--algorithms=pflego,fedper", "--rounds=3")
    running = subprocess.Popen(
        [sys.executable, "tools/reproduce.py", *command(tmp_path, digits_dir, *options)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for line in running.stdout:
        if "pflego" in line:  # The second run, since FedPer comes first.
            break
    raw = tmp_path / "runs" / "table1" / "fashion_mnist_high_pflego" / "seed0"
    while not (raw / "config.json").exists():
        assert running.poll() is None
        time.sleep(0.001)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=TIMEOUT_SECONDS)
    assert running.returncode == 130
    assert errors == "reproduce: interrupted; the same command continues\n"
    assert "tf_pflego: interrupted" in (raw / "log.txt").read_text(encoding="utf-8")
    assert not (raw / ".lock").exists()
    (first,) = tables.read(tmp_path / "table1.csv")
    assert first["run"] == "fashion_mnist_high_fedper"

    result = reproduce_once(tmp_path, digits_dir, *options)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "fashion_mnist_high_fedper seed 0: finished" in result.stdout
    assert "fashion_mnist_high_pflego seed 0: running" in result.stdout
    rows = tables.read(tmp_path / "table1.csv")
    assert rows[0] == first
    assert [row["algorithm"] for row in rows] == ["fedper", "pflego"]
    summary = json.loads((raw / "summary.json").read_text(encoding="utf-8"))
    records = [json.loads(line) for line in (raw / "metrics.jsonl").read_text().splitlines()]
    assert rows[1][tables.PARTICIPANTS] == str(summary[tables.PARTICIPANTS])
    curve = tables.read_curves(tmp_path, "table1")["fashion_mnist_high_pflego", 0]
    for key in records[-1]:
        expected = [record.get(key, np.nan) for record in records]
        np.testing.assert_array_equal(curve[key], expected, err_msg=key)
    table = (tmp_path / "table1.md").read_text(encoding="utf-8")
    ours = 100 * float(rows[1][tables.PARTICIPANTS])
    row = f"| `fashion_mnist_high_pflego` | 3 | 1 | {ours:.2f} | 96.34 | {ours - 96.34:+.2f} |"
    assert row in table
    figure = tmp_path / "table1" / "digits_high.png"
    drawn = figure.read_bytes()

    # The tables and figures need no raw run.
    (tmp_path / "table1.md").unlink()
    figure.unlink()
    shutil.rmtree(tmp_path / "runs" / "table1" / "fashion_mnist_high_fedper")
    assert reproduce.main(["redraw", "table1", f"--results={tmp_path}"]) == 0
    assert (tmp_path / "table1.md").read_text(encoding="utf-8") == table
    assert figure.read_bytes() == drawn

    # A finished run that an interruption kept out of the results is added; one whose flags have
    # changed is made again and replaces the row and the curves.
    tables.write(tmp_path / "table1.csv", rows[:1])
    result = reproduce_once(tmp_path, digits_dir, "--algorithms=pflego", "--rounds=3")
    assert "running" not in result.stdout
    assert tables.read(tmp_path / "table1.csv") == rows
    result = reproduce_once(tmp_path, digits_dir, "--algorithms=fedper", "--rounds=2")
    assert "fashion_mnist_high_fedper seed 0: running" in result.stdout
    assert [row["num_rounds"] for row in tables.read(tmp_path / "table1.csv")] == ["2", "3"]
    curves = tables.read_curves(tmp_path, "table1")
    assert [len(curve["round"]) for curve in curves.values()] == [2, 3]


ONE_RUN = ("--algorithms=pflego", "--rounds=1")
OF_ONE_RUN = pathlib.Path("runs/table1/fashion_mnist_high_pflego/seed0")


@pytest.fixture(scope="module")
def one_run(tmp_path_factory, digits_dir):
    """The results with one cell that is finished."""
    results = tmp_path_factory.mktemp("results")
    assert reproduce.main(command(results, digits_dir, *ONE_RUN)) == 0
    return results


def test_again_runs_what_is_finished_and_a_run_that_fails_replaces_nothing(
    one_run, tmp_path, reproduce_once
):
    results = shutil.copytree(one_run, tmp_path / "results")
    rows = tables.read(results / "table1.csv")
    nowhere = "/proc/nowhere"  # The run finds no data there.
    assert reproduce_once(results, nowhere, *ONE_RUN).returncode == 0
    result = reproduce_once(results, nowhere, *ONE_RUN, "--again")
    assert result.returncode == 1
    assert f"failed; {results / OF_ONE_RUN}/log.txt ends with" in result.stdout
    assert nowhere in result.stdout
    assert tables.read(results / "table1.csv") == rows


def test_a_run_goes_on_if_its_flags_are_the_same(tmp_path, digits_dir):
    flags = {"dataset": "digits", "num_clients": "5", "clients_per_round": "2", "local_steps": "1"}
    flags |= {"engine": "in_process", "eval_every": "1", "num_rounds": "12"}
    raw, extra = tmp_path / "raw", [f"--data_dir={digits_dir}"]

    def first_round_that_was_run(**given):
        assert cell_runs.run(flags, extra, raw, **given)
        log = (raw / "log.txt").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1].split("/")[0]) for line in log if line.startswith("round "))

    assert first_round_that_was_run() == 1
    # As if it had been killed after its tenth round.
    (raw / "summary.json").unlink()
    (raw / "checkpoints" / "checkpoint-12.json").unlink()
    assert first_round_that_was_run() == 11
    records = [json.loads(line) for line in (raw / "metrics.jsonl").read_text().splitlines()]
    assert [record["round"] for record in records] == list(range(1, 13))
    flags["seed"] = "1"
    assert first_round_that_was_run() == 1
    assert json.loads((raw / "config.json").read_text())["seed"] == 1
    assert first_round_that_was_run(again=True) == 1


def test_the_flags_that_say_where_things_are_are_known_without_tensorflow():
    assert set(PLACES) <= {field.name for field in dataclasses.fields(config.RunConfig)}
    code = "import sys, cell_runs; print('tensorflow' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=pathlib.Path(cell_runs.__file__).parent,
        env=os.environ | {"PYTHONPATH": str(cell_runs.ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == ["False"]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--algorithms=fedsomething", "reproduce: the options must select at least one cell"),
        ("--names=fashion_mnist_low_*", "reproduce: the options must select at least one cell"),
        ("--seeds=0;1", "reproduce: `seeds` must be whole numbers"),
    ],
)
def test_nothing_to_run_is_said_and_nothing_written(tmp_path, reproduce_once, option, said):
    result = reproduce_once(tmp_path, "nowhere", option)
    assert result.returncode == 2
    assert result.stderr.startswith(said)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["flags", "table1", "pflego"], "the cell must be one of the 84 cells of table1; got"),
        (["redraw", "table7"], "the experiments must be among those with runs"),
        (["documents", "--", "--seed=1"], "`documents` must have no flags after `--`"),
        (["table1", "--", "--seed=1"], "flags after `--` must not include the seed; got --seed=1."),
        (["table1", "--", "seed=1"], "flags must be written as --NAME=VALUE; got 'seed=1'"),
    ],
)
def test_what_the_user_can_correct_is_said(capsys, arguments, said):
    assert reproduce.main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"reproduce: {said}")


def test_a_damaged_run_is_set_aside_and_made_again(one_run, tmp_path, digits_dir, reproduce_once):
    results = shutil.copytree(one_run, tmp_path / "results")
    raw = results / OF_ONE_RUN
    for number, name in enumerate(("config.json", "metrics.jsonl"), 1):
        (results / "table1.csv").unlink()  # It is not in the results yet.
        os.truncate(raw / name, (raw / name).stat().st_size // 2)
        before = {path.name: path.read_bytes() for path in raw.iterdir() if path.is_file()}
        result = reproduce_once(results, digits_dir, *ONE_RUN)
        assert result.returncode == 0, result.stdout + result.stderr
        aside = raw.with_name(f"seed0.damaged{number}")
        assert f"{raw} cannot be read as a run" in result.stdout
        assert f"it is now {aside}, and the cell is run again" in result.stdout
        assert {
            path.name: path.read_bytes() for path in aside.iterdir() if path.is_file()
        } == before
        assert len(tables.read(results / "table1.csv")) == 1


def test_a_run_that_is_at_work_is_left_alone(tmp_path, reproduce_once):
    """The run itself is locked, and so is the cell while this program makes its run."""
    raw = tmp_path / OF_ONE_RUN
    raw.mkdir(parents=True)
    (raw / "metrics.jsonl").write_text("the rounds of another run")
    for locked in (raw, raw.with_name(".seed0.reproduce")):
        lock = DirectoryLock(locked)
        result = reproduce_once(tmp_path, "nowhere", *ONE_RUN, "--again")
        assert result.returncode == 2
        said = f"reproduce: {raw} must not be in use; process {os.getpid()} uses it. Wait"
        assert result.stderr.startswith(said)
        assert (raw / "metrics.jsonl").read_text() == "the rounds of another run"
        lock.release()
