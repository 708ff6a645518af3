"""From a CSV file to a file for a phone that takes its columns: ten lines, or two commands.

And from a table of flights to a bundle, by six.
"""

import csv
import dataclasses
import inspect
import itertools
import json
import pathlib
import re
import shlex
import shutil

import flights
import nbformat
import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.docs import notebooks, pages
from tests.docs.test_commands import commands
from tests.starts import done, replaced

PAGE = (pages.ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
STORED = nbformat.read(pages.ROOT / "notebooks" / "tables.ipynb", as_version=4)
MOST_COMMANDS = 6
BAR = re.compile(r"round \d+/\d+ \|.*\n")


def test_the_flags_of_a_table_are_the_arguments_of_from_table():
    arguments = inspect.signature(pfl.from_table).parameters.keys() - {"encoding", "preprocessing"}
    assert arguments <= {field.name for field in dataclasses.fields(pfl.RunConfig)}


@pytest.mark.thorough
def test_its_commands_do_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first, *_ = (block.text for block in pages.blocks(PAGE) if block.language == "python")
    exec(first, {})
    every = [shlex.split(one)[1:] for one in commands("pupils")]
    train, export, sweep, new, predict, *on_bundle, of_readme, more = every
    head, *pupils = (tmp_path / "pupils.csv").read_text().splitlines(keepends=True)
    of_valley = [row.replace("north", "valley") for row in pupils if row.startswith("north")]
    (tmp_path / "new_schools.csv").write_text("".join([head, *of_valley]))
    on_table = train, export, replaced(*sweep, "--num_rounds=1"), new, predict, *on_bundle
    for arguments in on_table:
        done(arguments, capsys)
    for predicted in ("predictions.csv", "by_bundle.csv"):
        assert len(pathlib.Path(predicted).read_text().splitlines()) == 61
    assert (tmp_path / "new" / "client_valley").is_dir()
    about = json.loads((tmp_path / "models" / "clients.json").read_text())
    assert about["inputs"] == {name: name for name in ("sex", "age", "mark")}
    row = {"sex": np.array(["girl"], object), "age": np.float32([12]), "mark": np.float32([50])}
    classes = []
    for entry in about["clients"]:
        assert entry["largest_difference"] < 1e-5
        model = tf.lite.Interpreter(str(tmp_path / "models" / entry["file"]))
        probabilities = model.get_signature_runner("serve")(**row)["probabilities"]
        classes.append(entry["classes"][probabilities.argmax()])
    assert classes == ["yes", "no"]
    (tmp_path / "readme").mkdir()
    shutil.copy("pupils.csv", "readme")
    monkeypatch.chdir("readme")
    for arguments, fewer in zip((of_readme, more), (["--num_rounds=1"], []), strict=True):
        done(replaced(*arguments, *fewer), capsys)
    assert len([*pathlib.Path("phones").glob("client_*.tflite")]) == 3


@pytest.mark.thorough
def test_the_commands_of_flights_lead_to_an_answer_of_the_bundle(tmp_path, monkeypatch, capsys):
    """On a hundred rows with the columns of the flights."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    planes = ["N14228", "N24211", "N619AA", "N804JB"]
    for name, month, count in (("until_october", 10, 20), ("november", 11, 5)):
        with open(f"{name}.csv", "w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["plane", "day", *flights.FEATURES, "delay"])
            for plane, day in itertools.product(planes, range(1, count + 1)):
                where = rng.choice(["UA", "B6"]), "EWR", rng.choice(["IAH", "MIA"])
                when = f"2013-{month}-{day:02}", rng.choice(["Mon", "Tue"]), rng.uniform(5, 23)
                delay = rng.integers(-30, 120)
                rows.writerow([plane, when[0], *where, *when[1:], rng.choice([1085, 1400]), delay])
    *every, asked = commands("flights")
    assert len(every) < MOST_COMMANDS
    for command in every:
        words = shlex.split(command)[1:]
        fewer = ["--num_rounds=1", "--clients_per_round=2"] if words[0].startswith("--") else []
        done(replaced(*words, *fewer), capsys)
    assert len(pathlib.Path("flights_in_november.csv").read_text().splitlines()) == 21
    exec(shlex.split(asked)[2], {})
    assert re.fullmatch(r"\(array\(\[\[.*\]\].*\), array\(\[ True\]\)\)\n", capsys.readouterr().out)


@pytest.mark.thorough
def test_the_notebook_prints_what_is_stored_also_where_a_run_was_before(run_of, tmp_path):
    shutil.copytree(run_of("pflego"), tmp_path / "runs" / "marks" / "pflego")
    for now, then in notebooks.executed(STORED.cells, tmp_path):
        assert BAR.sub("", now) == BAR.sub("", then)
