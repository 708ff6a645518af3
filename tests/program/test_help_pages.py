"""Help: every flag is on a page, no line is too long, and TensorFlow is not needed for it."""

import dataclasses
import inspect
import re
import sys

import pytest

import tf_pflego
from tests.methods import each_of
from tests.starts import in_this_process, started_program
from tf_pflego.algorithms import REGISTRY
from tf_pflego.core import settings
from tf_pflego.program import help_pages
from tf_pflego.program.verbs import VERBS
from tf_pflego.runs import config


def flags_on(page):
    return re.findall(r"^  --(\w+)", page, re.MULTILINE)


OF_RUN = [field.name for field in dataclasses.fields(config.RunConfig)]


@pytest.mark.parametrize("algorithm", each_of(REGISTRY))
def test_the_flags_of_a_method_come_first_with_their_ranges(algorithm, capsys):
    result = in_this_process([f"--algorithm={algorithm}", "--help"], capsys)
    assert (result.returncode, result.stderr) == (0, "")
    own = dataclasses.fields(REGISTRY[algorithm][0])
    of_run = [name for name in OF_RUN if name != "algorithm"]
    assert flags_on(result.stdout) == [*(field.name for field in own), *of_run]
    words = " ".join(result.stdout.split())
    for field in own:
        about = settings.range_of(field), f"default {str(field.default).lower()}"
        expected = f"{field.metadata['help']} ({'; '.join(filter(None, about))})"
        assert expected.lower() in words.lower()
    # What it is: the first two paragraphs of its module.
    doc = inspect.getdoc(sys.modules[REGISTRY[algorithm][1].__module__])
    for paragraph in doc.split("\n\n")[:2]:
        assert " ".join(paragraph.split()) in words


def test_without_a_method_each_part_of_a_run_has_an_example_and_each_method_a_line(capsys):
    page = in_this_process(["--help"], capsys).stdout
    for part in config.PARTS:
        title, _, example = inspect.getdoc(part).partition(", as in ")
        assert f"\n{title[0].lower()}{title[1:]}:\n  example: {example.rstrip('.')}\n" in page
    for name in REGISTRY:
        assert re.search(rf"^      {name} +\S", page, re.MULTILINE), name
        assert len(help_pages.summary_of(name)) < 100
    assert flags_on(page) == OF_RUN
    for verb in VERBS:
        assert re.search(rf"^  {verb} +\S", page, re.MULTILINE), verb


def test_where_nothing_is_asked_for_nothing_is_begun(capsys):
    result = in_this_process([], capsys)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("usage: tf-pflego [VERB]")
    assert re.findall(r"^  (\w+) +\S", result.stdout, re.MULTILINE) == list(VERBS)
    assert "tf-pflego --help" in result.stdout.splitlines()[-1]
    assert flags_on(result.stdout) == []


def test_a_method_in_a_flag_file_counts_and_the_version_is_shown(capsys):
    page = in_this_process(["--flagfile=run_configs/quickstart.flags", "--help"], capsys).stdout
    assert "hyper-parameters of pflego:" in page
    assert in_this_process(["--version"], capsys).stdout == f"tf_pflego {tf_pflego.__version__}\n"


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "train"])
def test_each_verb_has_help_with_an_example(verb, capsys):
    result = in_this_process([verb, "--help"], capsys)
    page = result.stdout
    assert result.returncode == 0
    assert page.startswith(f"usage: tf-pflego {verb}")
    assert f"example: tf-pflego {verb} " in page
    assert all(re.search(rf"\b{other}\b", page) for other in VERBS)


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_help_is_as_wide_as_the_terminal(columns):
    for algorithm in (None, "pgfed"):
        lines = help_pages.of_training(algorithm, columns).splitlines()
        assert columns - 20 < max(map(len, lines)) <= columns or columns == 200
        assert max(map(len, lines)) <= 100


LINES = """
import sys
from tf_pflego.main import entry_point
from tf_pflego.system import deferred
for line in {lines}:
    sys.argv = ["tf-pflego", *line]
    try:
        entry_point()
    except SystemExit as error:
        print(f"code {{error.code}}", file=sys.stderr)
    assert not deferred.is_started(), line
    assert type(sys.modules["tensorflow_datasets"]) is deferred._Deferred, line
"""


def test_what_needs_no_tensorflow_does_not_wait_for_it(tmp_path):
    """Help, and what is refused before there are data: with any of them, nothing is begun."""
    (tmp_path / "config.json").write_text("{}")
    shown = [["--help"], ["--algorithm=pgfed", "--help"], ["list", "--help"]]
    shown += [["export", "--help"], ["personalize", "--help"]]
    refused = [["--num_rounds=0"], ["--num_clients=20", "--clients_per_round=30"]]
    refused += [["export", "--run="], [f"--output_dir={tmp_path}"]]
    result = started_program(code=LINES.format(lines=shown + refused))
    assert result.returncode == 0, result.stderr
    said = 5 * ["code 0"] + 4 * ["tf_pflego: --", "code 2"]  # And no "starting TensorFlow".
    assert [line[: 13 if "--" in line else None] for line in result.stderr.splitlines()] == said
