"""Runs that are killed, stopped or overwritten, and what --resume makes of them."""

import fcntl
import itertools
import json
import os
import resource
import shutil
import signal

import pytest

from tests import starts
from tests.runs import resumed
from tests.runs.directories import run_directory_in
from tf_pflego.runs import run_directory
from tf_pflego.runs.run_directory import RunDirectoryError


@pytest.mark.thorough
def test_killed_again_and_again_it_ends_as_if_undisturbed(digits_dir, tmp_path, undisturbed):
    output = tmp_path / "run"
    code = "import sys; from tests.runs.resumed import die_before\n"
    code += f"die_before(int(sys.argv.pop(1)), {str(output)!r})\n{starts.ENTRY}"
    for point in (9, 24, 27, 36, 40, 33):
        result = starts.program(point, *resumed.flags_of(digits_dir, output, "--resume"), code=code)
        assert result.returncode == -signal.SIGKILL, result.stderr
    result = starts.program(*resumed.flags_of(digits_dir, output, "--resume"))
    assert result.returncode == 0, result.stderr
    assert resumed.outcome(output) == resumed.outcome(undisturbed)
    assert sorted(path.name for path in output.iterdir()) == resumed.FINISHED


# As on a system that is not Linux, with its temporary files in a directory that a test reads.
OTHER = """
import sys, tempfile
from tf_pflego.system import operating_system, rows
operating_system.IS_LINUX, tempfile.tempdir = False, sys.argv.pop(1)
rows.fit_memory = lambda num_bytes: False
"""


@pytest.mark.thorough
def test_another_system_ends_with_the_same_and_leaves_nothing(digits_dir, tmp_path, undisturbed):
    """The files that a run maps have names there; those of a killed one are removed by the next."""
    output, files = tmp_path / "run", tmp_path / "files"
    files.mkdir()
    flags = resumed.flags_of(digits_dir, output)
    dying = f"from tests.runs.resumed import die_before\ndie_before(36, {str(output)!r})\n"
    killed = starts.program(files, *flags, code=f"{OTHER}{dying}{starts.ENTRY}")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(list(files.rglob("tf_pflego_data_"))) >= 4  # examples and labels of two splits
    export = ["export", f"--run={output}", "--clients=0", f"--output_dir={tmp_path / 'models'}"]
    for arguments in ([*flags, "--resume"], [*export, f"--data_dir={digits_dir}"]):
        result = starts.program(files, *arguments, code=OTHER + starts.ENTRY)
        assert result.returncode == 0, result.stderr
        assert not list(files.iterdir())
    assert resumed.outcome(output) == resumed.outcome(undisturbed)


@pytest.mark.thorough
def test_ctrl_c_checkpoints_first_and_a_full_disk_is_said(digits_dir, tmp_path, capsys):
    """A long run is stopped by Ctrl-C, and then by a limit on its files."""
    output, at_once = tmp_path / "run", tmp_path / "at_once"
    endless = ("--checkpoint_every=1000", "--num_rounds=100000", "--eval_every=1")
    endless = (
        *starts.replaced(*resumed.SMALL, *endless),
        "--compile=off",
    )  # As in the few rounds at once.
    endless += (f"--data_dir={digits_dir}", f"--output_dir={output}")
    metrics = output / "metrics.jsonl"

    running = starts.begun(*endless)
    starts.wait_for_rounds(running, metrics, 20)
    another = starts.in_this_process([*endless, "--overwrite"], capsys)
    starts.assert_refused(another, "--output_dir must not be in use; another run writes to")
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=starts.TIMEOUT_SECONDS)
    assert running.returncode == 130
    assert "interrupted; go on with it by --resume" in errors
    count = len(metrics.read_bytes().splitlines())
    assert resumed.newest_round(output / "checkpoints") == count >= 20

    running = starts.begun(*endless, "--resume")
    starts.wait_for_rounds(running, metrics, count + 5)
    size = metrics.stat().st_size + 5000
    resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (size, size))
    _, errors = running.communicate(timeout=starts.TIMEOUT_SECONDS)
    assert running.returncode == 2
    assert f"File too large: '{metrics}'" in errors.splitlines()[-1]
    assert resumed.newest_round(output / "checkpoints") == count

    last = f"--num_rounds={count + 2}"
    starts.done(starts.replaced(*endless, last, "--resume"), capsys)
    starts.done(starts.replaced(*endless, last, f"--output_dir={at_once}"), capsys)
    assert resumed.outcome(output) == resumed.outcome(at_once)


@pytest.mark.thorough
@pytest.mark.lines("tff")
def test_on_tff_sigterm_checkpoints_and_it_goes_on_to_the_same_bits(digits_dir, tmp_path, capsys):
    output, at_once = tmp_path / "run", tmp_path / "at_once"
    flags = resumed.flags_of(digits_dir, output, "--engine=tff", rounds=100_000)
    running = starts.begun(*flags)
    starts.wait_for_rounds(running, output / "metrics.jsonl", 3)
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=starts.TIMEOUT_SECONDS)
    assert running.returncode == 143
    count = resumed.newest_round(output / "checkpoints")
    assert count == len((output / "metrics.jsonl").read_bytes().splitlines())
    rounds = [f"--num_rounds={count + 3}"]
    starts.done(starts.replaced(*flags, *rounds, "--resume"), capsys)
    flags = resumed.flags_of(digits_dir, at_once, "--engine=tff", *rounds)
    assert starts.in_this_process(flags, capsys).returncode == 0
    assert resumed.outcome(output)["server"] == resumed.outcome(at_once)["server"]
    assert resumed.outcome(output)["rows"] == resumed.outcome(at_once)["rows"]


@pytest.mark.thorough
def test_an_interrupted_overwrite_leaves_the_old_run_and_can_go_on(
    digits_dir, copy, undisturbed, capsys
):
    shutil.copytree(undisturbed, copy, dirs_exist_ok=True)
    (copy / "notes.txt").write_text("the user's own")
    before = resumed.contents(copy)
    running = starts.begun(
        *resumed.flags_of(digits_dir, copy, "--seed=1", "--overwrite", rounds=100_000)
    )
    starts.wait_for_rounds(running, copy / ".new_run" / "metrics.jsonl", 5)
    running.kill()
    running.communicate()
    assert before.items() <= resumed.contents(copy).items()
    refused = starts.in_this_process(resumed.flags_of(digits_dir, copy), capsys)
    starts.assert_refused(refused, "must not contain another run")
    refused = resumed.resume(digits_dir, copy, capsys, "--seed=0")
    starts.assert_refused(refused, ".new_run; --seed: expected 1, got 0")
    rounds = resumed.newest_round(copy / ".new_run" / "checkpoints") + 1
    starts.done(["--resume", f"--output_dir={copy}", f"--num_rounds={rounds}"], capsys)
    assert sorted(path.name for path in copy.iterdir()) == sorted([*resumed.FINISHED, "notes.txt"])
    assert len(resumed.outcome(copy)["rounds"]) == rounds
    assert json.loads((copy / "config.json").read_text())["seed"] == 1


def killed_before(point, output, action):
    """Does something in a child that dies before one of its operations on the directory's files.

    Returns:
      Whether it died.
    """
    child = os.fork()
    if child == 0:
        resumed.die_before(point, str(output))
        action()
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def texts(*directories):
    """The files of directories by their names; a file of a later directory counts."""
    return {
        str(path.relative_to(directory)): path.read_text()
        for directory in directories
        for path in directory.rglob("*")
        if path.is_file() and not path.relative_to(directory).parts[0].startswith(".")
    }


@pytest.mark.thorough
def test_a_new_run_takes_the_place_of_the_old_one_whatever_interrupts_it(tmp_path):
    """It is killed before each operation; the next use of the directory completes the change."""
    inside = {"checkpoints/server-1.npz", "tensorboard/events.out.tfevents.1.tf_pflego.v2"}
    inside.add("personalizing/block-0.npz")
    names = inside | {*run_directory._FILES} - {name.partition("/")[0] for name in inside}
    old = {name: f'old "algorithm" {name}' for name in names}
    new = {name: f'new "algorithm" {name}' for name in names - {"new_clients.csv"}}
    seen = set()
    for point in itertools.count(1):
        output = tmp_path / str(point)
        for directory, files in ((output, old), (output / ".new_run", new)):
            for name, text in files.items():
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                (directory / name).write_text(text)

        def use(output=output):
            run_directory_in(output, overwrite=True).close()

        killed = killed_before(point, output, use)
        summary = texts(output).get("summary.json", "none")
        seen.add(summary)
        # A directory with a summary has all that belongs to it.
        if summary != "none":
            assert texts(output) == (old if summary.startswith("old") else new)
        if not summary.startswith("new"):
            assert old.items() <= texts(output, output / ".old_run").items()
        use()
        assert texts(output) == new
        assert not list(output.glob(".*"))
        if not killed:
            break
    assert seen == {old["summary.json"], "none", new["summary.json"]}


def test_a_directory_in_use_is_refused_and_a_dead_users_is_not(tmp_path):
    directory = run_directory_in(tmp_path / "run")
    with pytest.raises(RunDirectoryError, match="must not be in use"):
        run_directory_in(tmp_path / "run", overwrite=True)
    directory.close()
    assert not list(tmp_path.iterdir())  # Nothing is left where nothing was run.
    killed_before(6, tmp_path, lambda: run_directory_in(tmp_path / "run"))
    (tmp_path / "run").mkdir(exist_ok=True)
    (tmp_path / "run" / ".lock").touch()
    with open(tmp_path / "run" / ".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(RunDirectoryError, match="must not be in use"):
            run_directory_in(tmp_path / "run")
    run_directory_in(tmp_path / "run").close()
