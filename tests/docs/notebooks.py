"""Executes cells of the repository's notebooks, and reads what they print."""

import json
import pathlib

import nbformat

from tests import programs
from tests.starts import TIMEOUT_SECONDS

_MARK = "=== end of a cell\n"
# As a kernel, but in a process whose imports were made before; no picture is shown.
_CELLS = f"""
import json, os, sys
from IPython.core.interactiveshell import InteractiveShell
os.environ |= json.loads(sys.argv[2])
shell = InteractiveShell.instance(ipython_dir="ipython")
for source in json.loads(sys.argv[1]):
    shell.run_cell(source).raise_error()
    print(end={_MARK!r})
"""


def executed(
    cells: list[nbformat.NotebookNode], directory: pathlib.Path, **environment: str
) -> list[tuple[str, str]]:
    """Returns what each cell of code prints when it is run, and what it is stored with."""
    cells = [cell for cell in cells if cell.cell_type == "code"]
    sources, variables = json.dumps([cell.source for cell in cells]), json.dumps(environment)
    running = programs.Begun(_CELLS, sources, variables, directory=directory)
    printed, said = running.communicate(4 * TIMEOUT_SECONDS)
    assert running.returncode == 0, printed + said
    return list(zip(printed.split(_MARK), map(printed_by, cells), strict=False))


def printed_by(cell: nbformat.NotebookNode, name: str = "stdout") -> str:
    """Returns what a cell has written to a stream."""
    return "".join(output.text for output in cell.outputs if output.get("name") == name)
