"""A run on clients that a user gave: what it writes, by what they are known, and who may go on."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.runs.resumed import records_of
from tf_pflego.core import statistic_names
from tf_pflego.reports import stored
from tf_pflego.runs import loading, reader
from tf_pflego.runs.progress import result_table
from tf_pflego.runs.run_directory import RunDirectoryError
from tf_pflego.simulation.evaluation import summarize
from tf_pflego.sweeps import store

pytestmark = pytest.mark.usefixtures("traced_once")
NAMES = ("north", "south", "east", "west")


def clients_of(names=NAMES, **keywords):
    """Each client draws its examples by its name, and has a class of its own beside class 4."""
    splits = [{}, {}]
    for name in names:
        rng = np.random.default_rng(list(name.encode()))
        own = NAMES.index(name)
        for split, size in zip(splits, (10, 6), strict=True):
            labels = np.resize([own, 4], size)
            split[name] = rng.normal(size=(size, 3)) + labels[:, None], labels
    return pfl.from_arrays(*splits, name="mine", **keywords)


def config_of(output, **changed):
    settings = {"engine": "in_process", "clients_per_round": 2, "num_rounds": 2}
    return pfl.RunConfig(**settings | {"output_dir": str(output)} | changed)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The directory of a run of two rounds, for which one client was new."""
    output = tmp_path_factory.mktemp("own") / "run"
    config = config_of(output, num_new_clients=1, new_client_epochs=1)
    summary = pfl.run(config, clients=clients_of(), local_steps=2)
    table = result_table(summary, "mine", reader.columns(output / "clients.csv"))
    assert "client south" in table and "client 1" not in table
    return output


def test_the_table_of_a_regression_has_its_error_the_largest_first():
    name = "test_root_mean_squared_error/client_mean"
    about = {"seconds": 1.0, "bytes_down": 1, "bytes_up": 1, "train_loss": 2345678.9}
    about |= {"dropped": 0, "not_finite": 0}
    errors = [(1, 9.0), (2, 7.25), (3, 8.0)]
    records = [
        {"round": number, name: error, name.replace("client", "example"): error} | about
        for number, error in errors
    ]
    summary = summarize(records)
    assert summary[f"{name}/best"] == 7.25 and summary[name] == 8
    columns = {"client": range(4), "num_classes": [1] * 4, "classes": ["0"] * 4}
    columns |= {f"{split}_examples": [5] * 4 for split in ("train", "test")}
    columns["test_root_mean_squared_error"] = ["1.5", "nan", "1234.56", "8"]
    lines = [" ".join(line.split()) for line in result_table(summary, "t", columns).splitlines()]
    assert "test RMSE last round mean of last 10" in lines
    assert "worst tenth, 1 of 4 1235" in lines
    assert "training loss, all clients 2345679" in lines
    worst = lines[lines.index("served worst train test RMSE") + 1 : -1]
    assert worst == ["client 2 5 5 1235", "client 3 5 5 8.000", "client 0 5 5 1.500"]


@pytest.mark.thorough
def test_a_statistic_of_ones_own_says_which_of_two_values_is_better(tmp_path, monkeypatch):
    def misses(logits, labels):
        hits = tf.math.in_top_k(labels, logits, 1)
        return tf.stack([tf.math.count_nonzero(~hits), tf.size(labels, tf.int64)])

    own = pfl.Statistic("misses", misses, higher_is_better=False)
    body = pfl.mlp((3,), seed=0, units=4)
    task = dataclasses.replace(pfl.SplitModel(body, 2).task, statistics=(own,))
    stopping = pfl.EarlyStopping(patience=9)
    config = config_of(tmp_path / "run", num_rounds=3, validation_fraction=0.3)
    model = pfl.SplitModel(body, 2, num_global_classes=5, task=task)
    summary = pfl.run(config, None, clients_of(), model=model, callbacks=[stopping], local_steps=2)
    name = "validation_misses/client_mean"
    values = [record[name] for record in records_of(tmp_path / "run")]
    assert stopping.best == summary[f"{name}/best"] == min(values)
    # Who reads the directory later knows it from there.
    monkeypatch.setattr(statistic_names, "_OWN", {})
    assert stored.read(tmp_path / "run").configuration["own_statistics"].keys() == {"misses"}
    assert not statistic_names.shown("misses").higher_is_better
    again = dataclasses.replace(config, resume=True)
    assert pfl.run(again, None, clients_of(), model=model, local_steps=2)["round"] == 3
    assert "ended with misses" in repr(pfl.load_run(tmp_path / "run"))


def test_files_have_who_the_clients_are_and_what_was_run(finished, tmp_path):
    rows = store.read(finished / "clients.csv")
    assert [row["name"] for row in rows] == ["north", "south", "east"]
    assert [row["classes"] for row in rows] == ["0 4", "1 4", "2 4"]
    new = store.read(finished / "new_clients.csv")
    assert [(row["client"], row["name"]) for row in new] == [("3", "west")] * 2
    with np.load(finished / "partition.npz") as arrays:
        assert arrays["names"].tolist() == list(NAMES)
        np.testing.assert_array_equal(arrays["fingerprints"], clients_of().fingerprints)
        assert arrays["class_counts"].tolist() == [5] * 8
    stored = pfl.Partition.load(finished / "partition.npz")
    assert stored.train_indices[1].tolist() == [*range(10, 20)]

    told = json.loads((finished / "config.json").read_text())
    said = {"dataset": "mine", "num_clients": 4, "partition": "own", "network": "mlp"}
    said |= {"label_space": "local", "class_mask": False, "validation_fraction": 0.0}
    dealing = ("personalization", "classes_per_client", "dirichlet_alpha", "min_examples")
    dealing += ("permuted_fraction", "shifted_fraction", "shift", "omniglot_splits")
    said |= dict.fromkeys(dealing)
    assert {name: told[name] for name in said} == said

    masked = clients_of(label_space="global", class_mask=True).with_validation(0.3)
    config = config_of(tmp_path / "run", num_rounds=1)
    flat = pfl.SplitModel(pfl.mlp((3,), seed=0), num_outputs=5)
    pfl.run(config, clients=masked, model=flat, local_steps=2)
    run = pfl.load_run(tmp_path / "run", clients=masked, model=flat)
    said = {"label_space": "global", "class_mask": True, "network": "own"}
    said |= {"validation_fraction": None, "dataset": "mine"}
    assert {name: run.configuration[name] for name in said} == said
    assert [len(own) for own in run.partition.validation_indices] == [3] * 4
    assert run.evaluate().of_clients()["validation_accuracy"].shape == (4,)


@pytest.mark.thorough
def test_a_dataset_that_was_loaded_for_the_run_is_no_own_clients(digits_dir, tmp_path):
    config = config_of(tmp_path / "run", data_dir=digits_dir, num_clients=6, num_rounds=1)
    clients = loading.load_clients(config)
    pfl.run(config, clients=clients, local_steps=1)
    told = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (told["partition"], told["personalization"]) == ("auto", "high")
    assert pfl.load_run(tmp_path / "run").evaluate().test_hits.shape == (6,)

    another = dataclasses.replace(config, overwrite=True, seed=1)  # Whose clients would be others.
    pfl.run(another, clients=clients, local_steps=1)
    told = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (told["dataset"], told["partition"], told["personalization"]) == ("digits", "own", None)
    with pytest.raises(RunDirectoryError, match="`clients` must be given"):
        pfl.load_run(tmp_path / "run").evaluate()


@pytest.mark.thorough
def test_a_run_goes_on_with_its_own_clients_alone(finished, tmp_path):
    output = shutil.copytree(finished, tmp_path / "run")
    for rounds in (2, 3):  # Also of a run that has ended.
        new = {"num_new_clients": 1, "new_client_epochs": 1}
        config = config_of(output, num_rounds=rounds, resume=True, **new)
        turned = clients_of(("north", "south", "west", "east"))
        others = r"2 of 4 are not, the first is client west, in whose place it has east. Give the"
        with pytest.raises(ValueError, match=others):
            pfl.run(config, clients=turned, local_steps=2)
    with pytest.raises(ValueError, match=r"in their order; there are 4; got 3. Give the run's"):
        pfl.load_run(output, clients=clients_of(NAMES[:3])).evaluate()
    assert pfl.run(config, clients=clients_of(), local_steps=2)["round"] == 3
