"""The program's verbs: what they do, and what they say when they cannot."""

import csv
import json
import re
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.starts import assert_refused, done, in_a_terminal, in_this_process, lines_of, program
from tf_pflego.runs.stored_run import StoredRun


@pytest.fixture(scope="module", name="run")
def run_fixture(run_of):
    of_ten = {"num_clients": 10, "clients_per_round": 4, "num_rounds": 3, "local_steps": 5}
    return run_of("pflego", **of_ten)


@pytest.mark.thorough
def test_the_program_exports_and_says_how_accurate_the_files_are(run, tmp_path):
    """As a program of its own: the table is all that it shows."""
    models = tmp_path / "models"
    result = program("export", f"--run={run}", "--clients=worst:2", f"--output_dir={models}")
    assert result.returncode == 0
    assert result.stderr.startswith("tf_pflego: 1 of 2 clients never participated, such as 7, and")
    head, *rows, last = result.stdout.splitlines()
    assert head.split() == ["bytes", "accuracy", "in", "the", "run", "of", "the", "file", "client"]
    assert last == f"written to {models}"
    entries = json.loads((models / "clients.json").read_text())["clients"]
    assert [int(row.split()[-1]) for row in rows] == [entry["client"] for entry in entries]
    with pfl.load_run(run) as stored:
        actual = stored.evaluate(train_loss=False)
        classes = [stored.clients.class_names_of(entry["client"]) for entry in entries]
    accuracy = actual.test_hits / actual.test_examples
    assert [entry["test_accuracy"] for entry in entries] == pytest.approx(sorted(accuracy)[:2])
    for entry, names in zip(entries, classes, strict=True):
        assert entry["classes"] == list(names)
        signatures = tf.saved_model.load(str(models / entry["file"])).signatures
        assert sorted(signatures) == [
            "class_names", "personalize", "restore", "save", "serve", "serving_default"
        ]  # fmt: skip


def test_heads_of_all_clients_are_exported_with_one_body(run, tmp_path, capsys):
    flags = ["--format=bundle", f"--output_dir={tmp_path / 'shared'}"]
    result = done(["export", f"--run={run}", *flags], capsys)
    assert result.stdout == f"10 clients written to {tmp_path / 'shared'}\n"
    assert np.load(tmp_path / "shared" / "heads.npy").shape[:2] == (11, 2)
    refused = in_this_process(["export", f"--run={run}", *flags], capsys)
    assert_refused(refused, "must be a new or empty directory", "with --overwrite.")
    flags = ["--format=keras", "--clients=2", "--overwrite", "--quiet", flags[1]]
    result = done(["export", f"--run={run}", *flags], capsys)
    assert result.stdout == f"written to {tmp_path / 'shared'}\n"
    names = sorted(path.name for path in (tmp_path / "shared").iterdir())
    assert names == ["client_2.keras", "clients.json"]


def write_client(path, classes=(3, 7), change=np.asarray):
    digits, arrays = pfl.load_dataset("digits"), {}
    for split, examples in (("train", digits.train), ("test", digits.test)):
        rows = np.flatnonzero(np.isin(examples.labels, classes))[:60]
        arrays[f"{split}_examples"] = change(examples.examples[rows])
        arrays[f"{split}_labels"] = examples.labels[rows]
    np.savez(path, **arrays)
    return path


@pytest.mark.thorough
def test_new_clients_learn_on_and_are_exported(run, tmp_path, capsys):
    ann, bob = write_client(tmp_path / "ann.npz"), write_client(tmp_path / "bob.npz", (0, 1))
    output = tmp_path / "new"
    flags = [f"--data={ann},{bob}", "--shots=2,all", "--draws=3", f"--output_dir={output}"]
    flags = ["personalize", f"--run={run}", "--format=keras", *flags]
    result = in_this_process(flags, capsys)
    assert (result.returncode, result.stderr) == (0, "")
    first, head, *_ = result.stdout.splitlines()
    assert first == "2 new clients learn on: head"
    assert head.split() == ["examples", "per", "class", "draws", "before", "after", "+-"]
    with open(output / "shots.csv", newline="") as file:
        two, every = csv.DictReader(file)
    assert (two["shots"], two["draws"], every["shots"], every["draws"]) == ("2", "3", "all", "1")
    assert float(every["mean"]) > float(every["before"])
    done([*flags, "--overwrite"], capsys)
    model = tf.keras.models.load_model(output / "client_bob.keras", compile=False)
    assert model.output_shape == (None, 2)
    if keras.__version__.startswith("2."):  # Keras 3 does not save this layer.
        assert model.get_layer("class_names").get_vocabulary() == ["0", "1"]
    entries = json.loads((output / "clients.json").read_text())["clients"]
    accuracy = np.mean([entry["test_accuracy"] for entry in entries])
    assert accuracy == pytest.approx(float(every["mean"]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.reshape(len(x), -1), r"uint8 of shape \(8, 8, 1\); got uint8 of shape \(64"),
        (lambda x: x.astype(np.float32), r"of shape \(8, 8, 1\); got float32 of shape \(8"),
        (lambda x: x[:, :5], r"as the run's, uint8 of shape \(8, 8, 1\); got uint8 of shape \(5"),
    ],
    ids=["rank", "dtype", "size"],
)
def test_other_examples_are_refused_before_the_run_is_made(
    change, message, run, tmp_path, capsys, monkeypatch
):
    path = write_client(tmp_path / "client.npz", change=change)
    monkeypatch.setattr(StoredRun, "simulation", None)  # It is not asked for.
    result = in_this_process(["personalize", f"--run={run}", f"--data={path}"], capsys)
    assert result.returncode != 0
    assert re.search(message, result.stderr), result.stderr


def write_masked(run, path):
    """Writes what a run with a class mask and validation examples has, as far as it is listed."""
    path.mkdir(parents=True)
    config = json.loads((run / "config.json").read_text())
    config |= {"label_space": "global", "class_mask": True, "seed": 7}
    (path / "config.json").write_text(json.dumps(config))
    record = {"round": 1, "seconds": 0.1, "bytes_down": 1, "bytes_up": 1}
    record |= {"test_accuracy/client_mean": 0.5, "validation_accuracy/client_mean": 0.25}
    (path / "metrics.jsonl").write_text(json.dumps(record) + "\n")


def test_runs_are_listed_with_their_masks_and_validation(run, tmp_path, capsys):
    nothing = in_this_process(["list", str(tmp_path)], capsys)
    assert nothing.stdout.startswith(f"no runs in {tmp_path}")
    head, row = in_this_process(["list", str(run.parent)], capsys).stdout.splitlines()
    assert head.split() == ["run", "method", "dataset", "labels", "seed", "rounds", "accuracy"]
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    accuracy = f"{100 * last['test_accuracy/client_mean']:.2f}"
    assert row.split() == ["pflego", "pflego", "digits", "local", "0", "3/3", accuracy]
    shutil.copytree(run, tmp_path / "a")
    write_masked(run, tmp_path / "b")
    write_masked(run, tmp_path / "c")
    metrics = tmp_path / "c" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace("accuracy", "root_mean_squared_error"))
    lines = in_this_process(["list", str(tmp_path)], capsys).stdout.splitlines()
    head, first, second, third = lines
    assert head.split()[3:] == ["labels", "seed", "rounds", "validation", "accuracy", "RMSE"]
    assert second.split()[3:] == ["masked", "7", "1/3", "25.00", "50.00"]
    assert third.split()[5:] == ["1/3", "0.2500", "0.5000"]
    assert first.index("3/3") == second.index("1/3") == head.index("rounds")


EXPORT = ("export", "--run={run}", "--output_dir={tmp}/x")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["exprt"], "Did you mean export?"),
        (["export"], "--run must be given; got nothing"),
        (["export", "--run={tmp}", "--output_dir={tmp}/x"], "--run must be the output directory"),
        (["export", "--run={run}", "--output_dir={run}"], "--output_dir must be a new or empty"),
        (["export", "--run={run}", "--output_dir={run}", "--overwrite"], "has no clients.json"),
        ([*EXPORT, "--clients=33"], "a whole number in [0, 10), of a client, or all, or"),
        ([*EXPORT, "--served_model=own"], "--served_model must be one of personalized"),
        ([*EXPORT, "--quantize=int8"], "must be none for"),
        ([*EXPORT, "--format=bundle", "--quantize=int8"], "must be none or float16 for bundle"),
        (["personalize", "--run={run}"], "--data must be given"),
        (
            ["predict", "--run={run}", "--table={run}", "--output={tmp}/x"],
            "--table must not be given for a run without a table",
        ),
        (["personalize", "--run={run}", "--data=x", "--output_dir={run}"], "must be a new or em"),
        (["personalize", "--run={run}", "--data={tmp}/no.npz"], "no.npz cannot be read as one"),
        (["personalize", "--run={run}", "--data={tmp}/n", "--shots=0"], "--shots must be numbers"),
        (["audit", "--run={run}"], "--run must be a run with differential privacy; "),
        (["audit", "--run={run}", "--canaries=0"], "--canaries must be at least 1; got 0"),
        (["list", "{tmp}/none"], "`DIR` must be a directory that has runs"),
        (["list", "{tmp}", "{run}"], "expected at most 1 argument besides flags; got"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_line_and_leaves_nothing(
    arguments, expected, run, tmp_path, capsys
):
    arguments = [part.format(run=run, tmp=tmp_path) for part in arguments]
    held = sorted(path.name for path in run.iterdir())
    assert_refused(in_this_process(arguments, capsys), expected)
    assert not list(tmp_path.iterdir())
    assert sorted(path.name for path in run.iterdir()) == held


def test_a_run_on_own_arrays_is_for_python(run, tmp_path, capsys):
    """It says so before TensorFlow is started."""
    clients = pfl.load_run(run).clients
    arrays = [[split.of(client) for client in range(10)] for split in (clients.train, clients.test)]
    config = pfl.RunConfig(
        engine="in_process", clients_per_round=2, num_rounds=1, output_dir=tmp_path / "own"
    )
    pfl.run(config, clients=pfl.from_arrays(*arrays), local_steps=1)
    for verb, flag in (("export", f"--output_dir={tmp_path}/x"), ("personalize", "--data=x")):
        result = in_this_process([verb, f"--run={tmp_path / 'own'}", flag], capsys)
        assert_refused(result, "--run must be a run with a dataset", "pfl.load_run(", "clients=...")
    result = in_this_process(["--resume", f"--output_dir={tmp_path / 'own'}"], capsys)
    assert_refused(result, "--resume must be a run with", "pfl.run(RunConfig(resume=True, ")


def test_the_list_fits_the_terminal(run, tmp_path):
    """Names that would make the lines too long are above them, whole."""
    name = f"{'long' * 15}/pflego"
    write_masked(run, tmp_path / name)
    code, shown = in_a_terminal(80, "list", str(tmp_path), imported=True)
    top, head, first, row, *_ = lines_of(shown)
    assert code == 0
    assert (top, first) == ("run", name)
    assert head.split()[0] == "method"
    assert row.split() == ["pflego", "digits", "masked", "7", "1/3", "25.00", "50.00"]
    assert head.index("rounds") == row.index("1/3")
    assert max(len(head), len(row)) <= 80
