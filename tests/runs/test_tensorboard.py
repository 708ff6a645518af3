"""Event files for TensorBoard: what metrics.jsonl has, each round once, also after a kill."""

import math
import signal

import pytest
import tensorflow as tf

from tests.runs.resumed import records_of
from tests.starts import SMALL, done, program, replaced

pytestmark = pytest.mark.usefixtures("traced_once")
ROUNDS = 5
FLAGS = (*SMALL, f"--num_rounds={ROUNDS}", "--checkpoint_every=2", "--tensorboard")


def events_of(output):
    """Returns {(tag, step): value}, after a check that each is there once."""
    values = {}
    for path in (output / "tensorboard").iterdir():
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                assert value.metadata.plugin_data.plugin_name == "scalars"
                assert (value.tag, event.step) not in values
                values[value.tag, event.step] = float(tf.make_ndarray(value.tensor))
    return values


def assert_same_as_metrics(output):
    records = records_of(output)
    expected = {
        (name, record["round"]): value
        for record in records
        for name, value in record.items()
        if name not in ("round", "not_finite_clients") and value is not None
    }
    assert {step for _, step in expected} == set(range(1, len(records) + 1))
    actual = events_of(output)
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        assert math.isclose(actual[key], value, rel_tol=1e-6, abs_tol=1e-30)


# Without the package `tensorboard`, and killed in the round after a checkpoint.
KILLED = """
import json, os, pathlib, signal, sys
sys.modules["tensorboard"] = None
import tf_pflego.runs.run_directory as run_directory
add_round = run_directory.RunDirectory.add_round
def add_and_end(self, record):
    add_round(self, record)
    if record["round"] == 3:
        os.kill(os.getpid(), signal.SIGKILL)
run_directory.RunDirectory.add_round = add_and_end
from tf_pflego.main import entry_point
entry_point()
"""


@pytest.mark.thorough
def test_a_run_that_was_killed_has_each_round_once(digits_dir, tmp_path, capsys):
    output = tmp_path / "run"
    flags = (*FLAGS, f"--output_dir={output}")
    killed = program(*flags, digits_dir=digits_dir, code=KILLED)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    # Others can read it while the run goes on, as far as metrics.jsonl is.
    assert_same_as_metrics(output)
    done([*flags, "--resume", f"--data_dir={digits_dir}"], capsys)
    assert ("test_accuracy/client_mean", ROUNDS) in events_of(output)
    assert_same_as_metrics(output)
    # A run that replaces it has its own.
    flags = replaced(*FLAGS[:-1], "--num_rounds=2", f"--output_dir={output}", "--overwrite")
    done([*flags, f"--data_dir={digits_dir}"], capsys)
    assert not (output / "tensorboard").exists()


def test_what_is_not_finite_is_left_out(tmp_path):
    from tf_pflego.runs.tensorboard import EventFiles

    events = EventFiles(tmp_path / "tensorboard")
    events.on_run_begin(None, [{"round": 1, "seconds": 0.5}])
    events.on_round_end(None, {"round": 2, "seconds": float("nan"), "not_finite_clients": [1, 2]})
    events.on_round_end(None, {"round": 3, "participants": 4})
    events.close()
    assert events_of(tmp_path) == {("seconds", 1): 0.5, ("participants", 3): 4.0}
