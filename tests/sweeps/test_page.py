"""The page and the figures of a sweep, whose files are written by hand."""

import gzip
import html
import itertools
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.starts import in_this_process
from tf_pflego import sweeps
from tf_pflego.sweeps import choice, experiments, results, store, sweep_figures, tables

MARKUP = """<script>window.ran = 1</script>"><img src=x onerror="window.ran = 1">&amp; $x$"""
CELLS = (
    {"algorithm": "local", "client_learning_rate": [0.003, 0.03, 0.3], "momentum": [0.0, 0.9]},
    {"algorithm": "pflego", "client_learning_rate": sweeps.Range(1e-3, 1.0, log=True)},
    {"algorithm": "fedavg", "server_optimizer": ["sgd", "adam"]},
)
EXPERIMENT = sweeps.Experiment(
    [cell | {"personalization": degree} for degree in ("high", "no") for cell in CELLS],
    seeds=(0, 1),
    trials=4,
    title=MARKUP,
)


def tried_of(cell):
    """Returns the settings of the trials of a cell."""
    if cell.is_searched:
        return [{"client_learning_rate": 10.0**power} for power in (-3, -2, -1, 0)]
    return choice.settings_tried(cell, EXPERIMENT.budget)


@pytest.fixture
def directory(tmp_path):
    """A sweep in which the last trial of each cell is not finite, and one cell has no run yet."""
    root = tmp_path / "sweep"
    root.mkdir()
    results.describe(root, EXPERIMENT)
    rng = np.random.default_rng(0)
    files = {name: [] for name in (store.RUNS, store.CURVES, store.CLIENTS, store.TUNING)}
    for cell in EXPERIMENT.planned:
        tried = tried_of(cell)
        for number, settings in enumerate(tried):
            state = "not finite" if number == len(tried) - 1 else "finished"
            key = {"run": cell.name, "trial": experiments.name_of(settings), "seed": 1000}
            about = {"state": state, "num_rounds": 5, experiments.CHOSEN_BY: rng.random()}
            files[store.TUNING].append(key | settings | about)
        for seed in EXPERIMENT.seeds if cell is not EXPERIMENT.planned[3] else ():
            key = {"run": cell.name, "seed": seed}
            measured = dict.fromkeys((store.SERVED, store.BEST, store.PARTICIPANTS), rng.random())
            flags = {"flags": f"--algorithm={cell.algorithm}", "defaults": "--engine=in_process"}
            moved = {store.SECONDS: 0.5, "bytes_down": 1000, "bytes_up": 1000}
            files[store.RUNS].append(key | measured | moved | flags)
            for number in range(1, 6):
                times = {"round": number, "seconds": 0.5, "bytes_down": 200, "bytes_up": 200}
                curve = {sweep_figures.ACCURACY: rng.random()}
                files[store.CURVES].append(key | times | curve)
            for client in range(5):
                about = {"client": client, "train_examples": 9, "test_examples": 3}
                files[store.CLIENTS].append(key | about | {"test_accuracy": rng.random()})
    for name, rows in files.items():
        store.write(root / name, rows)
    return root


def test_a_page_has_all_sections_and_obeys_no_text(directory, tmp_path, capsys):
    sweep, output = sweeps.load_sweep(directory), tmp_path / "page.html"
    result = in_this_process(["report", str(directory), f"--output={output}"], capsys)
    assert (result.returncode, result.stdout) == (0, f"written to {output}\n")
    page = output.read_text(encoding="utf-8")
    assert MARKUP not in page and html.escape(MARKUP, quote=False)[:30] in page
    headings = "The methods compared", "What was chosen", "Training", "Clients at the end"
    for heading in (*headings, "Settings"):
        assert f">{heading}</h2>" in page
    assert page.count("<h3>personalization=no</h3>") == 4
    text = html.unescape(page)
    for said in (*sweep.table().verdicts, *sweep.table().notes, *sweep.table().warnings):
        assert said in text
    first = re.search(r"<p.*?>(.*?)</p>", page)[1]  # It begins with the result.
    assert html.unescape(first) == sweep.table().verdicts[0]
    assert sweep.table().verdicts[1].startswith("With personalization=no, ")
    heads = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', page)
    assert heads[:4] == ["method", "test accuracy, %", "difference, points", "chosen"]
    # A method looks the same where another one is missing.
    legends = [re.findall(r"</svg>\s*(.+?) \(2 seeds\)</li>", one) for one in page.split("<h3>")]
    others = ["pflego", "fedavg"]
    assert [one for one in legends if one] == 2 * [["local", *others], others]
    # The last trial of each cell is not finite: it is shown, counts as cost, and is not chosen.
    assert page.count(">ended early<") == len(sweep.cells)
    assert all(tried_of(cell)[-1] != sweep.best()[cell.name] for cell in EXPERIMENT.planned)
    assert sweep.table().rows[0]["tuning_rounds"] == 20
    assert '<td class="number">4 (20 rounds)</td>' in page  # It does not break.
    # Ids are not used twice, every reference inside has its target, and nothing is fetched.
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    used = itertools.chain(*re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', page))
    assert {one for one in used if one} <= set(ids)
    assert not re.search(r"""(?:src|href)=["'](?!#|data:)|@import|url\((?!#)""", page)
    assert "default-src &#39;none&#39;" in page


def test_each_condition_has_a_table_and_pictures(directory, without_pictures):
    """Results of an earlier version have no best round."""
    rows = store.read(directory / store.RUNS)
    store.write(
        directory / store.RUNS, [{k: row[k] for k in row if k != store.BEST} for row in rows]
    )
    sweep = sweeps.load_sweep(directory)
    compared, files = sweep.table(), tables.files_of(sweep)
    methods = [(row["personalization"], row["method"]) for row in compared.rows]
    names = "local", "pflego", "fedavg"
    assert methods == [("high", name) for name in names] + [("no", name) for name in names[1:]]
    high, no = (set(table.head) for table in compared.tables)
    assert high - no == {"difference, points", "clients that gain, %"}  # It has no run of `local`.
    assert "best round, %" not in high and "test accuracy, %" in no
    assert compared.warnings[0] == (
        "Of 6 cells, local (personalization=no) have no run yet: they are not in the tables."
    )
    kinds = itertools.product(("clients", "settings"), ("high", "no"))
    assert files.keys() >= {f"{kind}_{condition}.png" for kind, condition in kinds}


@pytest.fixture
def with_errors(directory):
    """The sweep with errors in the place of accuracies."""
    error = "root_mean_squared_error"
    for name in (store.RUNS, store.CURVES, store.CLIENTS, store.TUNING):
        rows = store.read(directory / name)
        named = [{k.replace("accuracy", error): v for k, v in row.items()} for row in rows]
        store.write(directory / name, named)
    return sweeps.load_sweep(directory), error


def test_where_lower_is_better_the_least_is_chosen_and_gains(with_errors):
    sweep, error = with_errors
    for cell, settings in sweep.best().items():
        finished = [r for r in sweep.tuning_rows if (r["run"], r["state"]) == (cell, "finished")]
        best = min(finished, key=lambda row: row[f"validation_{error}/client_mean/last10"])
        assert best["trial"] == experiments.name_of(settings)
    heads = {"test RMSE", "best round", "difference", "clients that gain, %"}
    assert heads <= set(sweep.table().tables[0].head)
    ours, theirs = (
        np.array([sweep.clients()[f"high_{name}", seed][f"test_{error}"] for seed in (0, 1)])
        for name in ("pflego", "local")
    )
    row = next(row for row in sweep.table().rows if row["method"] == "pflego")
    assert row["clients_that_gain"] == pytest.approx(100 * np.mean(ours < theirs))


@pytest.mark.thorough
def test_where_lower_is_better_a_page_says_so(with_errors, tmp_path, without_pictures):
    page = with_errors[0].report(tmp_path / "page.html").read_text(encoding="utf-8")
    for said in ("its RMSE on validation examples", "validation RMSE", "further left", "is better"):
        assert said in page
    assert "accurac" not in re.sub(r"<(style|script).*?</\1>", "", page, flags=re.DOTALL)


def test_a_panel_for_each_setting_marks_what_was_chosen(directory):
    sweep = sweeps.load_sweep(directory)
    figure = sweep_figures.settings(sweep, sweep.cells[:3], (10.4, 4.5))
    panels = [axis for axis in figure.axes if axis.get_visible()]
    assert [axis.get_title() for axis in panels] == ["local", "local", "pflego", "fedavg"]
    assert [axis.get_xscale() for axis in panels] == ["log", "linear", "log", "linear"]
    best = sweep.best()
    for axis, cell, name in (
        (panels[0], "high_local", "client_learning_rate"),
        (panels[1], "high_local", "momentum"),
        (panels[2], "high_pflego", "client_learning_rate"),
    ):
        (ring,) = [line for line in axis.lines if line.get_label() == "chosen"]
        assert ring.get_xdata() == [best[cell][name]]


@pytest.mark.thorough
def test_a_sweep_that_has_just_begun_has_a_page(directory, tmp_path, without_pictures):
    for name in (store.RUNS, store.CURVES, store.CLIENTS):
        (directory / name).unlink()
    page = sweeps.load_sweep(directory).report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "No run has ended yet" in page and "What was chosen" in page
    (directory / store.TUNING).unlink()
    page = sweeps.load_sweep(directory).report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "What was chosen" not in page


def test_the_page_of_a_sweep_has_few_flags(directory, capsys):
    result = in_this_process(["report", str(directory), "--format=png"], capsys)
    assert result.returncode == 2 and "--format and --reference must not be given" in result.stderr


def without(content, column):
    return gzip.compress(gzip.decompress(content).replace(column, b"another", 1))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (store.CURVES, lambda content: content[:-9]),
        (store.CLIENTS, lambda content: b"\x1f\x8b" + content[20:]),
        (store.TUNING, lambda content: content.replace(b",5,", b",five,")),
        (store.RUNS, lambda content: content.replace(b"run,", b"ran,")),
        (store.RUNS, lambda content: content.replace(b",flags,", b",flag,")),
        (store.CURVES, lambda content: without(content, b"bytes_up")),
        (store.CLIENTS, lambda content: without(content, b"test_accuracy")),
        ("sweep.json", lambda content: content.replace(b'"choices": {', b'"choices": "x", "a": {')),
        ("sweep.json", lambda content: b'{"title": "-"}'),
    ],
)
def test_a_damaged_file_is_named(directory, tmp_path, capsys, name, change):
    path = directory / name
    path.write_bytes(change(path.read_bytes()))
    output = tmp_path / "page.html"
    result = in_this_process(["report", str(directory), f"--output={output}"], capsys)
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert name in result.stderr
    assert not output.exists()


@pytest.mark.thorough
def test_the_program_does_without_tensorflow(directory, tmp_path):
    code = "import sys; from tf_pflego.main import entry_point\ntry: entry_point()\n"
    code += "finally: assert 'tensorflow.python' not in sys.modules"
    arguments = ["report", str(directory), f"--output={tmp_path / 'page.html'}"]
    subprocess.run([sys.executable, "-c", code, *arguments], check=True)
