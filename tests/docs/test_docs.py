"""The pages of the documentation show what really happens, and lead to what there is."""

import dataclasses
import functools
import importlib
import json
import pathlib
import re
import tempfile

import method_pages
import pytest
from absl import flags

import tf_pflego
from tests.conftest import build_method
from tests.docs import pages
from tests.methods import each_of
from tests.runs.test_own_methods import write_method
from tf_pflego import algorithms, models
from tf_pflego.core.participation import Participation
from tf_pflego.program import command_line, verbs
from tf_pflego.program import flags as program_flags
from tf_pflego.simulation.simulation import Simulation

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FRONT = sorted(ROOT.glob("*.md"))  # README.md and the others that stand beside the package
WITH_CODE = [path for path in PAGES if "```python" in path.read_text(encoding="utf-8")]
WITH_CODE.remove(DOCS / "reference" / "index.md")  # Of test_docstrings.py.
PROGRAM = re.compile(r"^(?:tf-pflego|python -m tf_pflego\.main) (.*)$", re.MULTILINE)


def name_of(path):
    return str(path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT))


def texts():
    return {path: path.read_text(encoding="utf-8") for path in [*PAGES, *FRONT]}


# What the code of a page leaves behind.
WRITTEN = {
    "serving.md": ("models", "phone/client_3.tflite", "bundle", "client_3.learnt"),
    "own_method.md": ("client_3.keras", "runs/mean_regularized.html"),
    "start.md": ("client_3.keras", "runs/own.html"),
}


# own_method.md runs on TensorFlow Federated if it is there, tff.md needs it, and serving.md has a
# block that newer versions of TensorFlow cannot run.
LINES = {"own_method.md": ("tff", "current"), "serving.md": ("tff", "current"), "tff.md": ("tff",)}


def on_its_lines(path):
    lines = pytest.mark.lines(*LINES.get(path.name, ("current",)))
    return pytest.param(path, marks=lines, id=name_of(path))


@pytest.mark.thorough
@pytest.mark.parametrize("path", map(on_its_lines, WITH_CODE))
def test_the_code_of_a_page_runs(path, digits_dir, tmp_path):
    pages.check(path, tmp_path, TFDS_DATA_DIR=digits_dir)
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert set(WRITTEN.get(name_of(path), ())) <= found


def test_no_code_is_left_out():
    """A block is run, or is shell or text, or says that another test runs it."""
    for path, text in texts().items():
        lines = text.splitlines()
        for block in pages.blocks(text):
            elsewhere = "<!-- a test runs it" in lines[block.line - 3]
            known = block.language in {"python", "sh", "text", "bibtex", "math"} or elsewhere
            assert known, f"{name_of(path)}, line {block.line}: {block.language}"


def test_commands_of_pages_have_flags_that_exist():
    found = 0
    for path, text in texts().items():
        for block in pages.blocks(text):
            for command in PROGRAM.findall(block.text if block.language != "python" else ""):
                refuse_bad_command(command, f"{name_of(path)}: {command}")
                found += 1
    assert found >= 5
    with pytest.raises(AssertionError):
        refuse_bad_command("--num_rouns=3", "")


@functools.cache
def own_method():
    """Returns a directory, which goes with the tests, and the file of own_method.md in it."""
    directory = tempfile.TemporaryDirectory()
    return directory, write_method(pathlib.Path(directory.name)).partition(":")[0]


def refuse_bad_command(command, where):
    """Asserts that the program would take a command line: its verb, flags and their values."""
    # Another test makes this file, and runs the page.
    words = [word for word in command.split() if word != "--flagfile=hospitals.flags"]
    verb = words.pop(0) if not words[0].startswith("-") else "train"
    assert verb in verbs.VERBS, where
    most = getattr(importlib.import_module(f"tf_pflego.program.{verb}"), "MOST_PLACES", 0)
    words = [word.replace("--flagfile=run_", f"--flagfile={ROOT}/run_") for word in words]
    words = [word.replace("=mean_regularized.py:", f"={own_method()[1]}:") for word in words]
    try:
        command_line.parse(flags_of(verb, words), words, most)
    except command_line.CommandLineError as error:
        raise AssertionError(f"{where}: {error}") from error


def flags_of(verb, arguments=()):
    flag_values = flags.FlagValues()
    module = importlib.import_module(f"tf_pflego.program.{verb}")
    program_flags.define_flags_of(module, arguments, flag_values)
    return flag_values


def test_flags_that_pages_name_exist():
    """Those that code in a sentence begins with; installing.md has flags of pip."""
    known = {"help", "version", "flagfile", "name"}  # --name=VALUE stands for any.
    for verb in verbs.VERBS:
        known |= set(flags_of(verb))
    for tool in (ROOT / "tools").glob("*.py"):
        known |= set(re.findall(r'"--([\w-]+)"', tool.read_text(encoding="utf-8")))
    found = 0
    for path, text in texts().items():
        if path.name == "installing.md":
            continue
        for flag in re.findall(r"`--([a-z][\w-]*)", text):
            assert flag in known or flag.removeprefix("no") in known, f"{name_of(path)}: --{flag}"
            found += 1
    assert found > 20


def test_numbers_are_those_of_the_result_files():
    """Rows `| ... | `key` | value | ...` below a comment that names the file.

    The heading of a value's column may have a key with `*` in the place of the row's.
    """
    compared = 0
    for path, text in texts().items():
        for file, table in re.findall(
            r"<!-- \w+: a test holds this table against (\S+) -->\n((?:\|.*\n)+)", text
        ):
            report = json.loads((ROOT / file).read_text(encoding="utf-8"))
            heading = table.partition("\n")[0]
            patterns = re.findall(r"`([\w/]*\*[\w/]*)`", heading) or ["*"]
            rows = re.findall(r"\| `([\w/]+)` \| ([\d. |]+) \|$", table, re.MULTILINE)
            for row, values in rows:
                for pattern, shown in zip(patterns, values.split(" | "), strict=True):
                    key, digits = pattern.replace("*", row), len(shown.partition(".")[2])
                    whole, _, part = key.rpartition("/")  # Maybe of a part of what another has.
                    found = round(report[key] if key in report else report[whole][part], digits)
                    assert float(shown) == found, f"{name_of(path)}: {key} is {found}"
                    compared += 1
    assert compared > 100


def prose_of(path):
    """Returns the text of a page without its fenced blocks."""
    text = path.read_text(encoding="utf-8")
    for block in pages.blocks(text):
        text = text.replace(block.text, "")
    return text


@functools.cache
def anchors_of(path):
    """Returns the anchors of the headings of a page, as forges and the site name them."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", prose_of(path), re.MULTILINE):
        plain = re.sub(r"[^\w\s-]", "", heading).strip().lower()
        found.add(re.sub(r"\s", "-", plain))
    return found


def links_of(path):
    """Yields the files and the anchors that a page links to, within the repository."""
    for link in re.findall(r"\]\(([^)\s]+)\)", prose_of(path)):
        if not re.match(r"[a-z]+:", link):
            file, _, anchor = link.partition("#")
            yield (path.parent / file).resolve() if file else path, anchor


@pytest.mark.parametrize("path", [*PAGES, *FRONT], ids=name_of)
def test_links_of_a_page_lead_somewhere(path):
    for target, anchor in links_of(path):
        assert target.is_file(), target
        assert not anchor or anchor in anchors_of(target), f"{target}#{anchor}"


def test_links_lead_from_the_first_page_to_every_other():
    found, waiting = set(), {DOCS / "index.md"}
    while waiting:
        found |= waiting
        linked = {target for path in waiting for target, _ in links_of(path)}
        waiting = (linked & {*PAGES}) - found
    assert sorted(map(name_of, {*PAGES} - found)) == []


def test_each_public_name_has_its_entry():
    entries = []
    for path in (DOCS / "reference").glob("*.md"):
        text = path.read_text(encoding="utf-8")
        entries += re.findall(r"^## (\w+)\n\n::: tf_pflego\.\1$", text, re.MULTILINE)
    assert sorted(entries) == sorted(set(tf_pflego.__all__) - {"__version__"})
    index = (DOCS / "reference" / "index.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(\w+)`", index)) >= set(entries)


@pytest.mark.parametrize("name", algorithms.REGISTRY)
def test_the_page_of_a_method_is_its_module_with_what_it_serves_and_differs_in(name):
    page = method_pages.markdown(name, ROOT)
    docstring = importlib.import_module(f"tf_pflego.algorithms.{name}").__doc__
    assert len(re.findall(r"\n\nServed: \S", docstring)) == 1
    differing = r"\n\nDifferences from the paper(?:, which is [^:]+)?: \S"
    assert len(re.findall(differing, docstring)) == 1
    assert not words_of(docstring) - words_of(page.replace("\\", ""))
    parts, facts = (), ()
    if method_pages.facts_of(name, ROOT):
        paper = r"\*\*Paper\*\*: (none|\[.*\b(19|20)\d\d\b.*\]\(https://)"
        parts = r"\n\$\$\S.*\$\$\n", r"\*\*A client ends with\*\*: \S", paper
        facts = "A client", "Passes in a round", "Down / up, in models", "Good for", "Unsuitable if"
    headings = "Served", "Differences from the paper", "Hyper-parameters", "Measured"
    parts += *(rf"\*\*{fact}\*\*: \S" for fact in facts), *(f"\n## {one}\n" for one in headings)
    parts += rf"\ntf-pflego --algorithm={name} ", rf"\(\"{name}\", model\)"
    parts += (r"\n\| 3 \| |No sweep has a run of it yet\.",)
    assert [part for part in parts if not re.search(part, page)] == []
    for field in dataclasses.fields(algorithms.REGISTRY[name][0]):
        assert f"| `{field.name}` |" in page


WITH_FACTS = [name for name in algorithms.REGISTRY if method_pages.facts_of(name, ROOT)]


def words_of(text):
    return {word.lower() for word in re.findall(r"\w+", text)}


@pytest.mark.parametrize("name", each_of(WITH_FACTS, ("pflego",)))
def test_a_method_moves_as_many_models_as_its_row_says(name, tiny_clients):
    """The model is large beside the scalars that some methods move too.

    FedDBE sends a number for each feature, which are many of this model's.
    """
    model = models.SplitModel(models.mlp((4,), seed=0, units=400), num_outputs=3)
    method = build_method(name, model)
    simulation = Simulation(method, tiny_clients, Participation(3, 2), "in_process", seed=1)
    for _ in range(2):  # The second round is the first with others' gradients or models.
        record = simulation.run_round()
    body = sum(w.size for w in model.initial_theta)
    sizes = [body, body + 3 * 401]  # without and with the head
    if name == "feddbe":
        sizes += [size + 400 for size in sizes]
    row = method_pages.facts_of(name, ROOT)["down / up, in models"]
    for key, said in zip(("bytes_down", "bytes_up"), row.split(" / "), strict=True):
        moved = record[key] / (4 * record["participants"])
        if said == "< 1":
            assert 0 < moved < body
        elif said == "> 1":  # A part between body and head moves too.
            assert moved > sizes[1]
        elif said.startswith("up to"):
            assert 0 < moved <= int(said.split()[-1]) * sizes[1]
        else:
            count, _, more = said.partition(" + ")
            moved -= {"": 0, "M²": 400**2, "2 heads": 2 * 3 * 401}[more]
            assert min(abs(moved - int(count) * size) for size in sizes) < 0.01 * body, key
