"""Each public name has a short example, which runs, and names the page that explains it."""

import doctest
import importlib.util
import inspect
import re

import pytest

import tf_pflego
from tests.docs import pages
from tests.docs.test_docs import DOCS, anchors_of

EXPLAINED = re.compile(r"\nExample, explained in docs/(\S+\.md)#?(\S*):\n((?:  .*\n?)+)\Z")
LINES_OF_CODE, LINES = 4, 5


def names():
    without_tff = importlib.util.find_spec("tensorflow_federated") is None
    return set(tf_pflego.__all__) - {"__version__", "from_tff" if without_tff else ""}


@pytest.mark.thorough
@pytest.mark.lines("tff", "current")
def test_the_examples_of_public_names_run_with_the_objects_of_their_page(tmp_path, monkeypatch):
    [block] = pages.blocks((DOCS / "reference" / "index.md").read_text(encoding="utf-8"))
    objects, failures = {}, []
    monkeypatch.chdir(tmp_path)
    exec(block.text, objects)
    for name in sorted(names()):
        found = EXPLAINED.search(inspect.getdoc(getattr(tf_pflego, name)))
        assert found, f"{name} ends with no example"
        page, anchor, example = found.groups()
        assert anchor in {"", *anchors_of(DOCS / page)}, f"{name}: {page}#{anchor}"
        assert len(example.splitlines()) <= LINES, name
        assert len(re.findall(r"^  (?:>>>|\.\.\.)", example, re.MULTILINE)) <= LINES_OF_CODE, name
        test = doctest.DocTestParser().get_doctest(example, objects, name, name, 0)
        doctest.DocTestRunner().run(test, out=failures.append)
    assert not failures, "".join(failures)
