"""Next month's run: begins with what last month's has learnt, on other rows and clients."""

import dataclasses
import functools
import json
import re
import shutil

import numpy as np
import pytest

import tf_pflego as pfl
from tests.data.tables import schools
from tests.methods import thorough
from tests.runs.test_tables import FLAGS
from tests.starts import code_of, done, in_this_process, replaced
from tf_pflego.data import fingerprints
from tf_pflego.runs.table_settings import TableSettings
from tf_pflego.simulation import checkpoint

pytestmark = pytest.mark.usefixtures("traced_once")
TASKS = {"Passed": "classification", "MathAch": "regression"}


def month(path, gone, **changed):
    """Writes the table without the rows of one school, and with others in some columns."""
    columns = schools.columns()
    rows = [row for row, school in enumerate(columns["School"]) if str(school) != gone]
    columns = {name: [column[row] for row in rows] for name, column in columns.items()}
    for name, change in changed.items():
        columns[name] = [change(value) for value in columns[name]]
    return schools.written(path, columns)


@pytest.fixture(scope="module")
def runs_of_june(tmp_path_factory):
    """A function of the column that is predicted, which returns the directory of a run."""

    @functools.cache
    def of_label(label):
        directory = tmp_path_factory.mktemp("june")
        table, place = month(directory / "june.csv", "1308"), directory / "june"
        told = [f"--table={table}", f"--label_column={label}", f"--task={TASKS[label]}"]
        told = replaced(*FLAGS, *told, "--text_columns=Sex", "--text_words=3")
        assert code_of([*told, "--num_rounds=2", f"--output_dir={place}"]) == 0
        return place

    return of_label


@pytest.fixture(params=["Passed", thorough("MathAch")])
def june(request, runs_of_june, tmp_path):
    return shutil.copytree(runs_of_june(request.param), tmp_path / "june")


def arrays(path):
    with np.load(path) as stored:
        return dict(stored)


def test_what_last_month_has_learnt_is_taken_over(june, tmp_path, capsys):
    changed = {"SES": lambda value: float(value) + 3, "Sex": "{} other".format}
    table = month(tmp_path / "july.csv", "1224", **changed)
    july = tmp_path / "july"
    begin = [f"--start_from={june}", f"--table={table}", f"--output_dir={july}", "--num_rounds=1"]
    result = done(begin, capsys)
    said = f"starts from {june} (clients: 1 continued, 1 new, 1 absent)"
    assert said in result.stderr
    assert "was trained on" not in result.stderr

    about = [json.loads((place / "config.json").read_text()) for place in (june, july)]
    assert about[1]["start_from"] == str(june)
    differing = {name for name in about[0] if about[0][name] != about[1].get(name)}
    assert differing == {"dataset", "num_rounds", "output_dir", "start_from", "table"}
    first, then = (json.loads((place / "preprocessing.json").read_text()) for place in (june, july))
    assert first == then | {"is_fitted": True}  # with the same words

    last, first = (
        arrays(june / "checkpoints/server-2.npz"),
        arrays(july / "checkpoints/server-0.npz"),
    )
    assert last.keys() == first.keys()
    for name, leaf in last.items():
        np.testing.assert_array_equal(first[name], leaf)
    had, has = (
        arrays(june / "checkpoints/clients-2.npz"),
        arrays(july / "checkpoints/clients-0.npz"),
    )
    # School 1296 is the second one of June and the first one of July.
    assert has["ids"].tolist() == [0]
    (row,) = np.flatnonzero(had["ids"] == 1)
    for name in had.keys() - {"ids"}:
        np.testing.assert_array_equal(has[name], had[name][[row]])

    # It is loaded and goes on by itself, also if last month's run is no more.
    june.rename(tmp_path / "archive")
    with pfl.load_run(july) as run, pfl.load_run(tmp_path / "archive") as earlier:
        assert run.clients.preprocessing == earlier.clients.preprocessing
        tasks = [one.simulation().algorithm.model.task for one in (run, earlier)]
        assert tasks[0].mean == tasks[1].mean
        name = next(name for name in run.summary if name.endswith("/client_mean"))
        assert run.evaluate().metrics()[name] == pytest.approx(run.summary[name])
    done([f"--output_dir={july}", "--resume", "--num_rounds=2"], capsys)


@pytest.mark.parametrize(
    "flags, said",
    [
        ([], "--table must be given, since the run in"),  # Its directory does not say which.
        (["--text_words=4"], "--text_words: expected 3, got 4"),
    ],
)
def test_another_table_and_the_same_words_are_needed(flags, said, runs_of_june, tmp_path, capsys):
    june = runs_of_june("Passed")
    flags = [*flags, *[f"--table={june.parent / 'june.csv'}"] * bool(flags)]
    refused = in_this_process([f"--start_from={june}", *flags], capsys)
    assert refused.returncode == 2
    assert said in refused.stderr


def of_column(**changed):
    def change(place):
        path = place / "preprocessing.json"
        about = json.loads(path.read_text())
        about["columns"][0] |= changed
        path.write_text(json.dumps(about))

    return change


def of_checkpoint(**changed):
    """The checksum is right again."""

    def change(place):
        path = place / "checkpoints" / "checkpoint-2.json"
        content = json.loads(path.read_text())["content"] | changed
        crc32 = checkpoint._crc32(content)
        path.write_text(json.dumps({"crc32": crc32, "content": content}))
        for other in set(path.parent.glob("checkpoint-*.json")) - {path}:
            other.unlink()

    return change


def of_partition(**changed):
    def change(place):
        np.savez_compressed(place / "partition.npz", **arrays(place / "partition.npz") | changed)

    return change


def of_config(**changed):
    def change(place):
        about = json.loads((place / "config.json").read_text())
        (place / "config.json").write_text(json.dumps(about | changed))

    return change


@pytest.mark.parametrize(
    "change",
    [
        of_checkpoint(num_clients=10**9),
        of_partition(classes=np.array(3)),
        of_config(task="a\nb"),
        of_column(categories=[]),
        of_column(categories=["a", 1]),
        of_column(mean=float("nan")),
        of_column(deviation=0),
        lambda place: (place / "partition.npz").write_bytes(b"x"),
        lambda place: shutil.rmtree(place / "checkpoints"),
    ],
)
def test_a_damaged_directory_is_one_line_and_leaves_nothing(change, runs_of_june, tmp_path, capsys):
    whole = runs_of_june("Passed")
    damaged = shutil.copytree(whole, tmp_path / "damaged")
    change(damaged)
    table, new = whole.parent / "june.csv", tmp_path / "new"
    begin = [f"--start_from={damaged}", f"--table={table}", f"--output_dir={new}"]
    refused = in_this_process(begin, capsys)
    assert refused.returncode == 2, refused.stderr
    assert str(damaged) in refused.stderr.splitlines()[-1]
    assert not new.exists()


def test_arrays_of_next_month_follow_in_python(june, tmp_path, caplog):
    table = month(tmp_path / "july.csv", "1224")
    with pfl.load_run(june) as earlier:
        config = dataclasses.replace(
            earlier.run_config,
            **{field.name: field.default for field in dataclasses.fields(TableSettings)},
            dataset="digits",
            output_dir="",
            start_from=earlier.path,
        )
        told = {"split": "last", "time_column": "year", "task": earlier.clients.task}
        told |= {"min_rows": 6, "on_small_client": "drop"}
        label = earlier.run_config.label_column
        columns = table, "School", label, ["Sex", "SES"]
        with pytest.raises(ValueError, match="must have the preprocessing of the run"):
            pfl.run(config, clients=pfl.from_table(*columns, **told))
        told["preprocessing"] = earlier.clients.preprocessing
        july = pfl.from_table(*columns, **told).with_validation(0.3)
        summary = pfl.run(config, clients=july)
        assert summary["round"] == 2
        trained = {row.tobytes() for row in earlier.clients.train.examples}
    for split in "test", "validation":
        rows = july.splits[split].examples
        seen = sum(row.tobytes() in trained for row in rows)
        said = f"{seen} of {len(rows)} {split} rows equal rows that the earlier run in {june} was"
        assert (said in caplog.text) == (seen > 0)
    assert seen


def test_a_sample_of_the_rows_of_all_runs_before_is_known(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(fingerprints, "MOST_ROWS", 50)
    rng, labels = np.random.default_rng(0), [0, 1] * 100
    months = rng.normal(size=(3, 200, 2)).astype(np.float32)
    config = pfl.RunConfig(
        algorithm="local", engine="in_process", clients_per_round=1, num_rounds=1
    )
    for train, test in ((0, 1), (1, 2), (2, 0)):  # The last is tested on the first month's rows.
        assert not caplog.records
        rows = [(months[train], labels)], [(months[test], labels)]
        config = dataclasses.replace(config, output_dir=str(tmp_path / str(train)))
        pfl.run(config, clients=pfl.from_arrays(*rows))
        config = dataclasses.replace(config, start_from=config.output_dir)
    seen, compared = map(int, re.search(r"(\d+) of (\d+) test rows", caplog.text).groups())
    assert 0 < seen == compared < 50


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--seed=1"], "--seed: expected 0, got 1"),
        (["--algorithm=fedper"], "--algorithm: expected pflego, got fedper"),
        (["--dp_epsilon=4"], "--start_from must not be given for a private run"),
        (["--start_from=nowhere"], "nowhere does not exist"),
    ],
)
def test_what_cannot_go_on_is_refused_at_once(flags, said, run_of, digits_dir, tmp_path, capsys):
    start = [f"--start_from={run_of('pflego')}", f"--data_dir={digits_dir}", "--engine=in_process"]
    flags = replaced(*start, f"--output_dir={tmp_path / 'new'}", *flags)
    refused = in_this_process(flags, capsys)
    assert refused.returncode == 2
    assert said in refused.stderr
    assert not (tmp_path / "new").exists()


def test_clients_without_names_go_on_by_their_numbers(run_of, digits_dir, capsys):
    start = [f"--start_from={run_of('pflego')}", f"--data_dir={digits_dir}", "--engine=in_process"]
    result = done([*start, "--num_clients=9", "--num_rounds=1"], capsys)
    assert " (clients: " in result.stderr


@pytest.mark.thorough
def test_heads_of_next_months_clients_are_fitted_without_a_round(june, tmp_path, capsys):
    """Known clients begin with their heads, and the run stays as it was."""
    table, place = month(tmp_path / "july.csv", "1224"), tmp_path / "bundle"
    before = {path: path.read_bytes() for path in june.rglob("*") if path.is_file()}
    flags = ["personalize", f"--run={june}", "--clients=all", f"--table={table}"]
    assert "--output_dir must be given" in in_this_process(flags, capsys).stderr
    done([*flags, f"--output_dir={place}", "--steps=0"], capsys)
    names, heads = (place / "names.txt").read_text().split(), np.load(place / "heads.npy")
    assert names == ["1296", "1308"]  # The third has too few rows.
    with pfl.load_run(june) as run, run.simulation() as simulation:
        # The labels of classes are a client's own there, and have no mean.
        toward = [] if run.run_config.task == "classification" else ["--toward_mean=1"]
        for name, head in zip(names, heads, strict=False):
            if name != "1308":
                number = simulation.data.client_names.index(name)
                np.testing.assert_array_equal(head, simulation.served_weights(number).head)
    said = done([*flags, *toward, f"--output_dir={place}", "--overwrite"], capsys).stdout
    assert f"written to {place}" in said and ", all clients" in said
    assert np.abs(np.load(place / "heads.npy") - heads)[:-1].max(axis=(1, 2)).min() > 0
    assert before == {path: path.read_bytes() for path in june.rglob("*") if path.is_file()}
