"""The results in the repository are made as their experiments make them, byte for byte."""

import inspect
import re
import shutil

import documents
import fair_field
import numpy as np
import overview
import pflego
import pytest
from absl import flags

from tests.methods import each_of, thorough
from tests.starts import done
from tf_pflego.program import flags as program_flags
from tf_pflego.reports import figures as drawn
from tf_pflego.sweeps import load_sweep, results, runner, store

ROOT, RESULTS = documents.ROOT, documents.RESULTS
WITH_RUNS = [name for name in documents.EXPERIMENTS if (RESULTS / name / store.RUNS).exists()]
FEW = WITH_RUNS[::6]
SOME = each_of(WITH_RUNS, FEW)
TABLES = ("tables.md", "tables.csv", "tables.tex")
RUN_IT = "run `python tools/documents.py`"
LAST_ROUNDS = 10
# The mean of ten numbers in another order of summation.
SUMMATION_TOLERANCE = 1e-12
# clients.csv has six digits of each value.
SIX_DIGITS = 1e-6


def parsed(*arguments):
    values = flags.FlagValues()
    program_flags.define_flags(values, arguments)
    values(["program", *arguments])
    return program_flags.from_flags(values)


def shown_of(name):
    """Returns the tables of committed runs, which agree byte for byte, and their figures."""
    shown = runner.shown(load_sweep(RESULTS / name), documents.EXPERIMENTS[name])
    assert {path.name for path in (RESULTS / name).glob("*.png")} == {*shown} - {*TABLES}
    for file in {*TABLES} & {*shown}:
        assert (RESULTS / name / file).read_bytes() == shown[file], file
    return shown


@pytest.mark.parametrize("name", SOME)
def test_committed_tables_are_those_of_the_committed_runs(name, monkeypatch):
    """No raw run is needed."""
    # Figures take nearly all of their time to be saved, and the next test saves those of some.
    monkeypatch.setattr(drawn, "image_of", lambda *_: b"")
    shown_of(name)


@pytest.mark.thorough
@pytest.mark.lines("tff")  # Another matplotlib draws other pixels.
@pytest.mark.parametrize("name", WITH_RUNS[::3])
def test_committed_tables_and_figures_are_those_of_the_committed_runs(name):
    for file, content in shown_of(name).items():
        assert (RESULTS / name / file).read_bytes() == content, file


@pytest.mark.parametrize("name", ["shared_head", "shared_head_ablation"])
def test_a_page_is_made_without_the_experiment_that_it_compares_with(name, tmp_path):
    shutil.copytree(RESULTS / name, tmp_path / name)
    page = documents.EXPERIMENTS[name].show(load_sweep(tmp_path / name))["tables.md"].decode()
    for row in store.runs_in(RESULTS / name / store.RUNS):
        assert f"| `{row['run'].split('_', 1)[1]}` |" in page


@pytest.mark.parametrize("name", WITH_RUNS)
def test_committed_sweeps_are_as_they_are_written(name, tmp_path):
    """Byte for byte: what the experiment says, and its runs when they have been read."""
    results.describe(tmp_path, documents.EXPERIMENTS[name])
    (described,) = tmp_path.iterdir()
    store.write(tmp_path / store.RUNS, store.runs_in(RESULTS / name / store.RUNS))
    for file in (described.name, store.RUNS):
        assert (RESULTS / name / file).read_bytes() == (tmp_path / file).read_bytes()


@pytest.mark.parametrize("name", SOME)
def test_committed_curves_and_clients_are_those_of_the_committed_runs(name):
    sweep = load_sweep(RESULTS / name)
    curves, clients = sweep.curves(), sweep.clients()
    first = sweep.first_of(sweep.cells)
    assert list(curves) == list(clients) == [(row["run"], row["seed"]) for row in sweep.rows]
    for row in sweep.rows:
        curve = curves[row["run"], row["seed"]]
        np.testing.assert_array_equal(curve["round"], np.arange(1, row["num_rounds"] + 1))
        assert curve["bytes_down"].sum() == float(row["bytes_down"])
        assert np.median(curve["seconds"]) == row[store.SECONDS]
        for key in map(first.metric, (store.PARTICIPANTS, store.SERVED)):
            mean = curve[key.removesuffix("/last10")][-LAST_ROUNDS:].mean()
            assert mean == pytest.approx(row[key], abs=SUMMATION_TOLERANCE)
        served = clients[row["run"], row["seed"]][f"test_{first.name}"].mean()
        last = curve[f"test_{first.name}/client_mean"][-1]
        assert served == pytest.approx(last, rel=SIX_DIGITS, abs=SIX_DIGITS)


@pytest.mark.parametrize("name", WITH_RUNS)
def test_a_committed_run_is_finished_until_its_cells_settings_change(name):
    cells = {cell.name: cell for cell in documents.EXPERIMENTS[name].planned}
    chosen = load_sweep(RESULTS / name).best()
    for number, row in enumerate(store.runs_in(RESULTS / name / store.RUNS)):
        cell = cells[row["run"]]
        assert cell.paper == row["paper"]
        settings = cell.settings | {"algorithm": cell.algorithm, "seed": row["seed"]}
        wanted = store.flags_of(settings | chosen.get(cell.name, {}))
        made = store.settings_of(row)
        assert store.is_made_with(*made, wanted)
        # A run is the same run wherever its clients are.
        assert store.is_made_with(*made, wanted | {"engine": "in_process"})
        assert store.is_made_with(*made, wanted | {"engine": "tff"})
        assert not store.is_made_with(*made, wanted | {"seed": "17"})
        assert not store.is_made_with(*made, wanted | {"unknown": "1"})
        for flag in wanted.keys() - {"engine"} if number == 0 else ():
            fewer = {other: value for other, value in wanted.items() if other != flag}
            assert not store.is_made_with(*made, fewer)


def test_the_program_prints_a_flag_file_of_any_cell(capsys, tmp_path):
    file, path = pflego.__file__, tmp_path / "own.flags"
    flags = ["--flags", "--where=name=omniglot_fedrecon_tau25", f"--output_dir={RESULTS}"]
    result = done(["sweep", f"{file}:local_steps", *flags], capsys)
    path.write_text(result.stdout, encoding="utf-8")
    (cell,) = [c for c in pflego.local_steps.planned if c.name == "omniglot_fedrecon_tau25"]
    plan, _ = parsed(f"--flagfile={path}")
    settings = vars(plan.settings) | plan.of_method
    assert {name: settings[name] for name in cell.settings} == cell.settings


@pytest.mark.parametrize("cells", [slice(1), thorough(slice(1, None))], ids=["first", "others"])
def test_every_cell_is_valid_and_fits_its_algorithm(cells):
    for experiment in documents.EXPERIMENTS.values():
        for cell in experiment.planned[cells]:
            method = cell.settings["algorithm"]
            if callable(method):  # On a command line a method of one's own is its file and name.
                method = f"{inspect.getfile(method)}:{method.__name__}"
            settings = cell.settings | {"algorithm": method}
            _, unused = parsed(*store.lines_of(settings).splitlines())
            assert not unused, cell.name


@pytest.mark.thorough
@pytest.mark.parametrize("name", overview.pages(RESULTS))
def test_the_other_pages_are_made_from_the_results(name):
    assert (RESULTS / name).read_bytes() == overview.pages(RESULTS)[name], RUN_IT
    assert re.search(rb"\n\| (\*\*)?`|\n\| SavedModel \|", overview.pages(RESULTS)[name])


@pytest.mark.parametrize("document", documents.DOCUMENTS, ids=lambda path: path.name)
def test_tables_of_documents_are_those_of_the_result_files(document):
    text = document.read_text(encoding="utf-8")
    assert documents.refreshed(document) == text, RUN_IT


def test_flag_files_to_read_are_one_per_method_with_what_was_measured():
    files = documents.flag_files()
    quickstart = ROOT / "run_configs" / "quickstart.flags"
    named = (ROOT / "run_configs" / "private").glob("*.flags")  # Other methods' names for settings.
    every = {*(ROOT / "run_configs").rglob("*.flags")}
    assert every == {quickstart, *named, *files}
    names = []
    for path in every:
        plan, unused = parsed(f"--flagfile={path}")
        assert not unused, path
        if path in files:
            assert path.read_text(encoding="utf-8") == files[path], RUN_IT
            names.append(plan.settings.algorithm)
    assert sorted(names) == sorted(fair_field.METHODS)
    cell = documents.EXPERIMENTS["table1"].planned[0]
    text = documents.flag_file("table1", cell, [], "own.flags")
    assert "# Not measured yet: results/table1/runs.csv has no run of it." in text


def test_the_page_of_the_files_counts_the_rows_of_changed_trees():
    text = (ROOT / "docs" / "results" / "files.md").read_text(encoding="utf-8")
    section = re.search(r"## Commits of the rows\n(.*?)The rows of films", text, re.S)[1]
    pairs = re.findall(r"(\d+)(?: rows)?\s+of\s+(\w+)", section)
    said = {name: int(count) for count, name in pairs}
    counted = {}
    for name in WITH_RUNS:
        rows = store.runs_in(RESULTS / name / store.RUNS)
        if changed := sum(row["commit"].endswith("+changes") for row in rows):
            counted[name] = changed
    assert said == counted
