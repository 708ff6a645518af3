"""Runs whose files are cut off or changed: --resume takes no wrong state."""

import json
import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.test_contract import whole_state
from tests.comparison import assert_identical
from tests.runs.resumed import ROUNDS, contents, outcome, resume
from tests.starts import assert_refused
from tf_pflego.runs import build
from tf_pflego.runs.config import RunConfig
from tf_pflego.runs.plan import Plan
from tf_pflego.runs.run_directory import RunDirectory
from tf_pflego.simulation.checkpoint import CheckpointError
from tf_pflego.system import durable


def test_metrics_are_cut_off_and_it_ends_as_if_undisturbed(digits_dir, copy, undisturbed, capsys):
    metrics = copy / "metrics.jsonl"
    *_, last = metrics.read_bytes().splitlines(keepends=True)
    cut_off = int(np.random.default_rng(1).integers(1, len(last)))
    os.truncate(metrics, metrics.stat().st_size - cut_off)
    kept = shutil.copytree(copy, copy.with_name("kept"), copy_function=os.link)
    before = contents(kept)
    result = resume(digits_dir, copy, capsys)
    assert result.returncode == 0, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("tf_pflego")]
    assert "metrics.jsonl" in line
    assert "the checkpoint of round 6 is used" in line
    assert outcome(copy) == outcome(undisturbed)
    assert contents(kept) == before  # A copy by hard links keeps what it has.


def damages(content, rng):
    """A file's content cut off at every 256th byte, and with one bit changed at random places."""
    for size in range(0, len(content), 256):
        yield content[:size]
    for _ in range(20):
        changed = bytearray(content)
        changed[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
        yield bytes(changed)


def says_the_same(text, content):
    try:
        return json.loads(text)["content"] == content
    except (ValueError, KeyError, TypeError):
        return False


@pytest.mark.thorough
def test_wherever_a_file_is_cut_off_or_changed_no_wrong_state_is_taken(
    digits_dir, copy, monkeypatch
):
    """A run goes on from the newest checkpoint or the one before, or is refused."""
    monkeypatch.setattr(durable, "to_disk", lambda path: None)  # Nothing here loses its power.
    newest = json.loads((copy / "checkpoints" / "checkpoint-7.json").read_text())["content"]
    own = {name: newest["configuration"][name] for name in RunConfig.__dataclass_fields__}
    others = {k: v for k, v in newest["configuration"].items() if k not in own}
    whole, rng = contents(copy), np.random.default_rng(2)
    lines = whole[pathlib.Path("metrics.jsonl")].splitlines()
    records = [json.loads(line) for line in lines]
    # By the files, the rounds from which it may go on; both checkpoints need the first six lines.
    files = {"metrics.jsonl": {6, None}, "config.json": {7}, "checkpoints/checkpoint-7.json": {6}}
    for entry in [newest["server"], *newest["clients"]]:
        assert "-7." in entry["file"]  # The checkpoint of round 6 does not need it.
        files[f"checkpoints/{entry['file']}"] = {6}
    here = {"output_dir": str(copy), "resume": True}
    plan = Plan.of(RunConfig(**own | here), **others)
    with build.simulation_of(plan) as simulation:
        states = {}
        for number in range(1, ROUNDS + 1):
            simulation.run_round()
            states[number] = whole_state(simulation)
        held = simulation.server_state, simulation.client_states(range(6))
        zeros = tf.nest.map_structure(tf.zeros_like, held)
        for name, expected in files.items():
            seen = set()
            for count, content in enumerate(damages(whole[pathlib.Path(name)], rng)):
                if name.endswith("checkpoint-7.json") and says_the_same(content, newest):
                    continue  # It has only lost its last line break.
                for written in ("config.json", "metrics.jsonl"):  # By a run that goes on.
                    (copy / written).write_bytes(whole[pathlib.Path(written)])
                (copy / name).write_bytes(content)
                try:
                    directory = RunDirectory(plan)
                except CheckpointError as error:
                    assert "all are damaged" in str(error)
                    seen.add(None)
                    continue
                with directory:
                    number = directory._checkpoint["round"]
                    seen.add(number)
                    if count % 10:  # To restore the state takes most of the time.
                        continue
                    simulation.server_state = zeros[0]
                    simulation.set_client_states(range(6), zeros[1])
                    actual = directory.begin(simulation, simulation.data, {})
                assert simulation.round_number == number
                assert actual == records[:number]
                assert_identical(whole_state(simulation), states[number])
                config = json.loads((copy / "config.json").read_text())
                assert config.items() >= (newest["configuration"] | here).items()
            assert seen == expected, name
            (copy / name).write_bytes(whole[pathlib.Path(name)])


@pytest.mark.parametrize("name", ["summary.json", "config.json"])
def test_a_damaged_summary_or_configuration_is_written_again(
    name, digits_dir, undisturbed, tmp_path, capsys
):
    path = tmp_path / "run"
    shutil.copytree(undisturbed, path)
    if name == "config.json":
        (path / "summary.json").unlink()
    before = json.loads((path / name).read_text())
    os.truncate(path / name, 100)
    result = resume(digits_dir, path, capsys)
    assert result.returncode == 0, result.stderr
    assert outcome(path) == outcome(undisturbed)
    after = json.loads((path / name).read_text())
    if name == "config.json":
        assert "without the versions of its first 7 rounds" in result.stderr
        (now,) = after.pop("versions").items()
        before["versions"] |= {"commit": now[1]["commit"]}  # It may be another one meanwhile.
        assert now == ("from_round_8", before.pop("versions"))
        for places in (before, after):
            del places["output_dir"], places["resume"]
        assert after == before
        shutil.rmtree(path / "checkpoints")
        (path / "summary.json").unlink()
        os.truncate(path / name, 100)
        assert_refused(resume(digits_dir, path, capsys), "config.json is damaged", "--overwrite")


def test_without_a_whole_checkpoint_it_is_refused(digits_dir, copy, capsys):
    for path in (copy / "checkpoints").glob("server-*"):
        os.truncate(path, 100)
    before = contents(copy)
    assert_refused(resume(digits_dir, copy, capsys), "all are damaged", "server-7.npz has 100 of")
    shutil.rmtree(copy / "checkpoints")
    assert_refused(resume(digits_dir, copy, capsys), "--resume needs a checkpoint", "--overwrite")
    assert contents(copy).items() <= before.items()
