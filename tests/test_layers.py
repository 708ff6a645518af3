"""The rules of docs/layout.md about who imports whom, held by the syntax trees of all modules."""

import ast
import functools
import graphlib
import pathlib
import re

import pytest

PACKAGE = pathlib.Path(__file__).parents[1] / "tf_pflego"
PAGE = (PACKAGE.parent / "docs" / "layout.md").read_text(encoding="utf-8")
# A module imports modules of lower layers, or of its own folder.
LAYERS = {
    package: int(layer)
    for layer, package in re.findall(r"^\| (\d+) \| `(\w+)` \| .+ \|$", PAGE, re.MULTILINE)
}


def _names_of(path):
    return path.relative_to(PACKAGE).with_suffix("").parts


@functools.cache
def _nodes(path):
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@functools.cache
def _imports(path):
    """Returns (line, dotted name) of all that a module imports, also inside functions."""
    names = []
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            names += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return names


MODULES = [*sorted(PACKAGE.glob("*/**/*.py")), PACKAGE / "main.py"]


def _offences(allowed):
    """Returns "file:line imports name" for what `allowed(parts of module, name)` refuses."""
    return [
        f"{path.relative_to(PACKAGE)}:{line} imports {name}"
        for path in MODULES
        for line, name in _imports(path)
        if not allowed(_names_of(path), name)
    ]


def test_imports_run_down_the_layers():
    def allowed(module, name):
        if not name.startswith("tf_pflego."):
            return name != "tf_pflego"
        package = name.split(".")[1]
        return package in LAYERS and (package == module[0] or LAYERS[package] < LAYERS[module[0]])

    assert _offences(allowed) == []


def test_no_circle_of_modules():
    """Imports for types alone count too; only the package's `__init__` is left out."""
    modules = {
        ".".join(("tf_pflego", *_names_of(path))).removesuffix(".__init__"): path
        for path in MODULES
    }

    def module_of(name):
        while name and name not in modules:
            name = name.rpartition(".")[0]
        return name

    imported = {
        module: {module_of(name) for _, name in _imports(path)} - {module, ""}
        for module, path in modules.items()
    }
    graphlib.TopologicalSorter(imported).prepare()  # CycleError names the modules of a circle.


@pytest.mark.parametrize(
    ("importers", "imported"),
    [
        (("system", "reports", "runs.reader"), ("tensorflow",)),
        (("core", "algorithms"), ("tf_pflego.system.log", "tf_pflego.system.signals")),
        (("engines",), ("tf_pflego.models", "tf_pflego.algorithms")),
    ],
)
def test_a_package_does_without(importers, imported):
    def allowed(module, name):
        own = ".".join(module) + "."
        return not (
            any(own.startswith(f"{one}.") for one in importers)
            and any(f"{name}.".startswith(f"{one}.") for one in imported)
        )

    assert _offences(allowed) == []


@pytest.mark.parametrize(("library", "package"), [("tensorflow_federated", "tff"), ("ray", "ray")])
def test_a_library_of_an_engine_is_imported_in_its_package_alone(library, package):
    assert not _offences(lambda module, name: name.split(".")[0] != library or module[0] == package)


def test_one_module_asks_what_linux_alone_tells():
    """So that the package has another way of each; the wheels of `tff` are of Linux alone."""
    asking = {path for path in MODULES if re.search("/(proc|dev/fd|sys)\\b", path.read_text())}
    others = {path for path in asking if path.relative_to(PACKAGE).parts[0] != "tff"}
    assert others == {PACKAGE / "system/operating_system.py"}


def _at_its_import(path):
    """Returns the names that a module imports when it is imported itself."""
    later: set[int] = set()
    for node in _nodes(path):
        if isinstance(node, ast.FunctionDef) or (
            isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        ):
            later.update(range(node.lineno, node.end_lineno + 1))
    return [name for line, name in _imports(path) if line not in later]


@pytest.mark.parametrize("package", ["tff", "ray", "devices"])
def test_a_package_that_can_be_deleted_is_needed_by_no_other(package):
    """The module of the verb `client` is imported for this verb alone."""
    assert not [
        (path, name)
        for path in [*MODULES, PACKAGE / "__init__.py"]
        if path.relative_to(PACKAGE).parts[0] != package and path != PACKAGE / "program/client.py"
        for name in _at_its_import(path)
        if f"{name}.".startswith(f"tf_pflego.{package}.")
    ]


# By these something is written to the screen; in `tools`, which are programs, by the first alone.
WRITE = {"print", "sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__", "os.write"}
WRITE |= {"warnings.warn", "traceback.print_exc", "logging.basicConfig", "logging.StreamHandler"}


def test_only_the_program_writes_to_the_screen():
    found = set()
    for path in (*MODULES, *PACKAGE.parent.glob("tools/*.py")):
        named = (node for node in _nodes(path) if isinstance(node, ast.Name | ast.Attribute))
        names = {*map(ast.unparse, named), *(name for _, name in _imports(path))}
        if path.parent.name == "tools":
            assert "print" not in names, path
        elif path.parent.name != "program":
            found |= {(path.name, name) for name in names & {*WRITE, "tqdm"}}
    assert found == {
        ("progress.py", "tqdm"),  # where a notebook or the program shows a bar,
        ("progress.py", "sys.stdout"),  # which of a notebook is this
        ("signals.py", "os.write"),  # the last words of a program
        ("deferred.py", "sys.stderr"),  # where TensorFlow would write
    }


def test_the_front_of_a_folder_only_hands_on():
    """Its `__init__` defines nothing: a name is where the module's name says."""
    for path in PACKAGE.rglob("__init__.py"):
        if path.parent not in (PACKAGE, PACKAGE / "algorithms"):  # The public names; the registry.
            tree = ast.parse(path.read_text(encoding="utf-8"))
            kinds = {type(node).__name__ for node in tree.body}
            assert kinds <= {"Expr", "ImportFrom", "Assign"}, path


def test_the_page_of_the_layout_has_the_rooms():
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert modules | folders == LAYERS.keys()
    for name in re.findall(r"`((?:\w+/)+\w+(?:\.py)?|\w+/)`", PAGE):
        assert any((place / name).exists() for place in (PACKAGE, PACKAGE.parent)), name
