"""A run is read from its directory, finished or not, and answers as it would have."""

import csv
import dataclasses
import json
import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.comparison import assert_identical
from tests.runs.resumed import configure, contents
from tf_pflego.engines.in_process import InProcessEngine
from tf_pflego.runs.run_directory import RunDirectoryError
from tf_pflego.simulation.checkpoint import CheckpointError

pytestmark = pytest.mark.usefixtures("traced_once")
STEPS = {"local_steps": np.int64(3)}
CLIENTS = 6


def config_of(output, **changed):
    settings = {
        "engine": "in_process",
        "num_clients": CLIENTS,
        "clients_per_round": 2,
        "num_rounds": 5,
        "eval_every": 3,
        "train_loss_every": 2,
        "output_dir": output,
    } | ({"checkpoint_every": 2} if output else {})
    return pfl.RunConfig(**settings | changed)


@pytest.fixture(scope="module")
def finished(digits_dir, tmp_path_factory):
    """The directory of a run of five rounds."""
    output = tmp_path_factory.mktemp("stored") / "run"
    pfl.run(config_of(output, data_dir=pathlib.Path(digits_dir)), **STEPS)
    return output


@pytest.fixture
def copy(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "copy")


def leaves(simulation):
    states = simulation.server_state, simulation.client_states(range(CLIENTS))
    return [np.asarray(leaf) for leaf in tf.nest.flatten(states)]


def test_a_finished_run_answers_and_stays_as_it_was(finished, digits_dir):
    before = contents(finished)
    rows = list(csv.DictReader((finished / "clients.csv").open()))
    with pfl.load_run(finished, digits_dir) as run:
        assert (run.configuration["algorithm"], run.configuration["local_steps"]) == ("pflego", 3)
        assert run.configuration["client_learning_rate"] == 0.007  # It was not given.
        assert run.versions["tf_pflego"] == pfl.__version__
        assert run.summary == json.loads((finished / "summary.json").read_text())
        assert run.clients.class_names == tuple("0123456789") and run.round_number == 5
        evaluation = run.evaluate()
        assert [f"{loss:.6g}" for loss in evaluation.train_loss] == [r["train_loss"] for r in rows]
        accuracy = evaluation.test_hits / evaluation.test_examples
        assert [f"{share:.6g}" for share in accuracy] == [row["test_accuracy"] for row in rows]
        for client, row in enumerate(rows):
            classes = run.partition.classes[client].tolist()
            assert " ".join(map(str, classes)) == row["classes"]
            if client > 1:
                continue  # Two models are enough.
            model = run.client_model(client)
            assert [*model.class_names] == row["classes"].split()
            dataset = pfl.load_dataset("digits", digits_dir)
            own = run.partition.test_indices[client]
            raw, labels = dataset.test.examples[own], dataset.test.labels[own]
            predicted = np.take(classes, model.predict(raw, verbose=0).argmax(axis=1))
            assert np.sum(predicted == labels) == evaluation.test_hits[client]
    lines, metrics = (finished / "metrics.jsonl").read_text().splitlines(), run.metrics
    assert contents(finished) == before
    assert metrics["round"].tolist() == [1, 2, 3, 4, 5]
    assert metrics["bytes_up"].dtype == np.int64
    for row, line in enumerate(lines):
        record = json.loads(line)
        assert {name for name, column in metrics.items() if not np.isnan(column[row])} == {*record}
        assert all(metrics[name][row] == value for name, value in record.items())
    assert np.isnan(metrics["train_loss"]).tolist() == [True, False, True, False, False]


def test_a_restored_simulation_goes_on_as_if_it_had_never_stopped(finished, digits_dir, tmp_path):
    before = contents(finished)
    with pfl.load_run(finished, digits_dir).simulation() as restored:
        restored.run(3)
        with pytest.raises(ValueError, match="must not contain checkpoints of another simulation"):
            restored.save(finished / "checkpoints")
        restored.save(tmp_path / "elsewhere")
        config = config_of("", data_dir=digits_dir)
        with pfl.build_simulation(config, **STEPS) as undisturbed:
            undisturbed.run(8)
            assert restored.round_number == 8
            assert_identical(leaves(restored), leaves(undisturbed))
    assert contents(finished) == before


def test_a_run_that_trains_is_read_at_its_newest_checkpoint(digits_dir, tmp_path):
    """In its third round, while it holds the lock; the checkpoint is that of the second."""
    output, seen = tmp_path / "run", {}

    def look(record):
        if record["round"] != 3:
            return
        with open(output / "metrics.jsonl", "a") as metrics:
            metrics.write('{"round": 4, "part')  # A line that is being written.
            metrics.flush()
        before = contents(output)
        with pfl.load_run(output, digits_dir) as run:
            seen["summary"], seen["round"] = run.summary, run.round_number
            seen["rounds"] = run.metrics["round"].tolist()
            seen["loss"] = run.evaluate().train_loss
            with run.simulation() as simulation:
                seen["state"] = leaves(simulation)
        assert contents(output) == before
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pfl.run(config_of(output, data_dir=digits_dir), look, **STEPS)
    assert (seen["summary"], seen["round"], seen["rounds"]) == (None, 2, [1, 2, 3])
    with pfl.build_simulation(config_of("", data_dir=digits_dir), **STEPS) as simulation:
        simulation.run(2)
        assert_identical(seen["state"], leaves(simulation))
        np.testing.assert_array_equal(seen["loss"], simulation.evaluate().train_loss)


def own_clients(seed=0):
    def draw(client):
        rng = np.random.default_rng([seed, client])
        return rng.normal(size=(12, 4)), np.repeat([client % 3, 3], 6)

    pairs = [draw(client) for client in range(CLIENTS)]
    return pfl.from_arrays(pairs, pairs, name="mine", class_names=["a", "b", "c", "d"])


def own_model(seed=0):
    body = tf.keras.Sequential(
        [tf.keras.layers.Input((4,)), tf.keras.layers.Dense(3, "elu", kernel_initializer="ones")]
    )
    return pfl.SplitModel(body, num_outputs=2, seed=seed)


def test_a_run_on_own_arrays_and_of_an_own_model_needs_them_again(tmp_path):
    output, given = tmp_path / "run", {"clients": own_clients(), "model": own_model()}
    others = {"clients": own_clients(seed=1), "model": own_model()}
    config = config_of(output, num_clients=0)
    pfl.run(config, **given, **STEPS)
    run = pfl.load_run(output)
    assert run.configuration["num_clients"] == CLIENTS
    assert (run.configuration["dataset"], run.configuration["network"]) == ("mine", "own")
    assert [own.tolist() for own in run.partition.classes] == [[0, 3], [1, 3], [2, 3]] * 2
    with pytest.raises(RunDirectoryError, match=r"`model` must be given .* with your own model"):
        run.client_model(0)
    with pytest.raises(RunDirectoryError, match=r"`clients` must be given .* \(mine\)"):
        pfl.load_run(output, model=own_model()).client_model(0)
    with pfl.load_run(output, clients=own_clients(), model=own_model()) as run:
        assert run.clients.class_names == ("a", "b", "c", "d")
        model = run.client_model(1)
        assert [*model.class_names] == ["b", "d"]
        assert model.layers[1].layers[-1].activation is tf.keras.activations.elu
        loss = [f"{loss:.6g}" for loss in run.evaluate().train_loss]
        rows = list(csv.DictReader((output / "clients.csv").open()))
        assert loss == [row["train_loss"] for row in rows]
    longer = dataclasses.replace(config, num_rounds=6, resume=True)
    assert pfl.run(longer, **given, **STEPS)["round"] == 6
    with pytest.raises(RunDirectoryError, match="`network`: expected own, got mlp"):
        pfl.run(longer, clients=own_clients(), **STEPS)
    said = r"`clients` must be the clients of the run .*; 6 of 6 are not, the first is client 0"
    with pytest.raises(ValueError, match=said):
        pfl.load_run(output, **others).evaluate()
    (output / "partition.npz").unlink()  # A checkpoint tells the data too.
    with pytest.raises(CheckpointError, match="data_crc32"):
        pfl.load_run(output, **others).evaluate()


def test_the_directory_does_not_decide_which_data_are_read(copy, digits_dir, tmp_path, monkeypatch):
    """Neither where they are nor whether they are fetched, nor which cluster is asked."""
    elsewhere = tmp_path / "theirs"
    elsewhere.mkdir()
    os.mkfifo(elsewhere / "mnist")  # Whoever opened it would wait.
    configure(copy, data_dir=str(elsewhere), download=True, dataset="mnist")
    monkeypatch.setattr("tensorflow_datasets.core.constants.DATA_DIR", str(tmp_path / "default"))
    with pytest.raises(RunDirectoryError, match="`data_dir` must be given for the run in") as error:
        pfl.load_run(copy).evaluate()
    assert f"Give `data_dir='{elsewhere}'` if you trust its files." in str(error.value)
    assert not (tmp_path / "default").exists()
    with pytest.raises(pfl.data.DatasetError, match=f"`dataset` mnist is not in {tmp_path}/own"):
        pfl.load_run(copy, data_dir=tmp_path / "own").evaluate()
    of_ray = {"engine": "ray", "ray_address": "127.0.0.1:1", "resume": True}
    configure(copy, download=False, dataset="digits", **of_ray)
    shutil.copytree(digits_dir, tmp_path / "default")
    with pfl.load_run(copy) as run, run.simulation() as simulation:
        assert run.configuration["ray_address"] == "127.0.0.1:1"
        assert simulation.round_number == 5 and isinstance(simulation._engine, InProcessEngine)
        assert run.evaluate().test_hits.shape == (CLIENTS,)


def test_what_is_no_run_or_has_just_begun_or_another_model_is_refused(copy, digits_dir, tmp_path):
    with pytest.raises(RunDirectoryError, match=r"`model` must be empty .* the program's"):
        pfl.load_run(copy, digits_dir, model=own_model()).evaluate()
    shutil.rmtree(copy / "checkpoints")
    (copy / "summary.json").unlink()
    with pytest.raises(RunDirectoryError, match=r"not finished .* Wait for its first checkpoint"):
        pfl.load_run(copy, digits_dir).evaluate()
    with pytest.raises(RunDirectoryError, match=r"output directory of a run; .* does not exist"):
        pfl.load_run(tmp_path / "nothing")
    with pytest.raises(RunDirectoryError, match=r"output directory of a run; .* has no config"):
        pfl.load_run(tmp_path)


def test_without_checkpoints_it_has_metrics_alone(digits_dir, tmp_path):
    config = config_of(tmp_path, data_dir=digits_dir, num_rounds=2, checkpoint_every=0)
    pfl.run(config, **STEPS)
    run = pfl.load_run(tmp_path, digits_dir)
    assert len(run.metrics["round"]) == 2
    for ask in (run.evaluate, run.simulation, lambda: run.client_model(0)):
        with pytest.raises(RunDirectoryError, match=r"must have a checkpoint.*_every=0"):
            ask()


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("config.json", pfl.load_run),
        ("summary.json", pfl.load_run),
        ("partition.npz", lambda path: pfl.load_run(path).partition),
        ("metrics.jsonl", lambda path: pfl.load_run(path).metrics),
    ],
)
def test_damaged_files_are_named(name, ask, copy):
    whole = (copy / name).read_bytes()
    for damaged in (b"", whole[len(whole) // 2 :], b"[]\n"):
        if name == "metrics.jsonl" and not damaged:
            continue  # A run has this file before its first round.
        (copy / name).write_bytes(damaged)
        with pytest.raises(RunDirectoryError, match=rf"{name} in .* must be as a run wrote it"):
            ask(copy)


def test_a_configuration_that_is_none_is_refused(copy):
    whole = (copy / "config.json").read_bytes()
    for changed in ({"num_rounds": 0}, {"engine": 3}, {"unknown": 1}, {"dataset": None}):
        (copy / "config.json").write_bytes(whole)
        configure(copy, **changed)
        with pytest.raises(RunDirectoryError, match=r"config\.json in .* must be as a run wrote"):
            pfl.load_run(copy)


def test_a_checkpoint_that_is_replaced_while_it_is_read(copy, digits_dir, monkeypatch):
    """The run that trains has written the next one, and removed the one that was being read."""
    run = pfl.load_run(copy, digits_dir)
    kept = shutil.move(copy / "checkpoints", copy / "later")
    shutil.copytree(kept, copy / "checkpoints")
    for path in (copy / "checkpoints").glob("*-5*"):
        path.unlink()
    newest = pfl.Simulation.restore_from

    def slowly(simulation, checkpoints, content):
        if content["round"] == 4:
            shutil.rmtree(copy / "checkpoints")
            shutil.copytree(kept, copy / "checkpoints")
            (copy / "checkpoints" / "server-4.npz").unlink()
        newest(simulation, checkpoints, content)

    monkeypatch.setattr(pfl.Simulation, "restore_from", slowly)
    assert run.round_number == 5
