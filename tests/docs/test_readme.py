"""README.md shows what really happens."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.docs import pages

ROOT = pathlib.Path(__file__).parents[2]


README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)


# A run that a snippet reads.
RUN = """
config = pfl.RunConfig(engine="in_process", num_clients=20, num_rounds=2, output_dir="runs/pflego")
pfl.run(config, local_steps=3)
"""


def without_log_level(**variables):
    """The environment of a user: these tests themselves set how much TensorFlow logs."""
    rest = {name: text for name, text in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    return rest | variables


@pytest.mark.thorough
def test_snippets_print_what_they_say(digits_dir, tmp_path):
    snippets = [text for language, text in BLOCKS if language == "python"]
    assert all(len(snippet.strip().splitlines()) <= 15 for snippet in snippets)
    promised = "".join(re.findall(r"```python\n.*?```\n\n```\n(.*?)```", README, re.DOTALL))
    own_data, first, *others = snippets
    assert "pfl.from_arrays(" in own_data
    result = subprocess.run(
        [sys.executable, "-c", "\n".join([own_data, first, RUN, *others])],
        cwd=tmp_path,
        env=without_log_level(PYTHONPATH=str(ROOT), TFDS_DATA_DIR=digits_dir),
        capture_output=True,
        text=True,
        check=True,
    )
    pages.assert_like(result.stdout, promised)
    # Of what TensorFlow logs, at most that the check of an export has started TFLite.
    said = {line for line in result.stderr.splitlines() if not line.startswith("round ")}
    assert said <= {"INFO: Created TensorFlow Lite XNNPACK delegate for CPU."}
    assert (tmp_path / "models" / "pflego" / "client_3.tflite").stat().st_size > 10_000


def test_every_algorithm_is_named_once():
    from tf_pflego import algorithms

    table = README[README.index("| a client ends with") : README.index("## Measured")]
    named = re.findall(r"`(\w+)`", table)
    assert sorted(named) == sorted(algorithms.REGISTRY)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_file_that_is_named_exists(page):
    """In commands too: CONTRIBUTING.md once named a file of tests that there was not."""
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"\b(?:tools|run_configs|tf_pflego|tests)(?:/\w+)+(?:\.\w+)?", text)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for target in re.findall(r"(?:^|`)make ([\w-]+)", README + contributing, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
