"""Runs that are killed, stopped, cut off or overwritten, and what --resume makes of them."""

import csv
import fcntl
import itertools
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.algorithms.test_contract import assert_identical, whole_state
from tests.program.test_main import ROOT, TIMEOUT_SECONDS, assert_refused, code_of, in_this_process
from tf_pflego.runs import build, run_directory
from tf_pflego.runs.config import RunConfig
from tf_pflego.runs.run_directory import RunDirectory, RunDirectoryError
from tf_pflego.simulation.checkpoint import CheckpointError
from tf_pflego.system import durable

pytestmark = pytest.mark.same_on_both_lines


ROUNDS = 7
SMALL = (
    "--dataset=digits",
    "--num_clients=6",
    "--clients_per_round=2",
    "--local_steps=3",
    "--engine=in_process",
    "--eval_every=3",
    "--train_loss_every=2",
    "--checkpoint_every=2",
)
FINISHED = [
    "checkpoints", "clients.csv", "config.json", "metrics.jsonl", "partition.npz", "server.npz",
    "summary.json",
]  # fmt: skip


def flags_of(digits_dir, output, *more, rounds=ROUNDS):
    places = (f"--data_dir={digits_dir}", f"--output_dir={output}")
    return [*SMALL, f"--num_rounds={rounds}", *places, *more]


def outcome(directory):
    """What a run ends with: everything but the seconds, which tell the time."""
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((directory / "summary.json").read_text())
    for timed in (*records, summary):
        for name in [name for name in timed if name.startswith("seconds")]:
            del timed[name]
    with np.load(directory / "server.npz") as arrays:
        server = {name: array.tobytes() for name, array in arrays.items()}
    manifests = (directory / "checkpoints").glob("checkpoint-*.json")
    newest = max(manifests, key=lambda path: int(path.stem.split("-")[1]))
    clients = {}
    for segment in json.loads(newest.read_text())["content"]["clients"]:
        with np.load(newest.parent / segment["file"]) as arrays:
            for client, head in zip(arrays["ids"].tolist(), arrays["state/head"], strict=True):
                clients.setdefault(client, head.tobytes())
    rows = list(csv.reader((directory / "clients.csv").open()))
    return {"rounds": records, "summary": summary, "server": server, "rows": rows} | clients


def contents(directory):
    return {
        path.relative_to(directory): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def undisturbed(digits_dir, tmp_path_factory):
    """The directory of a run that nothing has disturbed."""
    output = tmp_path_factory.mktemp("undisturbed") / "run"
    assert code_of(flags_of(digits_dir, output)) == 0
    return output


@pytest.fixture
def copy(undisturbed, tmp_path):
    """A copy of it, as it was when all rounds were done and nothing else."""
    path = tmp_path / "copy"
    shutil.copytree(undisturbed, path)
    for name in ("summary.json", "server.npz", "clients.csv"):
        (path / name).unlink()
    return path


def resume(digits_dir, output, capsys, *more, rounds=ROUNDS):
    flags = flags_of(digits_dir, output, "--resume", *more, rounds=rounds)
    return in_this_process(flags, capsys)


def test_a_copy_by_hard_links_keeps_what_it_has(copy, digits_dir, capsys, tmp_path, undisturbed):
    with open(copy / "metrics.jsonl", "ab") as metrics:
        metrics.write(b"a line that was cut")
    kept = tmp_path / "kept"
    shutil.copytree(copy, kept, copy_function=os.link)
    before = contents(kept)
    assert resume(digits_dir, copy, capsys).returncode == 0
    assert contents(kept) == before
    assert outcome(copy) == outcome(undisturbed)


# Each child runs the program and dies before one of its operations on the files of the run; the
# next child goes on. Python reports these operations as audit events.
KILLED_AGAIN_AND_AGAIN = """
import os, signal, sys
from tf_pflego import main

output, points, flags = sys.argv[1], [int(n) for n in sys.argv[2].split(",")], sys.argv[3:]
for point in points:
    child = os.fork()
    if child == 0:
        count = 0

        def hook(event, arguments):
            global count
            if arguments and str(arguments[0]).startswith(output):
                count += 1
                if count == point:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        code = main.main(["tf_pflego", *flags])
        os._exit(code)
    _, status = os.waitpid(child, 0)
    print(os.WTERMSIG(status) if os.WIFSIGNALED(status) else "ended", flush=True)
"""


def test_killed_again_and_again_it_ends_as_if_undisturbed(digits_dir, tmp_path, undisturbed):
    output = tmp_path / "run"
    points = [9, 24, 27, 36, 40, 33, 1000]
    command = [sys.executable, "-c", KILLED_AGAIN_AND_AGAIN, str(output)]
    command += [",".join(map(str, points)), *flags_of(digits_dir, output, "--resume")]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True
    )
    *killed, last = [line for line in result.stdout.splitlines() if line in ("9", "ended")]
    assert killed == ["9"] * 6
    assert last == "ended"
    assert outcome(output) == outcome(undisturbed)
    assert sorted(path.name for path in output.iterdir()) == FINISHED


def test_whatever_is_cut_off_it_ends_as_if_undisturbed(digits_dir, copy, undisturbed, capsys):
    """Each file of the newest checkpoint is cut off, one after the other."""
    whole, rng = contents(copy), np.random.default_rng(1)
    names = ["checkpoints/checkpoint-7.json", "checkpoints/server-7.npz"]
    names += ["checkpoints/clients-7.npz", "metrics.jsonl"]
    for name in names:
        shutil.rmtree(copy)
        for path, content in whole.items():
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            (copy / path).write_bytes(content)
        last_rounds = len(whole[pathlib.Path("metrics.jsonl")].splitlines(keepends=True)[-1])
        size = len(whole[pathlib.Path(name)])
        cut = rng.integers(1, last_rounds if name == "metrics.jsonl" else size)
        os.truncate(copy / name, size - int(cut))
        result = resume(digits_dir, copy, capsys)
        assert result.returncode == 0, result.stderr
        (line,) = [line for line in result.stderr.splitlines() if line.startswith("tf_pflego")]
        assert pathlib.Path(name).name in line
        assert "the one of round 6 is used" in line
        assert outcome(copy) == outcome(undisturbed)


def damages(content, rng):
    """A file's content cut off at every 64th byte, and with one bit changed at random places."""
    for size in range(0, len(content), 64):
        yield content[:size]
    for _ in range(50):
        changed = bytearray(content)
        changed[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
        yield bytes(changed)


def says_the_same(text, content):
    try:
        return json.loads(text)["content"] == content
    except (ValueError, KeyError, TypeError):
        return False


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
    with build.build_simulation(RunConfig(**own), **others) as simulation:
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
                    directory = RunDirectory(copy, newest["configuration"], resume=True)
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
                    found = directory.begin(simulation, simulation.data, {})
                assert simulation.round_number == number
                assert found == records[:number]
                assert_identical(whole_state(simulation), states[number])
                config = json.loads((copy / "config.json").read_text())
                assert newest["configuration"].items() <= config.items()
            assert seen == expected, name
            (copy / name).write_bytes(whole[pathlib.Path(name)])


def test_the_directory_alone_says_which_run_goes_on(digits_dir, copy, undisturbed, capsys):
    (copy / "checkpoints" / "checkpoint-7.json").unlink()
    alone = ["--resume", f"--output_dir={copy}"]
    beside = [f"--data_dir={digits_dir}", "--local_steps=4"]
    assert_refused(in_this_process([*alone, *beside], capsys), "expected 3, got 4")
    result = in_this_process(alone, capsys)
    assert result.returncode == 0, result.stderr
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
        assert "versions its first 7 rounds were run is lost" in result.stderr
        assert after.pop("versions") == {"from_round_8": before.pop("versions")}
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
    result = in_this_process(["--resume", f"--output_dir={copy}"], capsys)
    assert result.returncode == 0, result.stderr
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
        (["--engine=tff"], ["--engine: expected in_process, got tff"]),
        (
            ["--local_steps=4", "--client_learning_rate=0.1"],
            ["--client_learning_rate: expected 0.007, got 0.1; --local_steps: expected 3, got 4"],
        ),
        (["--algorithm=fedavg"], ["--algorithm: expected pflego, got fedavg"]),
        (["--overwrite"], ["--resume must be given without --overwrite; got both"]),
        (["--output_dir="], ["--resume must be given with --output_dir; got no output_dir"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_another_run_is_refused(flags, expected, digits_dir, undisturbed, capsys):
    before = contents(undisturbed)
    assert_refused(resume(digits_dir, undisturbed, capsys, *flags), *expected)
    assert contents(undisturbed) == before


def start(flags):
    return subprocess.Popen(
        [sys.executable, "-m", "tf_pflego.main", *flags],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_rounds(running, metrics, count):
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not metrics.exists() or len(metrics.read_bytes().splitlines()) < count:
        assert running.poll() is None, running.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def newest_round(directory):
    return max(int(path.stem.split("-")[1]) for path in directory.glob("checkpoint-*.json"))


def test_ctrl_c_checkpoints_first_and_a_full_disk_is_said(digits_dir, tmp_path, capsys):
    """A long run is stopped by Ctrl-C, and then by a limit on its files."""
    output, at_once = tmp_path / "run", tmp_path / "at_once"
    endless = (*SMALL, "--checkpoint_every=1000", "--num_rounds=100000", "--eval_every=1")
    endless += (f"--data_dir={digits_dir}", f"--output_dir={output}")
    metrics = output / "metrics.jsonl"

    running = start(endless)
    wait_for_rounds(running, metrics, 20)
    another = in_this_process([*endless, "--overwrite"], capsys)
    assert_refused(another, "--output_dir must not be in use; another run writes to")
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=TIMEOUT_SECONDS)
    assert running.returncode == 130
    assert "interrupted; go on with it by --resume" in errors
    done = len(metrics.read_bytes().splitlines())
    assert newest_round(output / "checkpoints") == done >= 20

    running = start([*endless, "--resume"])
    wait_for_rounds(running, metrics, done + 5)
    size = metrics.stat().st_size + 5000
    resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (size, size))
    _, errors = running.communicate(timeout=TIMEOUT_SECONDS)
    assert running.returncode == 2
    assert f"File too large: '{metrics}'" in errors.splitlines()[-1]
    assert newest_round(output / "checkpoints") == done

    last = f"--num_rounds={done + 2}"
    result = in_this_process([*endless, last, "--resume"], capsys)
    assert result.returncode == 0, result.stderr
    assert in_this_process([*endless, last, f"--output_dir={at_once}"], capsys).returncode == 0
    assert outcome(output) == outcome(at_once)


def test_on_tff_sigterm_checkpoints_and_it_goes_on_to_the_same_bits(digits_dir, tmp_path, capsys):
    pytest.importorskip("tensorflow_federated", reason="the TFF engine is optional")
    output, at_once = tmp_path / "run", tmp_path / "at_once"
    flags = flags_of(digits_dir, output, "--engine=tff", rounds=100_000)
    running = start(flags)
    wait_for_rounds(running, output / "metrics.jsonl", 3)
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=TIMEOUT_SECONDS)
    assert running.returncode == 143
    done = newest_round(output / "checkpoints")
    assert done == len((output / "metrics.jsonl").read_bytes().splitlines())
    rounds = [f"--num_rounds={done + 3}"]
    assert in_this_process([*flags, *rounds, "--resume"], capsys).returncode == 0
    flags = flags_of(digits_dir, at_once, "--engine=tff", *rounds)
    assert in_this_process(flags, capsys).returncode == 0
    assert outcome(output)["server"] == outcome(at_once)["server"]
    assert outcome(output)["rows"] == outcome(at_once)["rows"]


def test_an_interrupted_overwrite_leaves_the_old_run_and_can_go_on(
    digits_dir, copy, undisturbed, capsys
):
    shutil.copytree(undisturbed, copy, dirs_exist_ok=True)
    (copy / "notes.txt").write_text("the user's own")
    before = contents(copy)
    running = start(flags_of(digits_dir, copy, "--seed=1", "--overwrite", rounds=100_000))
    wait_for_rounds(running, copy / ".new_run" / "metrics.jsonl", 5)
    running.kill()
    running.communicate()
    assert before.items() <= contents(copy).items()
    assert_refused(in_this_process(flags_of(digits_dir, copy), capsys), "must not hold another run")
    refused = resume(digits_dir, copy, capsys, "--seed=0")
    assert_refused(refused, ".new_run; --seed: expected 1, got 0")
    rounds = newest_round(copy / ".new_run" / "checkpoints") + 1
    result = in_this_process(["--resume", f"--output_dir={copy}", f"--num_rounds={rounds}"], capsys)
    assert result.returncode == 0, result.stderr
    assert sorted(path.name for path in copy.iterdir()) == sorted([*FINISHED, "notes.txt"])
    assert len(outcome(copy)["rounds"]) == rounds
    assert json.loads((copy / "config.json").read_text())["seed"] == 1


def killed_before(point, output, action):
    """Does something in a child that dies before one of its operations on the directory's files.

    Returns:
      Whether it died.
    """
    child = os.fork()
    if child == 0:
        count = itertools.count(1)

        def hook(event, arguments):
            if arguments and str(arguments[0]).startswith(str(output)) and next(count) == point:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
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


def test_a_new_run_takes_the_place_of_the_old_one_whatever_interrupts_it(tmp_path):
    """It is killed before each operation; the next use of the directory completes the change."""
    names = {"checkpoints/a.npz", *run_directory._FILES} - {"checkpoints"}
    old = {name: f"old {name}" for name in names}
    new = {name: f"new {name}" for name in names - {"new_clients.csv"}}
    seen = set()
    for point in itertools.count(1):
        output = tmp_path / str(point)
        for directory, files in ((output, old), (output / ".new_run", new)):
            (directory / "checkpoints").mkdir(parents=True)
            for name, text in files.items():
                (directory / name).write_text(text)

        def use(output=output):
            RunDirectory(output, {}, overwrite=True).close()

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
    assert seen == {"old summary.json", "none", "new summary.json"}


def test_a_directory_in_use_is_refused_and_a_dead_users_is_not(tmp_path):
    directory = RunDirectory(tmp_path / "run", {})
    with pytest.raises(RunDirectoryError, match="must not be in use"):
        RunDirectory(tmp_path / "run", {}, overwrite=True)
    directory.close()
    assert not list(tmp_path.iterdir())  # Nothing is left where nothing was run.
    killed_before(6, tmp_path, lambda: RunDirectory(tmp_path / "run", {}))
    (tmp_path / "run").mkdir(exist_ok=True)
    (tmp_path / "run" / ".lock").touch()
    with open(tmp_path / "run" / ".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(RunDirectoryError, match="must not be in use"):
            RunDirectory(tmp_path / "run", {})
    RunDirectory(tmp_path / "run", {}).close()
