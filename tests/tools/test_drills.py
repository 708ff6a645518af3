"""The tools and drills that pages name are there, and harm and ends are told apart."""

import pathlib
import re

import drills

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile", ".ci/run")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
PLACES = r"tools|examples|run_configs|tests|(?<!/)tf_pflego"


def test_the_files_and_drills_that_pages_name_exist():
    text = "\n".join(page.read_text("utf-8") for page in PAGES)
    named = {*re.findall(rf"\b(?:{PLACES})/\w[\w/.]*\w", text)}
    assert "tools/benchmark.py" in named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    named = re.findall(r"tools/drills\.py (\w+)", text)
    assert set(named) == set(drills.DRILLS) == set(re.findall(r"drills\.py (\w+)", drills.__doc__))
