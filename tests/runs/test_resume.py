"""Runs that are stopped, and what --resume makes of them."""

import json
import shutil
import zlib

import pytest

import tf_pflego as pfl
from tests.runs.resumed import ROUNDS, contents, flags_of, outcome, resume
from tests.starts import assert_refused, done, in_this_process
from tf_pflego.runs.config import RunConfig


def test_the_directory_alone_says_which_run_goes_on(digits_dir, copy, undisturbed, capsys):
    (copy / "checkpoints" / "checkpoint-7.json").unlink()
    alone = ["--resume", f"--output_dir={copy}"]
    beside = [f"--data_dir={digits_dir}", "--local_steps=4"]
    assert_refused(in_this_process([*alone, *beside], capsys), "expected 3, got 4")
    result = done(alone, capsys)
    assert f"tf_pflego: the run goes on with --data_dir={digits_dir}\n" in result.stderr
    assert outcome(copy) == outcome(undisturbed)


def test_a_directory_without_a_run_does_not_say_what_starts(digits_dir, tmp_path, capsys):
    missing = tmp_path / "missing"
    alone = ["--resume", f"--output_dir={missing}", f"--data_dir={digits_dir}", "--quiet"]
    refused = in_this_process([*alone, "--engine=in_process"], capsys)
    assert_refused(refused, f"must have a run to go on with; {missing} has none. Correct it")
    assert not missing.exists()
    result = resume(digits_dir, missing, capsys, rounds=1)
    assert result.returncode == 0, result.stderr
    assert f"tf_pflego: there is no run in {missing} to go on with; a new one" in result.stderr


def test_a_finished_run_is_left_alone_or_goes_on_longer(digits_dir, undisturbed, tmp_path, capsys):
    before, stamps = contents(undisturbed), [path.stat() for path in undisturbed.rglob("*")]
    result = resume(digits_dir, undisturbed, capsys)
    assert result.returncode == 0
    assert f"is finished, with all {ROUNDS} rounds; nothing is done" in result.stderr
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


def as_before_drop_outs(directory):
    """Makes a run one of a version that had no --dropout_rate and did not count drop-outs."""
    metrics = directory / "metrics.jsonl"
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    for record in records:
        del record["dropped"], record["not_finite"]
    metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    config = json.loads((directory / "config.json").read_text())
    del config["dropout_rate"]
    (directory / "config.json").write_text(json.dumps(config))
    for path in (directory / "checkpoints").glob("*.json"):
        content = json.loads(path.read_text())["content"]
        assert "dropout_rate" not in content["participation"]
        del content["configuration"]["dropout_rate"]
        lines = metrics.read_bytes().splitlines(keepends=True)[: content["round"]]
        held = b"".join(lines)
        content["metrics"] = {"bytes": len(held), "crc32": zlib.crc32(held)}
        crc32 = zlib.crc32(json.dumps(content, sort_keys=True).encode())
        path.write_text(json.dumps({"crc32": crc32, "content": content}))


def test_a_run_whose_configuration_lacks_defaults_goes_on(
    digits_dir, copy, undisturbed, tmp_path, capsys
):
    """As earlier versions wrote it in Python: with the hyper-parameters that were given."""
    (copy / "checkpoints" / "checkpoint-7.json").unlink()
    whole = json.loads((copy / "config.json").read_text())
    without = ("client_learning_rate", "server_learning_rate", "server_optimizer", "head_solver")
    for path in (copy / "config.json", copy / "checkpoints" / "checkpoint-6.json"):
        content = json.loads(path.read_text())
        for name in without:
            del content.get("content", {"configuration": content})["configuration"][name]
        if "content" in content:
            text = json.dumps(content["content"], sort_keys=True)
            content["crc32"] = zlib.crc32(text.encode())
        path.write_text(json.dumps(content))
    with pfl.load_run(copy, data_dir=digits_dir) as stored:
        assert stored.round_number == 6
        assert len(stored.evaluate().test_hits) == 6
    assert_refused(
        resume(digits_dir, copy, capsys, "--client_learning_rate=0.1"),
        "--client_learning_rate: expected 0.007, got 0.1. Correct",
    )
    in_python = shutil.copytree(copy, tmp_path / "in_python")
    fields = RunConfig.__dataclass_fields__
    places = {"output_dir": str(in_python), "resume": True}
    run_config = RunConfig(**{name: whole[name] for name in fields} | places)
    pfl.run(run_config, local_steps=3)
    done(["--resume", f"--output_dir={copy}"], capsys)
    for path in (in_python, copy):
        assert outcome(path) == outcome(undisturbed)
        after = json.loads((path / "config.json").read_text())
        assert {name: after[name] for name in without} == {name: whole[name] for name in without}


def test_a_run_from_before_drop_outs_goes_on_without_them(digits_dir, copy, undisturbed, capsys):
    (copy / "checkpoints" / "checkpoint-7.json").unlink()
    as_before_drop_outs(copy)
    assert_refused(
        resume(digits_dir, copy, capsys, "--dropout_rate=0.5"),
        "--dropout_rate: expected 0.0, got 0.5",
    )
    assert resume(digits_dir, copy, capsys).returncode == 0
    first, second = outcome(copy), outcome(undisturbed)
    assert first["server"] == second["server"]
    assert first["summary"] == second["summary"]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--seed=1"], ["--seed: expected 0, got 1"]),
        pytest.param(
            ["--engine=tff"],
            ["--engine: expected in_process, got tff"],
            marks=pytest.mark.lines("tff"),
        ),
        (
            ["--local_steps=4", "--client_learning_rate=0.1"],
            ["--client_learning_rate: expected 0.007, got 0.1; --local_steps: expected 3, got 4"],
        ),
        (["--algorithm=fedavg"], ["--algorithm: expected pflego, got fedavg"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_another_run_is_refused(flags, expected, digits_dir, undisturbed, capsys):
    before = contents(undisturbed)
    assert_refused(resume(digits_dir, undisturbed, capsys, *flags), *expected)
    assert contents(undisturbed) == before
