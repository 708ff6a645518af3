"""The program runs sweeps, goes on with them, and makes what is new."""

import json
import os
import re
import threading

import numpy as np
import pytest

import tf_pflego as pfl
from tests.runs.resumed import records_of
from tests.starts import TIMEOUT_SECONDS, assert_refused, done, in_this_process
from tests.sweeps.conftest import contents, made, rows_of
from tf_pflego.core.statistic_names import shown
from tf_pflego.sweeps import filling, store, tables
from tf_pflego.sweeps.queue import Queue
from tf_pflego.system.lock import DirectoryLock

pytestmark = [pytest.mark.grappler, pytest.mark.usefixtures("traced_once")]

TRIAL = "client_learning_rate"


def test_what_it_leaves_is_what_the_runs_have(finished):
    outcome = pfl.load_sweep(finished)
    chosen = outcome.best()
    assert [row["run"] for row in outcome.rows] == ["fedavg", "fedavg", "pflego", "pflego"]
    assert [row["seed"] for row in outcome.rows] == [0, 1, 0, 1]
    assert repr(outcome) == f"Sweep({finished}, 2 cells, 4 runs reported)"
    assert len(outcome.tuning_rows) == 4
    curves, clients = outcome.curves(), outcome.clients()
    for row in outcome.rows:
        key = row["run"], row["seed"]
        raw = finished / store.RAW / row["run"] / f"seed{row['seed']}"
        summary, config = (
            json.loads((raw / f"{n}.json").read_text()) for n in ("summary", "config")
        )
        for name in (store.PARTICIPANTS, store.SERVED, store.BEST, store.SECONDS):
            assert row[name] == summary[name]
        assert config[TRIAL] == chosen[row["run"]][TRIAL] == float(row[TRIAL])
        assert config["validation_fraction"] == 0
        records = records_of(raw)
        for name in records[-1]:
            expected = [record.get(name, np.nan) for record in records]
            np.testing.assert_array_equal(curves[key][name], expected, err_msg=name)
        accuracies = [float(one["test_accuracy"]) for one in store.read(raw / "clients.csv")]
        np.testing.assert_array_equal(clients[key]["test_accuracy"], accuracies)
        assert not (raw / "checkpoints").exists()
    assert not list(finished.rglob(".lock"))


def test_a_sweep_knows_the_own_statistics_of_runs_in_other_processes(swept):
    path = swept / store.RAW / "fedavg" / "seed0" / "config.json"
    about = {"title": "waste", "higher_is_better": False}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"own_statistics": {"waste": about}}))
    filling.read_run(path.parent, "fedavg")
    assert (shown("waste").title, shown("waste").sign) == ("waste", -1)


@pytest.mark.thorough
def test_a_finished_run_without_its_row_is_added_and_a_damaged_one_made_again(swept, sweep_again):
    before = contents(swept)
    rows = store.read(swept / store.RUNS)
    places = [swept / store.RAW / row["run"] / f"seed{row['seed']}" for row in rows]
    metrics = [(place / "metrics.jsonl").read_bytes() for place in places]

    def those_made_again():
        store.write(swept / store.RUNS, [])
        result = sweep_again(swept)
        assert contents(swept) == before
        again = [(place / "metrics.jsonl").read_bytes() for place in places]
        return made(result), [one == other for one, other in zip(again, metrics, strict=True)]

    everything = [f"{row['run']} seed {row['seed']}" for row in rows]
    assert those_made_again() == (everything, [True] * 4)
    os.truncate(places[0] / "config.json", 5)
    os.truncate(places[1] / "clients.csv", 0)
    for place, name in zip(places[2:], ("metrics.jsonl", "summary.json"), strict=True):
        os.truncate(place / name, (place / name).stat().st_size // 2)
    assert those_made_again() == (everything, [False] * 4)


def test_the_same_command_needs_no_data_and_a_failed_run_replaces_nothing(swept, sweep_again):
    before = contents(swept)
    result = sweep_again(swept, data="/proc/nowhere")
    assert (result.returncode, made(result)) == (0, [])
    failed = sweep_again(swept, "--num_rounds=3", data="/proc/nowhere")
    assert failed.returncode == 2
    assert failed.stderr.count("failed: DatasetError: ") == 4  # These are the trials.
    assert failed.stderr.count("its settings cannot be chosen") == 2
    assert "every run must finish; 4 runs did not, with the errors above. Correct" in failed.stderr
    assert contents(swept) == before


@pytest.mark.thorough
def test_what_changes_is_made_anew_and_nothing_else(swept, sweep_again):
    assert made(sweep_again(swept, "--seeds=0,1,2")) == ["fedavg seed 2", "pflego seed 2"]
    assert made(sweep_again(swept, "--seeds=1")) == []
    assert [row["seeds"] for row in pfl.load_sweep(swept).table().rows] == [1, 1]
    sweep_again(swept)
    before = contents(swept)
    result = sweep_again(swept, "--num_rounds=3", "--where=algorithm=pflego")
    assert (result.returncode, len(made(result))) == (0, 4)
    # Of three seeds each; the last one is not asked for.
    rounds = [row["num_rounds"] for row in store.read(swept / store.RUNS)]
    assert rounds == ["2", "2", "2", "3", "3", "2"]
    assert len(pfl.load_sweep(swept).curves()["pflego", 0]["round"]) == 3
    assert rows_of(swept, store.RUNS)[:3] == before[store.RUNS][:3]


@pytest.mark.thorough
def test_what_is_no_longer_tried_is_not_chosen(swept, sweep_again):
    chosen = pfl.load_sweep(swept).best()["fedavg"][TRIAL]
    (other,) = {0.003, 0.1} - {chosen}
    changed = f"--client_learning_rate={other},0.002", "--algorithm=fedavg"
    assert sweep_again(swept, *changed).returncode == 0
    outcome = pfl.load_sweep(swept)
    assert outcome.best()["fedavg"][TRIAL] != chosen
    assert {float(row[TRIAL]) for row in outcome.tuning_rows} == {other, 0.002}
    assert {float(row[TRIAL]) for row in outcome.rows} == {outcome.best()["fedavg"][TRIAL]}
    # Seeds that choices were made by before have no part in them either.
    sweep_again(swept, *changed, "--tuning_seeds=1001")
    assert {row["seed"] for row in pfl.load_sweep(swept).tuning_rows} == {1001}


def test_a_directory_in_use_is_refused(swept, sweep_again):
    with DirectoryLock(swept):
        said = f"another sweep writes to {swept} (process {os.getpid()}). Wait for its end, or"
        assert_refused(
            sweep_again(swept, "--num_rounds=9"), "--output_dir must not be in use;", said
        )
    assert sweep_again(swept).returncode == 0


def test_it_lists_and_shows_what_there_is_and_redraws_it(swept, tmp_path, sweep_again):
    listed = sweep_again(swept, "--list").stdout.splitlines()
    assert listed == ["8 of 8 runs done", "fedavg  finished", "pflego  finished"]
    listed = sweep_again(swept, "--list", "--seeds=0,1,2", "--algorithm=fedavg,local")
    first, *cells = listed.stdout.splitlines()
    assert first == "4 of 10 runs done"
    assert cells[0].startswith("fedavg  1 run left, about ")
    assert cells[1].startswith("local   2 trials and 3 runs left")
    before = {path.name: path.read_bytes() for path in swept.iterdir() if path.is_file()}
    (verdict,) = pfl.load_sweep(swept).table().verdicts
    shown = f"{(swept / 'tables.md').read_text()}\n{verdict}\n"
    assert sweep_again(swept, "--show").stdout == shown
    drawn = [*swept.glob("tables.*"), *swept.glob("*.png")]
    assert len(drawn) > 3
    for path in drawn:
        path.unlink()
    redrawn = sweep_again(swept, "--redraw")
    assert sorted(redrawn.stdout.splitlines()) == sorted(f"written: {path}" for path in drawn)
    assert {path.name: path.read_bytes() for path in swept.iterdir() if path.is_file()} == before

    nothing = sweep_again(tmp_path / "new", "--list")
    assert nothing.stdout.startswith("0 of 8 runs done\n")
    assert not (tmp_path / "new").exists()


def test_a_terminal_has_the_columns_that_fit_it(finished):
    outcome = pfl.load_sweep(finished)
    first = ["method", "test accuracy, %", "difference, points", "chosen"]
    for width, expected in ((12, first[:1]), (30, first[:2]), (50, first[:3]), (75, first)):
        caption, _, head, *rows = tables.brief(outcome, width).splitlines()[:5]
        assert caption == "Methods, compared with fedavg"
        assert re.split("  +", head) == expected
        assert max(map(len, tables.brief(outcome, width).splitlines()[1:])) <= max(width, 30)
        assert [row.split()[0] for row in rows] == ["fedavg", "pflego"]
    whole = tables.brief(outcome, 400).splitlines()[2]
    assert re.split("  +", whole) == tables.in_front(outcome.table().tables[0]).head


def test_of_several_experiments_those_are_run_that_have_cells_which_are_asked_for(tmp_path, capsys):
    path = tmp_path / "several.py"
    path.write_text(
        "from tf_pflego.sweeps import Experiment, grid\n"
        "first, second = (Experiment(grid(algorithm=names)) for names in (('fedavg', 'local'),"
        " ('ditto',)))\n"
    )
    flags = ["sweep", str(path), f"--output_dir={tmp_path}", "--list"]
    result = in_this_process([*flags, "--where=algorithm=local,fedavg"], capsys)
    assert result.stdout.splitlines()[0] == "first: 0 of 2 runs done"
    assert "second" not in result.stdout
    assert len(in_this_process(flags, capsys).stdout.splitlines()) == 5


def test_flag_files_of_cells_train_them(tmp_path, capsys, digits_dir, sweep_again):
    text = sweep_again(tmp_path, "--flags", "--where=name=pfl*").stdout
    assert text.startswith(f"# pflego\n# {TRIAL} is chosen: [0.003, 0.1]\n--")
    path = tmp_path / "own.flags"
    path.write_text(text, encoding="utf-8")
    flags = [f"--flagfile={path}", f"--data_dir={digits_dir}", "--engine=in_process"]
    result = done(flags, capsys)
    assert "served worst" in result.stdout  # Also without an output directory.


def test_a_stopped_queue_gives_no_job_and_nobody_waits(tmp_path, caplog):
    experiment = pfl.Experiment([{}], {"client_learning_rate": [0.1, 0.2]}, trials=1)
    queue = Queue(experiment, experiment.planned, tmp_path)
    job, taken = queue.take(), []
    waiting = threading.Thread(target=lambda: taken.append(queue.take()))
    waiting.start()
    queue.stop()
    waiting.join(TIMEOUT_SECONDS)
    assert taken == [None]
    queue.end(job)
    assert queue.take() is None
    assert caplog.messages == []
