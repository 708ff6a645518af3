"""The public names are typed: editors complete them, and a type checker sees wrong uses."""

import ast
import inspect
import pathlib
import re
import sys

import pytest

import tf_pflego
from tests.starts import finished

HERE = pathlib.Path(__file__).parent


def test_type_checkers_read_the_names_that_are_imported():
    stub = ast.parse(pathlib.Path(tf_pflego.__file__).with_suffix(".pyi").read_text("utf-8"))
    *_, names = (ast.literal_eval(node.value) for node in stub.body if isinstance(node, ast.Assign))
    assert names == tf_pflego.__all__


def functions_of(name):
    """Yields the functions that a public name gives, and the public methods of a class."""
    found = getattr(tf_pflego, name)
    if not inspect.isclass(found):
        yield name, found
        return
    for attribute in dir(found):
        member = inspect.getattr_static(found, attribute)
        member = getattr(member, "fget", getattr(member, "__func__", member))
        if inspect.isfunction(member) and not attribute.startswith("_"):
            yield f"{name}.{attribute}", member


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.lines("tff")] if home == "tf_pflego.tff" else ())
        for name, (home, _) in tf_pflego._HOME.items()
        if name != "__version__"
    ],
)
def test_public_functions_are_annotated(name):
    for where, function in functions_of(name):
        signature = inspect.signature(function)
        lacking = [
            parameter.name
            for parameter in signature.parameters.values()
            if parameter.annotation is parameter.empty and parameter.name not in ("self", "cls")
        ]
        assert not lacking, where
        assert signature.return_annotation is not signature.empty, where


def test_a_right_use_is_accepted_and_each_wrong_one_is_found():
    right, wrong = HERE / "typing" / "right_use.py", HERE / "typing" / "wrong_use.py"
    lines = wrong.read_text(encoding="utf-8").splitlines()
    expected = {k: line.split("  # ")[1] for k, line in enumerate(lines, 1) if "  # " in line}
    pytest.importorskip("mypy", reason="needs mypy, which the environment of the current line has")
    result = finished([sys.executable, "-m", "mypy", right, wrong])
    errors = re.findall(r"(\w+)\.py:(\d+): error: .*\[([\w-]+)\]$", result.stdout, re.MULTILINE)
    assert {(path, int(line)): code for path, line, code in errors} == {
        ("wrong_use", line): code for line, code in expected.items()
    }, result.stdout + result.stderr
