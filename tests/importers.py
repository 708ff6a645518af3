"""The test files that import a module of the package, by themselves or through other test files."""

import ast
import functools
import pathlib

ROOT = pathlib.Path(__file__).parents[1]


@functools.cache
def _homes():
    """Returns the module of each public name."""
    stub = ast.parse((ROOT / "tf_pflego/__init__.pyi").read_text(encoding="utf-8"))
    froms = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {one.asname or one.name: node.module for node in froms for one in node.names}


@functools.cache
def _imported(path):
    """Returns the dotted names that a file imports, and the homes of public names that it uses."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in ("pfl", "tf_pflego"):
                names.add(_homes().get(node.attr, ""))
    return names


def _name_of(path):
    parts = path.relative_to(ROOT) if path.is_absolute() else path
    return ".".join(parts.with_suffix("").parts).removesuffix(".__init__")


def _test_files(wanted):
    """Returns the test files that import one of these modules, or a test module that does."""
    files = [one for one in (ROOT / "tests").rglob("*.py") if one.name != "conftest.py"]
    while True:
        found = {one for one in files if _imported(one) & wanted}
        if (names := {_name_of(one) for one in found}) <= wanted:
            return {one for one in found if one.name.startswith("test_")}
        wanted = wanted | names


def importers_of(place: str) -> set[pathlib.Path]:
    """Returns the files with tests of a module, such as tf_pflego/runs/plan.py."""
    path = pathlib.Path(place)
    path = (path if path.is_absolute() else ROOT / path).relative_to(ROOT)
    if not (ROOT / path).is_file():
        raise ValueError(f"`FILE` must be a module, such as tf_pflego/runs/plan.py; got {place}.")
    wanted, known = {_name_of(path)}, set()
    if path.parent.name == "algorithms":  # The front of the folder imports methods by their names.
        wanted.add("tf_pflego.algorithms")
    # Of a module that no test imports, the modules that import it have the tests, or the folder.
    while wanted != known and not (found := _test_files(wanted)):
        modules = [*(ROOT / "tf_pflego").rglob("*.py")]
        known, wanted = (
            wanted,
            wanted | {_name_of(one) for one in modules if _imported(one) & wanted},
        )
    return found or {*(ROOT / "tests" / path.parent.relative_to("tf_pflego")).glob("test_*.py")}
