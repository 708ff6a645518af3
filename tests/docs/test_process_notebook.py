"""The notebook on processes of TFF has the code of its page, and prints what it is stored with."""

import importlib.util
import re

import nbformat
import pytest

from tests.docs import notebooks, pages

# On the line of TFF its cells run in the kernel's Python, on the other in one that it makes.
pytestmark = pytest.mark.lines("tff", "current")
NOTEBOOK = pages.ROOT / "notebooks" / "federated_processes.ipynb"
STORED = nbformat.read(NOTEBOOK, as_version=4)
IN_TFF = "%%tff\n"
VERSION = re.compile(r"Python 3\.1[01]\.\d+")


def test_it_has_the_code_the_text_and_the_output_of_the_page():
    """But for TFF's program loop, whose files the page shows, and the first cells, on Python."""
    page = (pages.ROOT / "docs" / "tff.md").read_text(encoding="utf-8")
    code = [block.text.rstrip("\n") for block in pages.blocks(page) if block.runs]
    shown = list(zip(code, pages.promised(page), strict=True))
    cells = [cell for cell in STORED.cells if cell.source.startswith(IN_TFF)]
    assert [
        (cell.source.removeprefix(IN_TFF), notebooks.printed_by(cell)) for cell in cells[1:]
    ] == [pair for pair in shown if "asyncio" not in pair[0]]
    texts = [cell.source for cell in STORED.cells if cell.cell_type == "markdown"]
    assert len(cells) > 4 and len(texts) > 4
    paragraphs = [paragraph for text in texts[2:] for paragraph in text.split("\n\n")]
    assert [paragraph for paragraph in paragraphs if paragraph not in page] == []


@pytest.mark.thorough
def test_it_prints_what_is_stored(tmp_path):
    """As far as the first training; tests/docs/test_docs.py runs the rest, which is the page's."""
    for both in notebooks.executed(STORED.cells[:7], tmp_path):
        pages.assert_like(*(VERSION.sub("Python", text) for text in both))


@pytest.mark.thorough
@pytest.mark.lines("current")
@pytest.mark.skipif(importlib.util.find_spec("tensorflow_federated") is not None, reason="has TFF")
def test_without_an_environment_it_says_so_and_goes_on(tmp_path):
    """Neither uv nor pip can install, and no Python 3.11 is found."""
    nothing = {"PATH": str(tmp_path), "UV_PYTHON": str(tmp_path / "python")}
    nothing |= {"PIP_NO_INDEX": "1", "UV_OFFLINE": "1"}
    printed = [now for now, _ in notebooks.executed(STORED.cells[:5], tmp_path, **nothing)]
    assert "TFF cannot run here" in printed[0]
    assert printed[1] == "not run, since it needs TFF\n"
    assert "accuracy of the 6 personal models, without TFF: 0.9" in printed[2]


@pytest.mark.parametrize("name", ["personal_models", "tables", "federated_processes"])
def test_nothing_stored_is_of_the_machine(name):
    notebook = nbformat.read(NOTEBOOK.with_name(f"{name}.ipynb"), as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    text = "".join(output.get("text", "") for output in outputs)
    assert not re.search(r"/root|/home|/tmp|/work|https?://|(?i:warning)", text)
    assert {output.get("name") for output in outputs} <= {None, "stdout"}
