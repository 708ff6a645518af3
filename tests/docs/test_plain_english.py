"""Sentences of pages and docstrings begin with their subject, as CONTRIBUTING.md asks."""

import ast
import re

from tests.docs.test_docs import DOCS, FRONT, PAGES
from tests.starts import ROOT

MADE = DOCS / "results"  # Its text lies beside the experiments.
PROSE = [path for path in [*FRONT, *PAGES] if MADE not in path.parents]
PROSE += [path for room in ("tf_pflego", "tools") for path in sorted((ROOT / room).rglob("*.py"))]
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef
NO_PROSE = re.compile(r"```.*?```|`[^`]+`|<!--.*?-->|^#.*?$|\*\*[^*]+\.\*\*", re.S | re.M)
ENDS = re.compile(r"[.:;!?]\**\s+|\n\s*\n|\n\s*(?:[*-]|\d+\.)\s|\|")
BACKWARDS = re.compile(r"(?:By what|With what|What|Who|Whom|Whoever|Of)\b(?!.*\?)", re.DOTALL)
POINTING = re.compile(r"\b(?:that|those)\s+of\b")


def texts_of(path):
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return [NO_PROSE.sub("", source)]
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, DOCUMENTED))
    return [ast.get_docstring(node) or "" for node in nodes]


def sentences_read_twice(text):
    parts = (" ".join(part.strip("*-| \n").split()) for part in ENDS.split(text))
    return [part for part in parts if BACKWARDS.match(part) or POINTING.search(part)]


def test_no_sentence_has_to_be_read_twice():
    assert {
        f"{path.relative_to(ROOT)}: {sentence}"
        for path in PROSE
        for text in texts_of(path)
        for sentence in sentences_read_twice(text)
    } == set()


def test_sentences_that_have_to_be_read_twice_are_found():
    text = "One counts. What counts, is\nfound: * **Of two**, one. Its mean, and that\nof more."
    assert sentences_read_twice(f"Whose? {text}\n\n| cell | Who reads |") == [
        "What counts, is found",
        "Of two**, one",
        "Its mean, and that of more",
        "Who reads",
    ]
