"""A new method needs its file and its name: pages, tables, help and tests are made from these."""

import dataclasses

import documents
import fair_field
import method_pages

from tests.algorithms import served
from tests.algorithms.test_contract import simulation_of
from tests.runs.test_own_methods import write_method
from tests.starts import ROOT, in_this_process
from tf_pflego import algorithms

NAME = "mean_regularized"
ABOUT = '''"""Mean regularisation: a network for each client near the mean of all.

Served: the client's last network.

Differences from the paper: none.
"""
'''


def test_a_new_method_needs_its_file_and_its_name(
    tmp_path, monkeypatch, tiny_model, tiny_clients, capsys
):
    """The method is the one of docs/own_method.md, with a docstring; it has no page of facts."""
    package = tmp_path / "tf_pflego" / "algorithms"
    package.mkdir(parents=True)
    write_method(package)
    file = package / f"{NAME}.py"
    file.write_text(ABOUT + file.read_text(encoding="utf-8"), encoding="utf-8")
    for folder in ("docs", "results", "run_configs"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    flag_files, of_others = documents.flag_files(), method_pages.tables(ROOT)
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(package)])
    monkeypatch.setitem(algorithms.REGISTRY, NAME, algorithms._registered(NAME))

    method = algorithms.build(NAME, tiny_model)
    simulation = simulation_of(method, tiny_clients)
    assert served.usual(NAME, simulation) is served.last_own
    served.assert_absentees_are_served(method, tiny_clients, NAME)
    page = in_this_process([f"--algorithm={NAME}", "--help"], capsys).stdout
    assert "--pull=" in page and "Mean regularisation" in page

    page = method_pages.markdown(NAME, tmp_path)
    assert page.startswith(
        "# Mean regularisation\n\nA network for each client near the mean of all"
    )
    assert all(
        f"| `{one.name}` |" in page for one in dataclasses.fields(algorithms.REGISTRY[NAME][0])
    )
    for table, others in zip(method_pages.tables(tmp_path), of_others, strict=True):
        (row,) = {*table.splitlines()} - {*others.splitlines()}
        assert f"`{NAME}`" in row and "not stated" in row
    assert documents.flag_files() == flag_files and NAME not in fair_field.METHODS
