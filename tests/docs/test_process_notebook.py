"""The notebook on processes of TFF has the code of its page, and prints what it is stored with."""

import copy

import execute_notebook
import nbformat
import pytest

from tests.docs import pages

pytest.importorskip("tensorflow_federated", reason="TensorFlow Federated is optional")
pytestmark = pytest.mark.lines("tff")
NOTEBOOK = pages.ROOT / "notebooks" / "federated_processes.ipynb"
STORED = nbformat.read(NOTEBOOK, as_version=4)


def test_it_has_the_code_of_the_page():
    """But for TFF's program loop, which a notebook's own event loop leaves no room for."""
    page = (pages.ROOT / "docs" / "tff.md").read_text(encoding="utf-8")
    blocks = [block.text.rstrip("\n") for block in pages.blocks(page) if block.runs]
    code = [cell.source for cell in STORED.cells if cell.cell_type == "code"]
    assert len(code) > 4
    assert code == [block for block in blocks if "asyncio" not in block]


@pytest.mark.thorough
def test_it_prints_what_is_stored(tmp_path):
    notebook = copy.deepcopy(STORED)
    execute_notebook.execute(notebook, tmp_path)
    for stored, cell in zip(STORED.cells, notebook.cells, strict=True):
        if cell.cell_type == "code":
            pages.assert_like(printed(cell), printed(stored))


def printed(cell):
    return "".join(output.text for output in cell.outputs if output.get("name") == "stdout")
