"""The notebook runs as a whole, and prints what it is stored with."""

import copy
import html
import importlib.util
import os
import pathlib
import re
import tempfile

import execute_notebook
import nbformat
import pytest

from tests.docs.notebooks import printed_by
from tests.resources import commands

STORED = nbformat.read(execute_notebook.NOTEBOOK, as_version=4)
CODE = [number for number, cell in enumerate(STORED.cells) if cell.cell_type == "code"]
BAR = re.compile(r"round 30/30 \|.*\n")
DECIMALS = re.compile(r"\d+\.\d+")
# Lines, engines and machines add up in another order. In round 10, where accuracy still rises fast,
# the mean over the clients differs by up to three hundredths between the two lines of packages.
TOLERANCE = 0.04


def tags(number):
    return STORED.cells[number].metadata.get("tags", ())


def kinds(cell):
    """Returns of what kind a cell's other outputs are, such as pictures."""
    return [sorted(output.data) for output in cell.outputs if output.output_type != "stream"]


@pytest.mark.thorough
def test_it_does_what_is_stored_and_leaves_nothing_else(monkeypatch):
    """One test, since each process that has some of several would execute it anew."""
    notebook, mark = copy.deepcopy(STORED), f"TF_PFLEGO_TEST_OF_THE_NOTEBOOK_{os.getpid()}"
    for number in CODE:
        notebook.cells[number].outputs = []
    with tempfile.TemporaryDirectory() as top:  # The path of a socket must be short.
        work, temporary, home = (pathlib.Path(top) / name for name in ("work", "tmp", "home"))
        for directory in (work, temporary, home):
            directory.mkdir()
        for name, value in {mark: "1", "HOME": str(home), "TMPDIR": str(temporary)}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(tempfile, "tempdir", str(temporary))
        execute_notebook.execute(notebook, work)
        files = {str(path.relative_to(work)) for path in work.rglob("*")}
        # Python compiles what TensorFlow writes there and removes again.
        left = [path.name for path in temporary.iterdir() if path.name != "__pycache__"]
        left += [name for name in (".ipython", ".jupyter", ".local") if (home / name).exists()]
        left += commands(mark).values()
    assert {f"runs/personal/{name}/summary.json" for name in ("pflego", "fedper")} <= files
    models = ("keras/client_3.keras", "phone/client_3.tflite", "server/client_3/saved_model.pb")
    assert {f"models/{name}" for name in models} <= files
    of_top = {name.split("/")[0].split(".")[0] for name in files}
    assert of_top == {"runs", "figures", "report", "models", "client_3"}
    assert not left
    if importlib.util.find_spec("tensorflow_federated"):
        assert "engine tff" in printed_by(notebook.cells[CODE[0]])
    for number in CODE:
        assert_as_stored(number, notebook.cells[number])


def assert_as_stored(number, found):
    """Asserts that a cell prints and draws what is stored."""
    stored = STORED.cells[number]
    if "not_stored" in tags(number):
        assert not stored.outputs
        (output,) = found.outputs
        page = html.unescape(output.data["text/html"])
        assert "<iframe" in page and "<title" in page and "runs/personal/fedper" in page
        return
    assert kinds(found) == kinds(stored), number
    if "of_the_machine" in tags(number):
        assert printed_by(found).count("\n") == printed_by(stored).count("\n") > 0
        return
    # No warning, and no progress either: a notebook shows what is on standard error on red.
    assert printed_by(stored, "stderr") == printed_by(found, "stderr") == "", number
    expected, got = (BAR.sub("bar", printed_by(one)) for one in (stored, found))
    assert DECIMALS.sub("", got) == DECIMALS.sub("", expected), number
    expected, got = ([float(text) for text in DECIMALS.findall(one)] for one in (expected, got))
    assert got == pytest.approx(expected, abs=TOLERANCE)
