"""Pages and docstrings are in plain English, as CONTRIBUTING.md asks.

No sentence begins with What, Who or Of, and none has `that of`. Of words and signs that make a text
hard to read, a page or a package has a few in a thousand words.
"""

import ast
import re

from tests.docs.test_docs import DOCS, FRONT, PAGES
from tests.starts import ROOT

MADE = DOCS / "results"  # Its text lies beside the experiments.
FACTS = DOCS / "methods"  # They are cells of tables.
WRITTEN = [path for path in [*FRONT, *PAGES] if path.parent != FACTS]
PROSE = [path for path in WRITTEN if path.parent != MADE]
PROSE += [
    path for package in ("tf_pflego", "tools") for path in sorted((ROOT / package).rglob("*.py"))
]
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef
NO_PROSE = re.compile(r"```.*?```|`[^`]+`|<!--.*?-->|^#.*?$|\*\*[^*]+\.\*\*", re.S | re.M)
ENDS = re.compile(r"[.:;!?]\**\s+|\n\s*\n|\n\s*(?:[*-]|\d+\.)\s|\|")
BACKWARDS = re.compile(r"(?:By what|With what|What|Who|Whom|Whoever|Of)\b(?!.*\?)", re.DOTALL)
POINTING = re.compile(r"\b(?:that|those)\s+of\b")
# Pronouns behind prepositions, words for people or things without a noun, old or private words, and
# signs that join sentences.
HARD = re.compile(
    r"\b(?:(?:at|by|for|from|in|of|to|under|with)\s+which|whose|whom|who|whoever|what|whatever|nobody"
    r"|nothing|so|alone|alike|anew|beside|likewise|holds?|held|stands?|stood|says?|said|tells?|told"
    r"|dealt|drawn|takes?\s+part|took\s+part|leaves?\s+out|left\s+out|goes?\s+on|ends?\s+with"
    r"|(?:and|but|or)\s+(?:no|none|not))\b|;",
    re.IGNORECASE,
)
TABLE = re.compile(r"^\|.*$|\]\([^)]*\)|\$[^$]+\$", re.MULTILINE)
A_PAGE = 200  # The least number of words to divide by.
LIMITS = {"README.md": 4}


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


def hard_in_a_thousand(text):
    words = len(text.split())
    return 1000 * len(HARD.findall(text)) / max(words, A_PAGE)


def limit(name):
    return LIMITS.get(name, 10 if name.endswith(".md") else 15)


def test_pages_and_rooms_have_few_hard_words():
    found = {}
    for path in WRITTEN:
        name = str(path.relative_to(ROOT))
        found[name] = hard_in_a_thousand(TABLE.sub("", *texts_of(path)))
    for package in (ROOT / "tf_pflego").iterdir():
        texts = [text for path in sorted(package.rglob("*.py")) for text in texts_of(path)]
        found[package.name] = hard_in_a_thousand("\n".join(texts))
    assert {name: rate for name, rate in found.items() if rate > limit(name)} == {}
