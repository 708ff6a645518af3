"""Runs that are stopped, and what --resume makes of them."""

import json
import shutil

import pytest

from tests.runs.resumed import ROUNDS, contents, flags_of, outcome, resume
from tests.starts import assert_refused, done, in_this_process
from tf_pflego.runs import plan
from tf_pflego.runs.config import RunConfig

pytestmark = pytest.mark.usefixtures("traced_once")


def test_the_directory_alone_says_which_run_goes_on(digits_dir, copy, undisturbed, capsys):
    (copy / "checkpoints" / "checkpoint-7.json").unlink()
    alone = ["--resume", f"--output_dir={copy}"]
    beside = [f"--data_dir={digits_dir}", "--local_steps=4"]
    assert_refused(in_this_process([*alone, *beside], capsys), "expected 3, got 4")
    result = done(alone, capsys)
    assert f"tf_pflego: the run goes on with --data_dir={digits_dir}\n" in result.stderr
    assert outcome(copy) == outcome(undisturbed)


def test_a_run_compiles_in_all_rounds_or_in_none(digits_dir, copy, capsys, monkeypatch):
    """With more rounds it would have compiled its clients from the first on."""
    monkeypatch.setattr(plan, "COMPILED_FROM", 2 * ROUNDS + 1)
    longer = RunConfig(engine="in_process", num_rounds=ROUNDS + 1, clients_per_round=2)
    assert plan.Plan.of(longer).compile == "on"
    assert_refused(
        resume(digits_dir, copy, capsys, "--compile=on", rounds=ROUNDS + 1),
        "--compile: expected off, got on",
    )
    assert resume(digits_dir, copy, capsys, rounds=ROUNDS + 1).returncode == 0
    assert json.loads((copy / "config.json").read_text())["compile"] == "off"


def test_a_directory_without_a_run_does_not_say_what_starts(digits_dir, tmp_path, capsys):
    missing = tmp_path / "missing"
    alone = ["--resume", f"--output_dir={missing}", f"--data_dir={digits_dir}", "--quiet"]
    refused = in_this_process([*alone, "--engine=in_process"], capsys)
    assert_refused(refused, f"must have a run to continue; {missing} has none. Correct it")
    assert not missing.exists()
    result = resume(digits_dir, missing, capsys, rounds=1)
    assert result.returncode == 0, result.stderr
    assert f"tf_pflego: there is no run in {missing} to go on with; a new one" in result.stderr


def test_a_finished_run_is_left_alone_or_goes_on_longer(digits_dir, undisturbed, tmp_path, capsys):
    before, stamps = contents(undisturbed), [path.stat() for path in undisturbed.rglob("*")]
    result = resume(digits_dir, undisturbed, capsys)
    assert result.returncode == 0
    assert f"is finished, with all {ROUNDS} rounds. Nothing is done" in result.stderr
    assert contents(undisturbed) == before
    assert [path.stat() for path in undisturbed.rglob("*")] == stamps

    assert_refused(
        resume(digits_dir, undisturbed, capsys, rounds=ROUNDS - 1), "must be at least 7", "got 6"
    )
    longer, at_once = tmp_path / "longer", tmp_path / "at_once"
    shutil.copytree(undisturbed, longer)
    # The last ten rounds are evaluated, so that all are, in both.
    assert resume(digits_dir, longer, capsys, rounds=ROUNDS + 2).returncode == 0
    flags = flags_of(digits_dir, at_once, rounds=ROUNDS + 2)
    assert in_this_process(flags, capsys).returncode == 0
    first, second = outcome(longer), outcome(at_once)
    assert first["server"] == second["server"]
    assert first["rows"] == second["rows"]
    assert [one["round"] for one in first["rounds"]] == list(range(1, ROUNDS + 3))
    # A loss was computed in what was the last round once.
    assert first["rounds"][ROUNDS - 1].pop("train_loss")
    assert first["rounds"] == second["rounds"]
    assert json.loads((longer / "config.json").read_text())["num_rounds"] == ROUNDS + 2


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            ["--local_steps=4", "--seed=1", "--client_learning_rate=0.1"],
            "--client_learning_rate: expected 0.007, got 0.1; --local_steps: expected 3, got 4; "
            "--seed: expected 0, got 1",
        ),
        pytest.param(
            ["--engine=tff"], "expected in_process, got tff", marks=pytest.mark.lines("tff")
        ),
        (["--algorithm=fedavg"], "--algorithm: expected pflego, got fedavg"),
    ],
)
def test_another_run_is_refused(flags, expected, digits_dir, undisturbed, capsys):
    before = contents(undisturbed)
    assert_refused(resume(digits_dir, undisturbed, capsys, *flags), expected)
    assert contents(undisturbed) == before
