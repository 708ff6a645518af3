"""Sweeps in several processes: the same tables, whatever ends the program or one of them."""

import json
import os
import pathlib
import signal
import time

import pytest

from tests import programs
from tests.resources import is_running, wait_until_gone
from tests.starts import TIMEOUT_SECONDS, in_this_process
from tests.sweeps import own
from tests.sweeps.conftest import command, contents, made
from tf_pflego.sweeps import store
from tf_pflego.sweeps.processes import Process
from tf_pflego.sweeps.run_jobs import Job

pytestmark = [pytest.mark.thorough, pytest.mark.grappler]
# The program, whose processes are forks, which need not import TensorFlow, and leave their ids. All
# that `subprocess` does for a program it has done before a fork is one. It leads its session, whose
# processes all hear Ctrl-C.
FORKING = """
import os, subprocess, sys
from tf_pflego.main import entry_point
from tf_pflego.reports import figures
from tf_pflego.sweeps import run_jobs

class Forking(subprocess.Popen):
    def __init__(self, command, **how):
        def go_on():
            os.closerange(3, 1 << 10)
            open(f"{command[3]}.processes/{os.getpid()}", "w").close()
            os._exit(run_jobs.main(command[3:]))

        is_ours = run_jobs.__name__ in command
        super().__init__(command, preexec_fn=go_on if is_ours else None, **how)

figures.image_of = lambda *_: b""  # Pictures would take most of its time.
os.setpgid(0, 0)
subprocess.Popen = Forking
entry_point()
"""


def begun(directory, digits_dir):
    """Starts the sweep in a process whose imports were made before."""
    directory.with_suffix(".processes").mkdir(exist_ok=True)
    return programs.Begun(FORKING, *command(directory, digits_dir, "--jobs=2"))


def wait_until(is_so, running):
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not is_so():
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def processes_of(directory):
    """Returns the ids of the processes that the sweep has started and that run."""
    started = [int(path.name) for path in directory.with_suffix(".processes").iterdir()]
    return [process for process in started if is_running(process)]


def begun_runs(directory):
    """Returns the directories of runs that have begun; some may come and go meanwhile."""
    return [pathlib.Path(place) for place, _, files in os.walk(directory) if "config.json" in files]


def stopped_in_a_run(directory, running):
    """Stops a process in the midst of a run, and returns its id and the directory of the run."""
    while True:
        wait_until(lambda: begun_runs(directory), running)
        for raw in begun_runs(directory):
            try:
                holder = int((raw / ".lock").read_text())
            except (OSError, ValueError):  # The run has not quite begun, or has ended.
                continue
            if holder not in processes_of(directory):
                continue
            os.kill(holder, signal.SIGSTOP)
            state = pathlib.Path(f"/proc/{holder}/stat")
            wait_until(lambda state=state: ") T " in state.read_text(), running)
            if (raw / ".lock").exists() and not (raw / "summary.json").exists():
                return holder, raw
            os.kill(holder, signal.SIGCONT)


def test_interrupted_and_killed_on_the_way_it_comes_to_the_same(
    finished, tmp_path, digits_dir, capsys, without_pictures
):
    """By Ctrl-C, by the end of one process, whose run is named, and by the end of the program."""
    directory = tmp_path / "sweep"
    running = begun(directory, digits_dir)
    wait_until(lambda: begun_runs(directory), running)
    os.killpg(running.pid, signal.SIGINT)
    output, errors = running.communicate(timeout=TIMEOUT_SECONDS)
    *lines, last = errors.splitlines()
    assert (running.returncode, output) == (130, ""), errors
    assert last == "tf_pflego: interrupted; the same command goes on with it"
    assert all(line[:1].isdigit() for line in lines), errors
    assert processes_of(directory) == []

    running = begun(directory, digits_dir)
    holder, raw = stopped_in_a_run(directory, running)
    os.kill(holder, signal.SIGKILL)
    _, errors = running.communicate(timeout=TIMEOUT_SECONDS)
    trial, cell = raw.parent.name, raw.parent.parent.name
    assert running.returncode == 2
    assert f"tf_pflego: {cell} {trial} seed 1000: failed: its process ended with SIGKILL" in errors
    assert f"tf_pflego: {cell} is not run, since its settings cannot be chosen before" in errors
    assert "1 run failed, which the same command makes again; " in errors
    others = [row for row in contents(finished)[store.RUNS] if row["run"] != cell]
    assert contents(directory)[store.RUNS] == others

    running = begun(directory, digits_dir)
    wait_until(lambda: len(store.read(directory / store.TUNING)) == 4, running)
    running.kill()
    running.communicate(timeout=TIMEOUT_SECONDS)
    result = in_this_process(command(directory, digits_dir), capsys)
    assert result.returncode == 0, result.stderr
    # A run may have ended that the sweep had no time to add.
    assert {*made(result)} <= {f"{cell} seed 0", f"{cell} seed 1"}
    assert contents(directory) == contents(finished)
    for process in processes_of(directory):
        wait_until_gone(process)
    assert not list(directory.rglob(".lock"))


def test_a_process_that_was_told_to_end_begins_no_job(tmp_path):
    """Its thread may have taken a job just before the sweep was interrupted."""
    outcomes, process = [], Process(tmp_path, 1, "")
    process.end()
    process.make(Job("a", None, {"algorithm": "local", "dataset": "none"}, [0]), outcomes.append)
    process.close()
    assert outcomes == []


def test_a_process_whose_sweep_has_ended_makes_no_run(tmp_path):
    """Also if it ended before the process could ask who started it."""
    job = ["a", None, {"algorithm": "local", "dataset": "digits"}, [0]]
    code = "import io, os, sys; from tf_pflego.sweeps import run_jobs\n"
    code += "sys.stdin = io.StringIO(sys.argv.pop()); sys.exit(run_jobs.main(sys.argv[1:]))"
    gone = programs.Begun("")
    gone.communicate()
    result = programs.run(code, tmp_path, 1, gone.pid, "", json.dumps(job) + "\n")
    assert (result.returncode, result.stdout) == (1, "")
    assert not list(tmp_path.rglob("metrics.jsonl"))


EXPERIMENT = """
import numpy as np
import tensorflow as tf
import tf_pflego as pfl
from tf_pflego.sweeps import Experiment, grid


def clients(settings):
    rng = np.random.default_rng(settings["seed"])
    def some():
        x = rng.normal(size=(12, 3)).astype(np.float32)
        return x, (x.sum(axis=1) > 0).astype(np.int32)
    if settings["algorithm"] == "local":
        raise ValueError("no clients for this one")
    return pfl.from_arrays([some() for _ in range(4)], [some() for _ in range(4)])


def model(settings, clients):
    tf.keras.utils.set_random_seed(settings["seed"])
    dense = tf.keras.layers.Dense
    layers = [tf.keras.Input((3,)), dense(5, trainable=False), dense(4, "relu")]
    return pfl.SplitModel(tf.keras.Sequential(layers), num_outputs=2)


SMALL = {"num_rounds": 2, "clients_per_round": 2, "client_learning_rate": 0.1}
methods = ["local", build_mine, "pflego"]
first = Experiment(grid(algorithm=methods), SMALL, seeds=(0, 1), clients=clients, model=model)
second = Experiment(grid(algorithm=["fedrep"]), SMALL, clients=clients, model=model)
"""


def test_experiments_of_a_file_with_own_clients_and_models(tmp_path, capsys, without_pictures):
    """Each has a directory of its own, and what fails in one process is named by its cell.

    Runs on the same clients share the features that the frozen part of a body computes.
    """
    path = tmp_path / "own.py"
    path.write_text(pathlib.Path(own.__file__).read_text() + EXPERIMENT)
    for jobs, of_file in ((1, path), (2, f"{path}:first")):
        directory = tmp_path / str(jobs)
        arguments = ["sweep", str(of_file), f"--output_dir={directory}", f"--jobs={jobs}"]
        result = in_this_process(arguments, capsys)
        assert result.returncode == 2
        for seed in (0, 1):
            said = f"local seed {seed}: failed: ValueError: no clients for this one"
            assert said in result.stderr
        why = [line for line in result.stderr.splitlines() if " failed: " in line]
        assert "every run must finish; 2 runs did not" in result.stderr, why
        runs = [row["run"] for row in store.read(directory / "first" / store.RUNS)]
        assert runs == ["mine", "mine", "pflego", "pflego"]
        features = [*(directory / "first" / "features").iterdir()]
        assert len(features) == 2 * 2  # They are of the training and the test examples of a seed.
        assert not [*directory.glob("first/runs/**/features")]
    assert contents(tmp_path / "1" / "first") == contents(tmp_path / "2" / "first")
    assert [row["run"] for row in store.read(tmp_path / "1" / "second" / store.RUNS)] == ["fedrep"]
