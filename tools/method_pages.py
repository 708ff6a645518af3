"""The pages of the methods, made from the docstrings of their modules and their hyper-parameters.

A module's docstring is plain text in a fixed form, which `parse` reads:

  TITLE: LEAD.

  Paragraphs: the paper, and what is learnt.

  A round:
    1. Numbered steps, which go on in lines that are indented further.

  Paragraphs: one that says who keeps what ("The server keeps ...") among them.

    paper    here                    shape
    symbol   name in the program     shape, or what else is to be said

  Differences from the paper: ...

For a method that extends PFLEGO and has no paper, the first column is `symbol`, and the last
paragraph has the differences from PFLEGO. Only the title, one paragraph and the differences must be
there. `markdown` writes a page of it, in which plain formulas such as `W_i <- W_i - rho (I/r) g_W`
get Greek letters, indices and signs.
"""

import ast
import dataclasses
import html
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tf_pflego.core import settings

_STEP = re.compile(r"  (\d+)\. ")
_HEADER = re.compile(r"  (paper|symbol)\s+here(\s+shape)?$")
_KEEPS = re.compile(r"(The server|Client i|A client|Beside theta_i)\b.*\bkeeps?\b", re.DOTALL)
_DIFFERENCES = re.compile(r"(Differences from (?:the paper|PFLEGO)): ")

_GREEK = {
    "theta": "θ",
    "alpha": "α",
    "beta": "β",
    "rho": "ρ",
    "tau": "τ",
    "phi": "φ",
    "mu": "μ",
    "lambda": "λ",
    "eta": "η",
    "eta1": "η<sub>1</sub>",
    "eta2": "η<sub>2</sub>",
    "grad": "∇",
}
# Words that are part of a formula if they have an index.
_INDEXED = {"sum": "Σ", "mean": "mean", "weight": "weight"}
# A symbol, with a mark such as that of g~ or w', and indices such as those of g_theta_i.
_SYMBOL = re.compile(
    rf"(?<![\w.'-])(?P<base>{'|'.join([*_GREEK, *_INDEXED])}|[A-Za-z]1?)"
    r"(?P<mark>[~'](?![a-z])|-(?=[ ,]|$))?"
    r"(?P<indices>(?:_(?:theta|[A-Za-z0-9]{1,2})(?![A-Za-z0-9]))*)"
    r"(?![\w']|\.\w)"
)
_MARKS = {"~": "\u0303", "-": "\u0304", "'": "′"}
_SIGNS = (
    (r" <- ", " ← "),
    (r" -> ", " ↦ "),
    (r" ~ ", " ≈ "),
    (r"\|\|", "‖"),
    (r"\^2", "²"),
    (r" - ", " − "),
    (r"<([^<>]+?), ([^<>]+?)>", r"⟨\1, \2⟩"),
    (r"\b([01]) \.\. ", r"\1, …, "),
    (r" \.\. ", ", …, "),
)
_CODE = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b")


class Method(NamedTuple):
    """What a module's docstring says of its method."""

    title: str
    lead: str
    about: list[str]  # paragraphs
    round_heading: str  # "A round", or with what is said of it there
    steps: list[str]
    more: list[str]  # paragraphs after the steps
    keeps: list[str]
    symbols: list[tuple[str, str, str]]  # (paper, here, shape), or (symbol, here, shape)
    symbols_from: str  # "paper" or "symbol"
    differences: str
    differences_heading: str


def docstring_of(path: pathlib.Path) -> str:
    """Returns a module's docstring, without importing the module."""
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def parse(text: str) -> Method:
    """Reads the docstring of a method's module.

    Raises:
      ValueError: It has not the form that this module's docstring describes.
    """
    first, *blocks = re.split(r"\n\s*\n", text.strip("\n"))
    title, colon, lead = first.partition(": ")
    if not colon or "\n" in first:
        raise ValueError(
            f"a method's docstring must begin with one line, TITLE: LEAD; got {first!r}. "
            "Begin it so."
        )
    about, heading, steps, more, keeps, symbols, symbols_from = [], "", [], [], [], [], ""
    differences, differences_heading = "", ""
    for block in blocks:
        lines = block.splitlines()
        if _HEADER.match(lines[0]):
            symbols, symbols_from = _rows(lines), lines[0].split()[0]
        elif len(lines) > 1 and _STEP.match(lines[1]) and lines[0].endswith(":"):
            heading, steps = lines[0][:-1], _steps(lines[1:], title)
        elif any(line.startswith(" ") for line in lines):
            raise ValueError(
                f"a paragraph of {title} must not be indented unless it has steps below a line "
                f"that ends in a colon, or is the table of symbols; got {lines[0]!r}. Mend it."
            )
        elif found := _DIFFERENCES.match(block):
            differences_heading, differences = found[1], _joined(lines)[found.end() :]
        elif _KEEPS.match(block):
            keeps.append(_joined(lines))
        else:
            (more if steps else about).append(_joined(lines))
    if not about or not differences:
        raise ValueError(
            f"the docstring of {title} must say what the method is, and its differences after "
            "'Differences from the paper: ' or 'Differences from PFLEGO: '. Add what is missing."
        )
    return Method(
        title,
        lead,
        about,
        heading,
        steps,
        more,
        keeps,
        symbols,
        symbols_from,
        differences,
        differences_heading,
    )


def _joined(lines):
    return " ".join(line.strip() for line in lines)


def _steps(lines, title):
    steps = []
    for line in lines:
        if _STEP.match(line):
            if int(_STEP.match(line)[1]) != len(steps) + 1:
                raise ValueError(f"the steps of {title} must be numbered from 1; got {line!r}.")
            steps.append(_STEP.sub("", line, count=1))
        elif line.startswith("     "):
            steps[-1] += f" {line.strip()}"
        else:
            raise ValueError(f"a step of {title} must go on indented by five; got {line!r}.")
    return steps


def _rows(lines):
    """Returns the rows of a table whose columns begin where its header has them."""
    header, rows = lines[0], []
    second = header.index("here")
    third = header.find("shape")
    for line in lines[1:]:
        symbol, rest, shape = line[2:second].strip(), line[second:], ""
        if third > 0 and line[third - 2 : third].isspace():
            rest, shape = line[second:third], line[third:]
        rest, shape = rest.strip(), shape.strip()
        if symbol or rest:
            rows.append((symbol, rest, shape))
        else:  # What the third column says goes on.
            rows[-1] = (*rows[-1][:2], f"{rows[-1][2]} {shape}")
    return rows


def formula(text: str) -> str:
    """Returns text with its plain formulas as HTML: Greek letters, indices and signs.

    What is between backticks stays as it is. All characters that Markdown reads are escaped.
    """
    parts = text.split("`")
    parts[::2] = [_typeset(part) for part in parts[::2]]
    return "`".join(parts)


def _typeset(text):
    for pattern, sign in _SIGNS:
        text = re.sub(pattern, sign, text)
    pieces, end = [], 0
    for found in _SYMBOL.finditer(text):
        if not _is_symbol(found):
            continue
        pieces += [_escaped(text[end : found.start()]), _symbol(found)]
        end = found.end()
    return "".join([*pieces, _escaped(text[end:])]).replace("∇ ", "∇")


def _is_symbol(found):
    """Returns whether it is a symbol; `a` and `A` may be English words, and `e-` begin one."""
    before, after = found.string[: found.start()], found.string[found.end() :]
    if found["indices"] or found["mark"]:
        return True
    if found["base"] in _INDEXED or re.match(r"-[a-z]", after) or before.endswith("appendix "):
        return False
    if found["base"] == "a":
        return not before + after or bool(
            re.match(r" (?:[(/]|grad|sum_|H\))|\)", after) or before.endswith("I ")
        )
    if found["base"] == "A":
        return not before + after or bool(re.search(r"[a-z,] $", before))
    return True


def _symbol(found):
    base = found["base"]
    indices = [_GREEK.get(index, index) for index in found["indices"].split("_")[1:]]
    if len(base) == 2 and base not in _GREEK:  # g1_j
        base, indices = base[0], [base[1], *indices]
    shown = f"<i>{base}</i>" if len(base) == 1 else (_GREEK | _INDEXED)[base]
    shown += _MARKS.get(found["mark"], "")
    return shown + (f"<sub>{', '.join(indices)}</sub>" if indices else "")


def _escaped(text):
    pieces = []
    for piece in re.split(rf"({_CODE.pattern})", text):
        if _CODE.fullmatch(piece):
            pieces.append(f"`{piece}`")
        else:
            pieces.append(re.sub(r"([\\*_\[\]|~^])", r"\\\1", html.escape(piece, quote=False)))
    return "".join(pieces)


def takes(field: dataclasses.Field) -> str:
    """Returns in words which values a hyper-parameter takes."""
    about = field.metadata
    if about["choices"] is not None:
        return ", ".join(f"`{choice}`" for choice in about["taken"])
    kind = settings.kind_of(field)
    if kind is bool:
        return "`true`, `false`"
    if kind is str:
        return "a path" if about["is_path"] else "text"
    bounds = [
        f"{word} {about[key]}"
        for key, word in (
            ("at_least", "at least"),
            ("above", "above"),
            ("at_most", "at most"),
            ("below", "below"),
        )
        if about[key] is not None
    ]
    words = "".join(f", or `{word}`" for word in about["taken"])
    number = "whole number" if kind is int else "number"
    return f"{number} {' and '.join(bounds)}".strip() + words


def markdown(
    name: str,
    method: Method,
    config: Any,
    overview: dict[str, str],
    measured: str,
    source: str,
    methods: Sequence[str] = (),
) -> str:
    """Returns the page of a method.

    Args:
      name: The name under which it is registered.
      method: What its docstring says.
      config: The class of its hyper-parameters.
      overview: Its row in the table of all methods: {heading: text}.
      measured: What has been measured of it, in Markdown; empty for nothing.
      source: The path from the page to its source.
      methods: The names of all methods, whose pages are beside this one.
    """
    lines = [f"# {method.title}", "", f"{_sentence(formula(method.lead))}", ""]
    for paragraph in method.about:
        lines += [formula(paragraph), ""]
    lines += [f"* **Name**: `{name}`"]
    lines += [f"* **{_sentence(head)}**: {formula(text)}" for head, text in overview.items()]
    lines += [f"* **Source**: [tf_pflego/algorithms/{name}.py]({source})", ""]
    if method.steps:
        lines += ["## A round", ""]
        said = method.round_heading.removeprefix("A round").removeprefix(", in which ")
        if said:
            lines += [f"Here {formula(said)}.", ""]
        for number, step in enumerate(method.steps, 1):
            lines += [f"{number}. {formula(step)}"]
        lines += [""]
    for paragraph in method.more:
        lines += [formula(paragraph), ""]
    if method.keeps:
        lines += ["## Who keeps what", ""]
        for paragraph in method.keeps:
            lines += [formula(paragraph), ""]
    if method.symbols:
        lines += ["## Symbols", "", f"| {method.symbols_from} | here | shape |", "|---|---|---|"]
        for symbol, here, shape in method.symbols:
            lines.append(f"| {formula(symbol)} | {_names(here)} | {formula(shape)} |")
        lines.append("")
    lines += [f"## {method.differences_heading}", "", _sentence(formula(method.differences)), ""]
    lines += ["## Hyper-parameters", "", *_hyper_parameters(name, config), ""]
    if measured:
        lines += ["## Measured", "", measured]
    others = "|".join(other for other in methods if other != name)
    return re.sub(rf"(?<!\[)`({others})`", r"[`\1`](\1.md)", "\n".join(lines))


def _sentence(text):
    return text[:1].upper() + text[1:]


def _names(here):
    """Returns what stands for a symbol here: names in the program as code, all else as text."""
    if re.fullmatch(r"[\w.]+(, [\w.]+)*", here):
        return ", ".join(f"`{name}`" for name in here.split(", "))
    name, comma, rest = here.partition(",")
    if comma and re.fullmatch(r"[\w.]+", name):
        return f"`{name}`,{formula(rest)}"
    return re.sub(r"\b(\w+\.\w+|FirstOrder)\b", r"`\1`", formula(here))


def _hyper_parameters(name, config):
    fields = dataclasses.fields(config)
    yield (
        f"Each one is a flag of the program, such as `--{fields[0].name}={fields[0].default}`, and "
        f'an argument of `pfl.build_algorithm("{name}", model, NAME=value)`.'
    )
    yield ""
    yield from settings_table(config)


def settings_table(config: Any) -> Iterator[str]:
    """Yields the lines of a table of the fields of a configuration."""
    yield "| name | default | takes | meaning |"
    yield "|---|---|---|---|"
    for field in dataclasses.fields(config):
        default = str(field.default).lower() if isinstance(field.default, bool) else field.default
        shown = f"`{default}`" if default != "" else ""
        yield f"| `{field.name}` | {shown} | {takes(field)} | {formula(field.metadata['help'])} |"


def overview_of(path: pathlib.Path, name: str) -> dict[str, str]:
    """Returns the row of a method in the table of all methods: {heading: text} but for its name.

    Args:
      path: The page with the table, in whose first column are links to the methods' sources.
      name: The method.

    Raises:
      ValueError: There is not one row of this method.
    """
    found = []
    for headings, row in _rows_of(path, name):
        if row[0].startswith("["):
            found.append(dict(zip(headings[1:], row[1:], strict=True)))
    if len(found) != 1:
        raise ValueError(
            f"{path.name} must have one row of a table for {name}; got {len(found)}. Correct it."
        )
    return found[0]


# Tables in which a method's row may be: the file, what the row says, and where it is explained.
_MEASURED = (
    (
        "results/table1.md",
        "Test accuracy of a round's participants on Fashion-MNIST, in percent, beside the PFLEGO "
        "paper's: clients hold two classes (High), five (Medium) or all ten (No).",
        "results.md#the-pflego-papers-table-1",
    ),
    (
        "results/pgfed_table1.md",
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


def measured(name: str, root: pathlib.Path) -> str:
    """Returns in Markdown what `results` and the flag file of a method say of it."""
    lines = []
    for path, what, link in _MEASURED:
        # The first table of the file; the others tell the same runs in another way.
        for headings, row in list(_rows_of(root / path, name))[:1]:
            lines += [f"{what} [How it was measured](../{link}).", ""]
            lines += [_row_of(headings[1:]), "|---" * len(headings[1:]) + "|", _row_of(row[1:]), ""]
    for path in sorted((root / "run_configs" / "fashion_mnist").glob(f"{name}_*.flags")):
        if path.stem.rpartition("_")[0] != name:
            continue
        text = path.read_text(encoding="utf-8")
        results = re.findall(r"^#   (\d.*)$", text, re.MULTILINE)
        file = f"run_configs/fashion_mnist/{path.name}"
        said = ", which gave" if results else ", which has not been measured yet"
        lines += [f"A whole run on Fashion-MNIST is in [{file}](../../{file}){said}:", ""]
        lines += [f"* {result}" for result in results]
        lines += ["", "```sh", f"tf-pflego --flagfile={file} --output_dir=runs/{name}", "```", ""]
    return "\n".join(lines)


def _rows_of(path, name):
    """Yields (headings, row), lists of cells, for each row of a table that is about a method."""
    headings, previous = [], ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if re.fullmatch(r"\|[-|: ]+\|", line):
            headings = _cells(previous)
        elif line.startswith("|") and re.match(rf"\|\s*\[?`{name}`", line):
            yield headings, _cells(line)
        previous = line


def _cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _row_of(cells):
    return f"| {' | '.join(cells)} |"
