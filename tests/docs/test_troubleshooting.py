"""Each message of docs/troubleshooting.md is in the source of the package."""

import ast
import re

from tests.starts import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


def text_of(node):
    """Returns a text of the source, with ... for each value in it."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in parts)


def test_messages_are_in_the_source():
    messages = re.findall(r"^\| `` (.+?) `` \|", PAGE, re.MULTILINE)
    files = (path.read_text(encoding="utf-8") for path in (ROOT / "tf_pflego").rglob("*.py"))
    nodes = [node for file in files for node in ast.walk(ast.parse(file))]
    source = "\n".join(
        text_of(node) for node in nodes if isinstance(node, ast.Constant | ast.JoinedStr)
    )
    for message in messages:
        assert re.search(".*".join(map(re.escape, message.split("..."))), source), message
    assert len(messages) > 30
