"""The pages and tables of the methods: their docstrings, facts, settings, and what was measured.

A docstring begins with one line, TITLE: LEAD. Its paragraphs become text and its steps of a round a
list; what is indented, such as the table of symbols, is shown as it stands. A method may have facts
that its code does not show, such as its formula, paper and uses, in `docs/methods/NAME.md`.
"""

import ast
import dataclasses
import html
import pathlib
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from tf_pflego.algorithms import REGISTRY
from tf_pflego.core import settings

# Names of the program; an index of a formula has one letter, or theta has it.
_CODE = re.compile(r"(`[^`]+`|\b(?!theta_)[a-z]{2,}(?:_[a-z]{2,})+\b)")
# The beginnings of paragraphs that have a heading.
_HEADED = {"A round": "A round", "Served: ": "Served", "Differences": "Differences from the paper"}


def markdown(name: str, root: pathlib.Path) -> str:
    """Returns the page of a method in Markdown, from the repository in `root`."""
    source = f"tf_pflego/algorithms/{name}.py"
    docstring = ast.get_docstring(ast.parse((root / source).read_text(encoding="utf-8")))
    first, *blocks = re.split(r"\n\s*\n", docstring.strip())
    title, colon, lead = first.partition(": ")
    if not colon or "\n" in first:
        raise ValueError(
            f"the docstring of {source} must begin with one line, TITLE: LEAD; got {first!r}. "
            "Begin it so."
        )
    fields = dataclasses.fields(REGISTRY[name][0])
    lines = [f"# {title}", "", _sentence(_escaped(lead)), "", *_facts(name, root)]
    lines += [f"* **Source**: [{source}](../../{source})", "", "```sh"]
    lines += [f"tf-pflego --algorithm={name} --output_dir=runs/{name}", "```", "", "```python"]
    lines += [f'method = pfl.build_algorithm("{name}", model)', "```", "", "## Method", ""]
    for block in blocks:
        for beginning, heading in _HEADED.items():
            if block.startswith(beginning):
                lines += [f"## {heading}", ""]
                block = _sentence(block.removeprefix(f"{heading}: "))
        start, _, steps = block.partition("\n")
        if steps.startswith("  1. "):
            start = start.removeprefix("A round:")  # The heading has it.
            lines += [_escaped(start), "", _escaped(textwrap.dedent(steps)), ""]
        elif block.startswith(" "):
            lines += ["```text", textwrap.dedent(block), "```", ""]
        else:
            lines += [_escaped(block), ""]
    lines += ["## Hyper-parameters", ""]
    lines += [
        f"Each one is a flag of the program, such as `--{fields[0].name}={fields[0].default}`, and "
        f'an argument of `pfl.build_algorithm("{name}", model, NAME=value)`.',
        "",
        *settings_table(REGISTRY[name][0]),
        "",
    ]
    lines += ["## Measured", "", measured(name, root)]
    others = "|".join(other for other in REGISTRY if other != name)
    return re.sub(rf"(?<!\[)`({others})`", r"[`\1`](\1.md)", "\n".join(lines))


def _sentence(text):
    return text[:1].upper() + text[1:]


def _escaped(text):
    """Returns text as Markdown that shows it, with names of the program as code."""
    pieces = _CODE.split(text)
    for place, piece in enumerate(pieces):
        if place % 2:
            pieces[place] = f"`{piece.strip('`')}`"
        else:
            pieces[place] = re.sub(r"([\\*_\[\]|$])", r"\\\1", html.escape(piece, quote=False))
    return "".join(pieces)


def takes(field: dataclasses.Field) -> str:
    """Returns in words which values a hyper-parameter takes."""
    kinds = {bool: "true or false", int: "whole number", float: "number", str: "text"}
    kind = "a path" if field.metadata["is_path"] else kinds[settings.kind_of(field)]
    shown = settings.range_of(field)
    if field.metadata["choices"] is not None:
        return shown
    return f"{kind}, {shown}" if shown else kind


def settings_table(config: Any) -> Iterator[str]:
    """Yields the lines of a table of the fields of a configuration."""
    yield "| name | default | takes | meaning |"
    yield "|---|---|---|---|"
    for field in dataclasses.fields(config):
        default = str(field.default).lower() if isinstance(field.default, bool) else field.default
        shown = f"`{default}`" if default != "" else ""
        yield f"| `{field.name}` | {shown} | {takes(field)} | {_escaped(field.metadata['help'])} |"


def _facts(name, root):
    """Returns the lines of a method's facts below their title; none if it has no file of them."""
    path = root / "docs" / "methods" / f"{name}.md"
    return path.read_text(encoding="utf-8").splitlines()[2:] if path.exists() else []


def facts_of(name: str, root: pathlib.Path) -> dict[str, str]:
    """Returns {heading: text} of the facts of a method, with its formula as `step`."""
    text = "\n".join(_facts(name, root))
    step = re.match(r"\$(\$.+\$)\$\n", text)
    listed = re.findall(r"^\* \*\*(.+?)\*\*: (.+)$", text, re.MULTILINE)
    return {"step": step[1]} | {key.lower(): fact for key, fact in listed} if step else {}


# The headings of the tables of all methods, which docs/methods.md and docs/method_facts.md show.
_TABLES = (
    ("a participant's work in a round", "learns", "down / up, in models"),
    ("paper", "step"),
    ("passes in a round", "a client", "good for", "unsuitable if"),
)
_ENDS, _NOT_STATED = "a client ends with", "not stated"


def tables(root: pathlib.Path) -> list[str]:
    """Returns the tables of all methods: by the model that clients get, and a row of facts each."""
    facts, ends = {}, {}
    for name in REGISTRY:
        stated = facts_of(name, root)
        facts[name] = {key: fact.replace("](../", "](") for key, fact in stated.items()}
        ends.setdefault(facts[name].get(_ENDS, _NOT_STATED), []).append(f"`{name}`")
    made = [_table((_ENDS, "methods"), ((end, ", ".join(names)) for end, names in ends.items()))]
    for headings in _TABLES:
        rows = (
            (_link(name, root), *(one.get(heading, _NOT_STATED) for heading in headings))
            for name, one in facts.items()
        )
        made.append(_table(("method", *headings), rows))
    return made


def _link(name, root):
    return f"[`{name}`](methods/{name}.md)" if _facts(name, root) else f"`{name}`"


def _table(headings, rows):
    lines = [_row_of(headings), "|---" * len(headings) + "|", *map(_row_of, rows)]
    return "".join(f"{line}\n" for line in lines)


# Tables in which a method's row may be: the file, what the row says, and where it is explained.
_MEASURED = (
    (
        "results/field_high/tables.md",
        "50 clients of Fashion-MNIST with two classes and 120 images each, 60 rounds: "
        "test accuracy of all clients as served, and the difference from local training.",
        "results/small_federations.md#two-classes-per-client-120-images-each",
    ),
    (
        "results/field_watch/tables.md",
        "Ten wearers of a watch, 40 rounds: the same.",
        "results/small_federations.md#a-watch",
    ),
    (
        "results/table1/tables.md",
        "Test accuracy of a round's participants on Fashion-MNIST, in percent, beside the PFLEGO "
        "paper's: clients hold two classes (High), five (Medium) or all ten (No).",
        "results.md#the-pflego-papers-table-1",
    ),
    (
        "results/pgfed_table1/tables.md",
        "25 clients of Fashion-MNIST by Dirichlet(0.3), 120 rounds: test accuracy of all clients "
        "as served, in percent, and bytes over FedAvg's.",
        "results/pgfed.md",
    ),
    (
        "results/round_times.md",
        "Seconds per round on TFF, and their ratio to PFLEGO's.",
        "results/pflego.md#seconds-per-round",
    ),
)


_LEFT_OUT = ("best round, %", "participants, %", "runs to choose")


def measured(name: str, root: pathlib.Path) -> str:
    """Returns in Markdown what `results` and the flag file of a method say of it."""
    lines = []
    for path, what, link in _MEASURED:
        # The first table of the file; the others tell the same runs in another way.
        for headings, row in list(_rows_of(root / path, name))[:1]:
            pairs = zip(headings[1:], row[1:], strict=True)
            shown, cells = zip(*(pair for pair in pairs if pair[0] not in _LEFT_OUT), strict=True)
            lines += [f"{what} [How it was measured](../{link}).", "", _table(shown, [cells])]
    if not lines:
        lines += ["No sweep has a run of it yet.", ""]
    for path in sorted((root / "run_configs" / "fashion_mnist").glob(f"{name}_*.flags")):
        if path.stem.rpartition("_")[0] != name:
            continue
        file = f"run_configs/fashion_mnist/{path.name}"
        lines += [f"A whole run on Fashion-MNIST: [{file}](../../{file}).", ""]
    return "\n".join(lines)


def _rows_of(path, name):
    """Yields (headings, row), lists of cells, for each row of a table that is about a method."""
    headings, previous = [], ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if re.fullmatch(r"\|[-|: ]+\|", line):
            headings = _cells(previous)
        elif line.startswith("|") and re.match(rf"\|\s*\[?(`{name}`|{name}\s*\|)", line):
            yield headings, _cells(line)
        previous = line


def _cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _row_of(cells):
    return f"| {' | '.join(cells)} |"
