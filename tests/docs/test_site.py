"""The site has all pages, shows them as they should be, and asks no other host for anything."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.docs.test_docs import DOCS, PAGES, ROOT, name_of
from tf_pflego import algorithms


@pytest.fixture(scope="module")
def site(made_once):
    """The built site."""
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    pytest.importorskip("mkdocstrings", reason="needs the extra docs")

    def build(directory):
        result = subprocess.run(
            [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(directory)],
            cwd=ROOT,
            env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        said = result.stdout + result.stderr  # With --quiet, warnings would not count as errors.
        levels = set(re.findall(r"^(\w+) +-", said, re.MULTILINE))
        assert result.returncode == 0 and levels == {"INFO"}, said

    return made_once("site", build)


def test_the_site_has_every_page_without_the_repositorys_notes_and_needs_no_other_host(site):
    built = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    expected = {name_of(path).replace(".md", ".html") for path in PAGES}
    expected |= {f"methods/{name}.html" for name in algorithms.REGISTRY} | {"report.html"}
    expected |= {f"notebooks/{path.stem}.html" for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert expected <= built
    fetched = re.compile(
        r"""<(?:script|img|iframe|source|link)\b[^>]*\b(?:src|href)=["']?https?:"""
    )
    for path in site.rglob("*.html"):
        assert not fetched.search(path.read_text(encoding="utf-8")), path
    for path in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?https?:", path.read_text("utf-8")), path
    # There a line `::: NAME` says nothing; on the site, the entry is in its place.
    for path in (DOCS / "reference").glob("*.md"):
        note = "> The pages below" if path.stem == "index" else "> A line `::: NAME` stands"
        assert note in path.read_text(encoding="utf-8")
        built = (site / "reference" / f"{path.stem}.html").read_text(encoding="utf-8")
        assert "<blockquote>" not in built and "repository alone" not in built


@pytest.fixture
def open_page(site, browser):
    """A function that opens a page as a file; no script fails, and nothing else is asked for."""
    seen = []

    def opened(name):
        page = browser.new_page(viewport={"width": 1600, "height": 800})
        page.set_default_timeout(300_000)  # milliseconds
        page.on("request", lambda request: seen.append(request.url))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.goto((site / f"{name}.html").as_uri(), wait_until="networkidle")
        return page

    yield opened
    assert [one for one in seen if not one.startswith((f"{site.as_uri()}/", "data:"))] == []


def test_a_notebook_is_a_page_and_the_search_has_pages_and_no_copies_of_results(site):
    """The page has what the cells print and draw."""
    page = (site / "notebooks" / "personal_models.html").read_text(encoding="utf-8")
    assert page.count('src="data:image/png;base64,') == 4
    assert "fedper, round 30: 0.986" in page
    assert 'href="../repository/notebooks/personal_models.ipynb"' in page
    assert 'href="../tables.html"' in page
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    found = {entry["location"].partition("#")[0] for entry in json.loads(index)["docs"]}
    assert {"recipes.html", "methods/pgfed.html", "repository/SECURITY.html"} <= found
    copies = {name for name in found if name.startswith("repository/")}
    assert {name for name in copies if name.count("/") > 1} == set()


def test_formulas_are_shown_and_no_line_begins_with_the_mark_behind_one(open_page):
    page = open_page("method_note")
    formulas = "[...document.querySelectorAll('.arithmatex')]"
    page.wait_for_function(f"{formulas}.every(formula => formula.querySelector('.katex'))")
    assert page.evaluate(f"{formulas}.length") > 50
    after = "[...document.querySelectorAll('.arithmatex')].map(e => e.nextSibling?.data ?? '')"
    assert not [text for text in page.evaluate(after) if text[:1] in tuple(".,;:)")]


def test_no_page_of_the_site_is_wider_than_the_screen(open_page):
    """And code of up to 100 columns can be read without moving it, where there is room."""
    names = "index report methods methods/pflego methods/pgfed reference/simulation own_method tff"
    for name in names.split():
        page = open_page(name)
        codes = "[...document.querySelectorAll('.highlight code')]"
        cut = page.evaluate(
            f"{codes}.filter(c => c.scrollWidth > c.clientWidth).map(c => c.textContent)"
        )
        assert all(max(map(len, code.splitlines())) > 100 for code in cut), name
        for width in (1600, 360):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            formulas = "[...document.querySelectorAll('div.arithmatex')]"
            assert page.evaluate(f"{formulas}.every(f => f.scrollWidth <= f.clientWidth)"), name
        broken = "[...document.images].filter(i => i.complete && !i.naturalWidth).length"
        assert page.evaluate(broken) == 0, name


def test_the_search_of_the_site_finds_words_inside_code(open_page):
    """Also from a page in a folder, and where the site is opened as files."""
    page = open_page("methods/pflego")
    for words, name in (("GRU", "models"), ("clients.csv", "data"), ("learning_rate", "rates")):
        page.fill("input[name=query]", "")
        page.click("input[name=query]")
        page.keyboard.type(words)
        found = f'.md-search-result__link[href*="/{name}.html"]'
        page.wait_for_selector(found, state="attached")
