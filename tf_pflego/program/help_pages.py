"""The pages of `--help`: text as wide as the terminal, made from the settings.

TensorFlow is not needed for them.
"""

import dataclasses
import inspect
import sys
import types
from collections.abc import Iterable

from tf_pflego.algorithms import REGISTRY, method_of
from tf_pflego.core import settings
from tf_pflego.program import terminal
from tf_pflego.program.verbs import VERBS
from tf_pflego.runs import config

QUIET = "nothing is shown but what is wrong and the result, which is one line of a run or an export"
_LEAST_COLUMNS, _MOST_COLUMNS = 40, 100
_VALUES = {bool: "", int: "=N", float: "=NUMBER", str: "=TEXT"}


class Page:
    """A page of help under construction, for a terminal of some columns; None for 80."""

    def __init__(self, columns: int | None, usage: str):
        self._columns = min(max(columns or 80, _LEAST_COLUMNS), _MOST_COLUMNS)
        self._lines: list[str] = []
        self.text(f"usage: tf-pflego {usage}", 0, 7)

    def paragraph(self, text: str, indent: int = 0, further: int = 0) -> None:
        """Adds an empty line, and a text as `text` does."""
        self.gap()
        self.text(text, indent, further)

    def text(self, text: str, indent: int = 0, further: int = 0) -> None:
        """Adds a text, with its second and later lines indented further."""
        line = " " * indent + " ".join(text.split())
        self._lines += terminal.wrapped(line, self._columns, further).split("\n")

    def gap(self) -> None:
        """Adds an empty line."""
        self._lines.append("")

    def pairs(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Adds names, each with a line about it."""
        pairs = list(pairs)
        width = max((len(name) for name, _ in pairs), default=0) + 2
        for name, about in pairs:
            self.text(f"{name:<{width}}".replace(" ", "\0") + about, 2, width)
        self._lines[:] = [line.replace("\0", " ") for line in self._lines]

    def flags(self, fields: Iterable[dataclasses.Field]) -> None:
        """Adds flags: for each its name, meaning, values and default."""
        for field in fields:
            form = _form(field)
            self.text(form, 2, 4)
            about = "; ".join(filter(None, [settings.range_of(field), _default(field)]))
            self.text(field.metadata["help"] + (f" ({about})" if about else ""), 6)

    def __str__(self) -> str:
        return "\n".join(self._lines)


def of_training(algorithm: str | None, columns: int | None) -> str:
    """Returns the help of train, with the hyper-parameters of a method first if one is named."""
    page = Page(columns, "[train] [--flagfile=FILE] [--NAME=VALUE ...]")
    if algorithm is None:
        _introduce(page)
    else:
        _describe(page, algorithm)
    for part in config.PARTS:
        title, _, example = (inspect.getdoc(part) or "").rstrip(".").partition(", as in ")
        page.paragraph(f"{title[0].lower()}{title[1:]}:")
        page.text(f"example: {example}", 2, 9)
        fields = dataclasses.fields(part)
        if fields[0].name == "algorithm" and algorithm is None:
            page.text("--algorithm=NAME", 2)
            page.text(f"the method to train with (default {fields[0].default}):", 6)
            page.pairs((f"    {name}", summary_of(name)) for name in REGISTRY)
            page.text("A method of your own is FILE.py:FUNCTION, as docs/own_method.md shows.", 6)
            page.text(
                "Each has hyper-parameters, which are flags too: tf-pflego --algorithm=ditto "
                "--help shows those of Ditto, with their ranges and defaults.",
                6,
            )
        page.flags(field for field in fields if field.name != "algorithm")
    page.paragraph(
        "--flagfile=FILE reads flags from a file, one per line; those after it on the command line "
        "count. run_configs/ has one for most methods.",
        0,
        2,
    )
    page.text(f"--quiet: {QUIET}.", 0, 2)
    return str(page)


def of_nothing(columns: int | None) -> str:
    """Returns the output without arguments: an overview, and the way to further help."""
    page = Page(columns, "[VERB] [--NAME=VALUE ...]")
    _introduce(page)
    page.paragraph("tf-pflego --help lists the methods and the flags of a run.")
    return str(page)


def _introduce(page):
    """Adds a description of the program, with an example, and its verbs."""
    page.paragraph(
        "Trains a method of personalised federated learning over simulated clients, and shows "
        "how accurate each client's model becomes."
    )
    page.text("python -m tf_pflego.main ... does the same.")
    page.paragraph(
        "example: tf-pflego --dataset=digits --num_rounds=50 --output_dir=runs/first", 0, 9
    )
    page.paragraph("verbs (tf-pflego VERB --help shows the flags of one):")
    page.pairs(VERBS.items())


def of_verb(module: types.ModuleType, columns: int | None) -> str:
    """Returns the help of a verb from its module; the flags that its usage names come first."""
    verb = module.__name__.rpartition(".")[2]
    page = Page(columns, f"{verb} {module.USAGE}")
    page.paragraph(inspect.getdoc(module) or "")
    page.paragraph(f"example: tf-pflego {verb} {module.EXAMPLE}", 0, 9)
    if hasattr(module, "PLACES"):
        page.gap()
        page.pairs(module.PLACES.items())
    fields = dataclasses.fields(module.Options)
    if fields:
        page.paragraph("flags:")
        page.flags(sorted(fields, key=lambda field: f"--{field.name}=" not in module.USAGE))
    page.paragraph(f"--quiet: {QUIET}.", 0, 2)
    others = ", ".join(other for other in VERBS if other != verb)
    page.text(f"other verbs: {others}; tf-pflego --help lists them", 0, 2)
    return str(page)


def summary_of(algorithm: str) -> str:
    """Returns the line that describes a method."""
    return _paragraphs(algorithm)[0].partition(": ")[2].rstrip(".")


def _describe(page, algorithm):
    """Adds the description of a method, its hyper-parameters and its file."""
    method = method_of(algorithm)
    page.paragraph(f"--algorithm={algorithm}")
    if method.is_own:
        page.paragraph((inspect.getdoc(method.build) or "").partition("\n\n")[0], 2)
    else:
        title, about, *_ = _paragraphs(algorithm)
        module = method.build.__module__
        page.paragraph(title, 2)
        page.text(about, 2)
        page.paragraph(
            f"python -m pydoc {module} shows what happens in a round, as does "
            f"{module.replace('.', '/')}.py in the sources.",
            2,
            2,
        )
    page.paragraph(f"hyper-parameters of {method.name}:")
    page.flags(dataclasses.fields(method.settings))


def _paragraphs(algorithm):
    doc = inspect.getdoc(sys.modules[REGISTRY[algorithm][1].__module__]) or ""
    return [" ".join(paragraph.split()) for paragraph in doc.split("\n\n")]


def _form(field):
    if isinstance(field.default, bool):
        return f"--{field.name}, --no{field.name}"
    if field.metadata["is_path"]:
        return f"--{field.name}=PATH"
    value = "=NAME" if field.metadata["choices"] else _VALUES[settings.kind_of(field)]
    return f"--{field.name}{value}"


def _default(field):
    if isinstance(field.default, bool):
        return f"default {str(field.default).lower()}"
    return "" if field.default == "" else f"default {field.default}"
