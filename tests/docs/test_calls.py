"""Calls of public names that messages, docstrings and pages show can be made as they stand."""

import ast
import inspect
import re

import tf_pflego
from tests.docs.test_docs import FRONT, PAGES, ROOT, prose_of

SOURCES = sorted((ROOT / "tf_pflego").rglob("*.py"))
CALL = re.compile(r"`([A-Za-z][\w.]*\([^`]*)`")
# Variables that pages and messages have for instances of public classes.
CLASSES = {"simulation": "Simulation", "clients": "ClientData", "run": "StoredRun"}


def strings_of(path):
    """Yields the strings of a module, with an ellipsis for what is formatted into them."""
    waiting = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.JoinedStr):
            fields = [part for part in node.values if isinstance(part, ast.FormattedValue)]
            yield "".join("..." if part in fields else part.value for part in node.values)
            waiting += fields
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        else:
            waiting += ast.iter_child_nodes(node)


def calls_in(text):
    """Yields the calls of public names in backticks, each with the name and that of its method."""
    for shown in CALL.findall(text):
        try:
            tree = ast.parse(" ".join(shown.split()), mode="eval")
        except SyntaxError:  # As a sentence may have it.
            continue
        for call in ast.walk(tree):
            if isinstance(call, ast.Call):
                name, *rest = ast.unparse(call.func).split(".")
                if name in ("pfl", "tf_pflego") and rest:
                    name, *rest = rest
                name = CLASSES.get(name, name) if rest else name
                if name in tf_pflego.__all__ and len(rest) < 2:
                    yield call, name, *rest


def refuse_wrong(call, name, method=None):
    """Asserts that a call has arguments that its signature takes, in their order.

    A word in lower case stands for the parameter in its place: it has its name if it is of several
    words, and no other parameter's name.
    """
    function, shown = getattr(tf_pflego, name), ast.unparse(call)
    if method:
        assert hasattr(function, method), f"{shown}: {name} has no {method}"
        function = getattr(function, method)
    parameters = list(inspect.signature(function).parameters.values())
    if method and inspect.isfunction(function):
        del parameters[0]  # self
    names = {parameter.name for parameter in parameters}
    kinds = {parameter.kind for parameter in parameters}
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        others = {keyword.arg for keyword in call.keywords} - names
        assert not others, f"{shown}: {name} has no {others}"
    in_place = [p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD]
    assert len(call.args) <= len(in_place) or inspect.Parameter.VAR_POSITIONAL in kinds, shown
    for argument, expected in zip(call.args, in_place, strict=False):
        if isinstance(argument, ast.Constant) and argument.value is ...:
            break
        if isinstance(argument, ast.Name) and argument.id.islower() and argument.id != expected:
            wrong = "_" in argument.id or argument.id in names
            assert not wrong, f"{shown}: {argument.id} is in the place of {expected}"


def test_calls_that_are_shown_have_arguments_that_exist():
    texts = {path: [prose_of(path)] for path in [*PAGES, *FRONT]}
    texts |= {path: strings_of(path) for path in SOURCES}
    found = 0
    for path, parts in texts.items():
        for call in (call for text in parts for call in calls_in(text)):
            try:
                refuse_wrong(*call)
            except AssertionError as error:
                raise AssertionError(f"{path.relative_to(ROOT)}: {error}") from error
            found += 1
    assert found > 20
