"""A run whose clients' heads are all fitted to its body: killed, served, resumed and refused."""

import csv
import shutil
import signal

import numpy as np
import pytest

import tf_pflego as pfl
from tests.runs.resumed import FINISHED, flags_of, outcome
from tests.starts import assert_refused, done, in_this_process, program
from tf_pflego.runs.run_directory import RunDirectoryError
from tf_pflego.simulation import personalizing
from tf_pflego.system import lock

# Personalizes a run in blocks of two clients, and is killed before it renames a file of some name.
CODE = """
import os, signal, sys
import tf_pflego as pfl
from tf_pflego.simulation import personalizing
name, run, data_dir = sys.argv[1:]
def hook(event, arguments):
    if event == "os.rename" and str(arguments[0]).endswith(name):
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
personalizing._CLIENTS_AT_ONCE = 2
pfl.load_run(run, data_dir).personalize()
"""
POINTS = (".block-3.npz.partial", ".checkpoint-7.json.partial", ".personalized.csv.partial")


@pytest.fixture(name="run")
def run_fixture(undisturbed, tmp_path):
    shutil.copytree(undisturbed, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.thorough
def test_killed_in_each_phase_it_ends_with_the_same_bits(undisturbed, run, digits_dir, tmp_path):
    shutil.copytree(undisturbed, tmp_path / "other")
    result = program("no name", tmp_path / "other", digits_dir, code=CODE)
    assert result.returncode == 0, result.stderr
    former = outcome(run)
    for point in (*POINTS, "run/personalizing"):
        result = program(point, run, digits_dir, code=CODE)
        assert result.returncode == -signal.SIGKILL, result.stderr
        if point in POINTS[:2]:  # The checkpoint is as it was until all blocks are there.
            assert outcome(run) == former
    result = program("no name", run, digits_dir, code=CODE)
    assert result.returncode == 0, result.stderr
    assert outcome(run) == outcome(tmp_path / "other") != former
    tables = [(path / "personalized.csv").read_bytes() for path in (run, tmp_path / "other")]
    assert tables[0] == tables[1]


@pytest.mark.thorough
def test_all_clients_are_served_with_their_new_heads(
    run, digits_dir, tmp_path, capsys, monkeypatch, without_pictures
):
    monkeypatch.setattr(personalizing, "_CLIENTS_AT_ONCE", 4)
    flags = ["personalize", f"--run={run}", "--clients=all", f"--data_dir={digits_dir}"]
    shown = done(flags, capsys).stdout
    assert "test accuracy, all clients" in shown
    assert sorted(path.name for path in run.iterdir()) == sorted([*FINISHED, "personalized.csv"])
    with open(run / "personalized.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    with pfl.load_run(run, digits_dir) as stored, stored.simulation() as simulation:
        assert simulation.never_drawn(range(6)) == []
        after = simulation.evaluate().of_clients()["test_accuracy"]
        assert [float(row["test_accuracy"]) for row in rows] == pytest.approx(after, abs=1e-5)
        gain = np.mean(after) - np.mean([float(row["before/test_accuracy"]) for row in rows])
        assert gain > 0.1
        predicted = stored.predict()
        for client in range(2):
            examples, labels = stored.clients.test.of(client)
            probabilities = stored.client_model(client).predict(examples, verbose=0)
            np.testing.assert_allclose(probabilities, predicted[client], atol=1e-5)
            assert np.mean(probabilities.argmax(axis=1) == labels) == pytest.approx(after[client])
    page = tmp_path / "page.html"
    done(["report", str(run), f"--output={page}"], capsys)
    section = page.read_text().partition("Test accuracy of all clients before and after")[2]
    assert f"{100 * np.mean(after):.2f}" in section.partition("</table>")[0]


def test_more_rounds_leave_nothing_of_it(run, digits_dir, capsys):
    (run / "personalizing").mkdir()
    (run / "personalizing" / "block-0.npz").write_bytes(b"half")
    (run / "personalized.csv").write_text("client\n")
    done(flags_of(digits_dir, run, "--resume", rounds=8), capsys)
    assert sorted(path.name for path in run.iterdir()) == FINISHED


def test_what_cannot_be_is_refused(run, digits_dir, tmp_path, capsys):
    flags = ["personalize", f"--run={run}", f"--data_dir={digits_dir}", "--clients=all"]
    result = in_this_process([*flags, f"--output_dir={tmp_path}/x"], capsys)
    assert_refused(result, "--output_dir must not be given unless --clients is new or --table")
    assert_refused(in_this_process([*flags, "--shots=1"], capsys), "--shots must not be given")
    assert_refused(in_this_process([*flags[:-1], "--clients=3"], capsys), "--clients must be")
    result = in_this_process([*flags[:-1], "--data=x.npz", "--toward_mean=1"], capsys)
    assert_refused(result, "--toward_mean must not be given unless --clients is all")
    result = in_this_process([*flags, "--toward_mean=1"], capsys)
    assert_refused(result, "--toward_mean must be 0 where labels are a client's own")
    with (
        pfl.load_run(run, digits_dir) as stored,
        lock.DirectoryLock(run),
        pytest.raises(RunDirectoryError, match="must not be in use"),
    ):
        stored.personalize()
    (run / "personalizing").symlink_to(tmp_path)
    with (
        pfl.load_run(run, digits_dir) as stored,
        pytest.raises(RunDirectoryError, match="is a link"),
    ):
        stored.personalize()
