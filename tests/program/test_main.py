"""The program as a user runs it: real processes, real files."""

import csv
import itertools
import json
import os
import pathlib
import signal
import subprocess

import numpy as np
import pytest

from tests import starts
from tests.runs.resumed import FINISHED, records_of

PARTS = itertools.product(("", "participant_"), ("client", "example"))
METRICS = [f"{who}test_accuracy/{mean}_mean" for who, mean in PARTS]
# As of a terminal that has no more than this.
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}


@pytest.fixture(scope="module")
def finished_run(digits_dir, tmp_path_factory):
    output = tmp_path_factory.mktemp("runs") / "größe"
    flags = [*starts.SMALL, "--num_rounds=14", "--eval_every=3", f"--output_dir={output}"]
    return output, starts.started_program(*flags, digits_dir=digits_dir, env=os.environ | ASCII)


def test_a_run_writes_its_directory(finished_run):
    output, result = finished_run
    assert result.returncode == 0, result.stderr
    assert sorted(p.name for p in output.iterdir()) == FINISHED
    config = json.loads((output / "config.json").read_text())
    assert (config["algorithm"], config["local_steps"], config["num_clients"]) == ("pflego", 5, 10)
    records = records_of(output)
    assert [record["round"] for record in records] == list(range(1, 15))
    evaluated = [record["round"] for record in records if "test_accuracy/client_mean" in record]
    assert evaluated == [1, 3, *range(5, 15)]  # The first, every third, and the last ten.
    with_loss = [record["round"] for record in records if "train_loss" in record]
    assert with_loss == [10, 14]  # Every tenth, and the last.
    for record in records:
        assert record["participants"] == 4
        assert record["bytes_down"] == record["bytes_up"] == 4 * 4 * (64 * 200 + 200)
        assert set(METRICS) <= set(record) or "train_loss" not in record
    summary = json.loads((output / "summary.json").read_text())
    for name in METRICS:
        assert summary[name] == records[-1][name]
        last = [record[name] for record in records[-10:]]
        assert summary[f"{name}/last10"] == pytest.approx(np.mean(last))
    median = np.median([record["seconds"] for record in records])
    assert summary["seconds_per_round/median"] == pytest.approx(median)
    rows = list(csv.DictReader((output / "clients.csv").open()))
    assert [int(row["client"]) for row in rows] == list(range(10))
    assert sum(int(row["train_examples"]) for row in rows) == 1438
    accuracies = [float(row["test_accuracy"]) for row in rows]
    assert np.mean(accuracies) == pytest.approx(summary["test_accuracy/client_mean"], abs=1e-5)
    with np.load(output / "partition.npz") as partition:
        assert sorted(partition["train_indices"]) == list(range(1438))
        assert partition["classes_offsets"].tolist() == list(range(0, 21, 2))
        counts = partition["class_counts"].reshape(10, 2).sum(axis=1)
        assert counts.tolist() == [int(row["train_examples"]) for row in rows]


def test_what_a_pipe_gets_is_plain_and_names_the_clients_that_are_served_worst(finished_run):
    output, result = finished_run
    rows = list(csv.DictReader((output / "clients.csv").open()))
    rows.sort(key=lambda row: float(row["test_accuracy"]))
    lines = result.stdout.splitlines()
    start = lines.index("served worst  classes  train  test  accuracy")
    for line, row in zip(lines[start + 1 : start + 6], rows, strict=False):
        sizes = row["train_examples"], row["test_examples"]
        accuracy = f"{float(row['test_accuracy']):.4f}"
        expected = ["client", row["client"], *row["classes"].split(), *sizes, accuracy]
        assert line.split() == expected
    (line,) = (line for line in lines if "worst tenth, 1 of 10" in line)
    assert float(line.split()[-1]) == pytest.approx(float(rows[0]["test_accuracy"]), abs=1e-4)
    # Python has each byte of a name that is not ASCII as a character of its own.
    name = os.fsencode(output).decode("ascii", "surrogateescape")
    name = name.encode("ascii", "backslashreplace").decode()
    assert lines[-2] == f"written to {name}; a page about it:"
    assert "mean of last 10" in result.stdout and "\r" not in result.stderr
    first, *others = result.stderr.strip().splitlines()
    assert first == "starting TensorFlow, then pflego on digits (in_process), 14 rounds"
    assert [line.split()[1] for line in others] == [f"{r}/14" for r in (1, 3, *range(5, 15))]


@pytest.mark.thorough
def test_the_command_for_a_page_works_without_tensorflow(digits_dir, tmp_path, capsys):
    places = [f"--data_dir={digits_dir}", f"--output_dir={tmp_path / 'run'}"]
    *_, command = starts.done(
        [*starts.SMALL, "--num_rounds=1", *places], capsys
    ).stdout.splitlines()
    page = tmp_path / "page.html"
    told = os.environ | {"PYTHONPROFILEIMPORTTIME": "1"}
    shown = starts.finished(["bash", "-c", f"{command} --output={page}"], env=told)
    assert (shown.returncode, shown.stdout) == (0, f"written to {page}\n"), shown.stderr
    assert "tf_pflego.reports" in shown.stderr and "tensorflow.python" not in shown.stderr


@pytest.mark.lines("tff")
@pytest.mark.thorough
def test_a_worker_that_fails_too_often_ends_the_run_on_tff(digits_dir, tmp_path):
    """One line says why, and a checkpoint holds the last round that was good."""
    output = tmp_path / "run"
    flags = ["--dataset=digits", "--num_clients=20", "--num_rounds=100000", "--max_restarts=0"]
    flags += ["--eval_every=1000000", "--checkpoint_every=1000000"]
    running = starts.begun(*flags, f"--data_dir={digits_dir}", f"--output_dir={output}")
    metrics = output / "metrics.jsonl"
    try:
        starts.wait_for_rounds(running, metrics, 1)
        children = pathlib.Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text()
        (worker,) = (
            int(child)
            for child in children.split()
            if "worker_binary" in pathlib.Path(f"/proc/{child}/cmdline").read_text()
        )
        os.kill(worker, signal.SIGKILL)
        printed, errors = running.communicate(timeout=starts.TIMEOUT_SECONDS)
    finally:
        running.kill()
    result = subprocess.CompletedProcess(flags, running.returncode, printed, errors)
    said = f"tf_pflego: the TFF worker (process {worker}) was killed by SIGKILL"
    starts.assert_refused(result, said, "--engine=in_process", "--resume")
    count = len(metrics.read_text().splitlines())
    assert (output / "checkpoints" / f"checkpoint-{count}.json").exists()


def test_a_run_whose_numbers_explode_ends_with_code_3_and_can_go_on(digits_dir, tmp_path, capsys):
    """The second round has no participant with finite numbers; the first is in a checkpoint."""
    flags = (*starts.SMALL, "--server_optimizer=sgd", "--num_rounds=5", f"--output_dir={tmp_path}")
    flags = (*flags, "--server_learning_rate=1e18", "--client_learning_rate=1e18")
    first = starts.in_this_process([*flags, f"--data_dir={digits_dir}"], capsys)
    assert (first.returncode, first.stdout) == (3, ""), first.stderr
    *_, last = first.stderr.strip().splitlines()
    assert last.startswith("tf_pflego: round 2: at least one participant's update must be finite")
    assert "clients 2, 3, 5, 6. The round is not kept. Lower --client_learning_rate" in last
    assert (tmp_path / "checkpoints" / "checkpoint-1.json").exists()
    assert not (tmp_path / "summary.json").exists()
    held = (tmp_path / "metrics.jsonl").read_bytes()
    assert len(held.splitlines()) == 1
    # It goes on from there, and ends as before.
    again = starts.in_this_process([*flags, f"--data_dir={digits_dir}", "--resume"], capsys)
    assert (again.returncode, starts.messages_of(again)) == (3, [last])
    assert (tmp_path / "metrics.jsonl").read_bytes() == held
