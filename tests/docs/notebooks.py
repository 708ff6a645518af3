"""Executes the notebooks of the repository, and reads what their cells print."""

import copy
import pathlib

import execute_notebook
import nbformat


def executed(stored: nbformat.NotebookNode, directory: pathlib.Path) -> list[tuple[str, str]]:
    """Returns what each cell of a notebook prints when it is run, and what it is stored with."""
    notebook = copy.deepcopy(stored)
    execute_notebook.execute(notebook, directory)
    return [
        (printed_by(now), printed_by(then))
        for now, then in zip(notebook.cells, stored.cells, strict=True)
        if now.cell_type == "code"
    ]


def printed_by(cell: nbformat.NotebookNode, name: str = "stdout") -> str:
    """Returns what a cell has written to a stream."""
    return "".join(output.text for output in cell.outputs if output.get("name") == name)
