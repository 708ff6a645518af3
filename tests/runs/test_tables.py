"""Runs on a table: its directory says which rows it had, and goes on with these alone."""

import functools
import json
import shutil

import numpy as np
import pytest

import tf_pflego as pfl
from tests.data.tables import schools
from tests.runs.resumed import contents
from tests.starts import assert_refused, code_of, done, in_this_process
from tf_pflego.runs import loading
from tf_pflego.runs.run_directory import RunDirectoryError

pytestmark = pytest.mark.usefixtures("traced_once")
FLAGS = (
    *("--client_column=School", "--label_column=Passed", "--feature_columns=Sex,SES"),
    *("--split=last", "--time_column=year", "--on_small_client=drop"),
    *("--min_rows=6", "--clients_per_round=2", "--local_steps=2", "--engine=in_process"),
)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return schools.written(tmp_path_factory.mktemp("table") / "pupils.csv")


@pytest.fixture(scope="module")
def trained(table):
    place = table.parent / "run"
    assert code_of([f"--table={table}", *FLAGS, "--num_rounds=2", f"--output_dir={place}"]) == 0
    return place


@pytest.fixture
def output(trained, table, tmp_path):
    """A copy of the run; its table is afterwards as it was."""
    yield shutil.copytree(trained, tmp_path / "run")
    schools.written(table)


def test_its_directory_says_what_the_columns_became(table, output):
    config = json.loads((output / "config.json").read_text())
    assert (config["dataset"], config["table"]) == ("pupils.csv", str(table))
    expected = pfl.from_table(
        table, "School", "Passed", ["Sex", "SES"], split="last", time_column="year",
        min_rows=6, on_small_client="drop",
    )  # fmt: skip
    about = json.loads((output / "preprocessing.json").read_text())
    columns = expected.preprocessing.columns
    assert [column["name"] for column in about["columns"]] == ["Sex", "SES"]
    assert about["columns"][0]["categories"] == list(columns[0].categories)
    assert about["columns"][1]["mean"] == columns[1].mean
    with pfl.load_run(output) as run:
        assert run.is_of_program
        np.testing.assert_array_equal(run.clients.fingerprints, expected.fingerprints)
        assert run.clients.preprocessing == expected.preprocessing
        assert run.clients.client_names == ("1224", "1296", "1308")
        assert run.summary["test_accuracy/client_mean"] == pytest.approx(
            run.evaluate().metrics()["test_accuracy/client_mean"]
        )


def test_it_goes_on_where_the_table_has_been_moved(table, output, capsys, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.move(table, tmp_path / "elsewhere")
    resume = [f"--output_dir={output}", "--resume", "--num_rounds=3"]
    refused = in_this_process(resume, capsys)
    assert_refused(refused, f"--table must be a file of rows; {table} does not exist")
    with pfl.load_run(output) as run, pytest.raises(RunDirectoryError, match="`data_dir` must be"):
        run.clients  # noqa: B018
    with pfl.load_run(output, data_dir=tmp_path / "elsewhere") as run:
        assert run.clients.num_clients == 3
    result = done([*resume, f"--table={moved}"], capsys)
    assert "1 of 4 clients, 5 of 45 rows, are left out" in result.stderr
    assert json.loads((output / "summary.json").read_text())["round"] == 3


def test_other_rows_are_refused(table, output, capsys):
    before = contents(output)
    columns = schools.columns()
    columns["SES"][0] += 1
    schools.written(table, columns)
    refused = in_this_process([f"--output_dir={output}", "--resume", "--num_rounds=3"], capsys)
    assert refused.returncode == 2
    *_, said = refused.stderr.splitlines()
    assert "the clients of --table must be the clients of the run in" in said
    assert "3 of 3 are not, the first is client 1224. Give the run's clients" in said
    with (
        pfl.load_run(output) as run,
        pytest.raises(ValueError, match="of `table` must be the clients"),
    ):
        run.clients  # noqa: B018
    assert contents(output) == before
    # A directory of somebody else does not have it read without knowing what is in it.
    (output / "partition.npz").write_bytes(b"damaged")
    with pfl.load_run(output) as run, pytest.raises(ValueError, match=r"partition.npz must have"):
        run.clients  # noqa: B018
    shutil.rmtree(output / "checkpoints")
    (output / "metrics.jsonl").write_bytes(b"")
    (output / "summary.json").unlink()
    refused = in_this_process([f"--output_dir={output}", "--resume"], capsys)
    assert refused.returncode == 2
    assert "partition.npz must have the fingerprints" in refused.stderr


def test_given_clients_keep_their_preprocessing_and_training_rows_validate(table, tmp_path):
    clients = pfl.from_table(table, "School", "MathAch", ["SES"], task="regression")
    config = pfl.RunConfig(
        engine="in_process", num_rounds=1, clients_per_round=2, output_dir=tmp_path / "given"
    )
    summary = pfl.run(config, clients=clients.with_validation(0.25), local_steps=1)
    assert "validation_root_mean_squared_error/client_mean" in summary
    about = json.loads((tmp_path / "given" / "preprocessing.json").read_text())
    assert [column["name"] for column in about["columns"]] == ["SES"]
    assert json.loads((tmp_path / "given" / "config.json").read_text())["task"] == "regression"
    columns = {"client_column": "School", "label_column": "MathAch", "feature_columns": "SES"}
    config = pfl.RunConfig(table=table, **columns, task="regression", validation_fraction=0.25)
    assert loading.load_clients(config).validation.sizes.tolist() == [2, 1, 4, 2]


@pytest.mark.thorough
def test_private_runs_reject_words_of_their_clients_and_support_public_words(
    tmp_path, capsys, caplog
):
    essays = np.array([f"essay of {name}" for name in schools.columns()["School"]])
    path = schools.written(tmp_path / "essays.csv", schools.table(essay=essays))
    settings = {"num_rounds": 1, "dp_noise_multiplier": 2.0, "clip_norm": 1.0}
    arguments = [f"--{name}={value}" for name, value in settings.items()]
    arguments += [f"--table={path}", "--client_column=School", "--label_column=Passed"]
    arguments += ["--text_columns=essay", "--engine=in_process", f"--output_dir={tmp_path / 'run'}"]
    result = in_this_process(arguments, capsys)
    assert result.returncode == 2
    assert "--text_columns must have a public vocabulary in a private run" in result.stderr
    assert not (tmp_path / "run").exists()

    of_table = functools.partial(pfl.from_table, path, "School", "Passed", ["essay", "SES"])
    own = of_table(text_columns=["essay"])
    drawn = pfl.Participation(own.num_clients, 2)
    model = pfl.SplitModel(pfl.mlp(own.example_shape, seed=0), num_outputs=2)
    method = pfl.build_algorithm("fedavg", model)
    private = pfl.with_dp(method, drawn, num_rounds=1, noise_multiplier=2, clip_norm=1)
    with pytest.raises(ValueError, match="must have a public vocabulary"):
        pfl.Simulation(private, own, drawn, "in_process")
    public = of_table(preprocessing=own.preprocessing)
    config = pfl.RunConfig("fedavg", engine="in_process", clients_per_round=2, **settings)
    for clients, is_warned in (public, False), (of_table(), True):
        caplog.clear()
        assert pfl.run(config, clients=clients)["round"] == 1
        assert ("are outside of epsilon" in caplog.text) == is_warned
