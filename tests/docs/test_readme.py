"""README.md shows what really happens, and its picture is to scale."""

import json
import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from tests.docs import pages

ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)


@pytest.mark.thorough
def test_snippets_print_what_they_say(digits_dir, tmp_path):
    snippets = [text for language, text in BLOCKS if language == "python"]
    assert all(len(snippet.strip().splitlines()) <= 15 for snippet in snippets)
    promised = "".join(re.findall(r"```python\n.*?```\n\n```text\n(.*?)```", README, re.DOTALL))
    (own_data,) = snippets
    assert "pfl.from_arrays(" in own_data
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TFDS_DATA_DIR": digits_dir}
    del environment["TF_CPP_MIN_LOG_LEVEL"]  # The tests set how much TensorFlow logs, users do not.
    told = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    result = subprocess.run([sys.executable, "-c", own_data], check=True, **told)
    pages.assert_like(result.stdout, promised)
    # Of what TensorFlow logs, at most that the check of an export has started TFLite.
    said = {line for line in result.stderr.splitlines() if not line.startswith("round ")}
    assert said <= {"INFO: Created TensorFlow Lite XNNPACK delegate for CPU."}
    assert (tmp_path / "models" / "pflego" / "client_3.tflite").stat().st_size > 10_000


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for target in re.findall(r"(?:^|`)make ([\w-]+)", README + contributing, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_figure_of_boundaries_has_the_accuracies_of_its_example():
    figure = ElementTree.parse(ROOT / "docs" / "images" / "boundaries.svg")
    said = "".join(figure.getroot().itertext())
    accuracies = re.findall(r"^(?:fedavg|pflego): ([\d.]+)$", README, re.MULTILINE)
    assert re.findall(r"(\d+)% of its", said) == [f"{100 * float(one):.0f}" for one in accuracies]
    assert accuracies and "boundaries.svg" in README


PICTURE = ElementTree.parse(ROOT / "docs" / "images" / "round.svg")
PASS = 45  # The width of a pass through the network.


def test_the_heads_steps_are_as_wide_as_they_were_measured_and_nothing_is_from_elsewhere():
    report = json.loads((ROOT / "results" / "benchmark.json").read_text(encoding="utf-8"))
    of_99_steps = report["fashion_mnist/pflego/in_process/tau100_over_tau1"] - 1
    widths = {bar.get("id"): bar.get("width") for bar in PICTURE.iter() if bar.get("id")}
    for tau in (5, 50):
        expected = (tau - 1) * PASS * 2 * of_99_steps / 99
        assert float(widths[f"head-tau-{tau}"]) == pytest.approx(expected, abs=0.01)
    references = [value for bar in PICTURE.iter() for key, value in bar.items() if "href" in key]
    assert all(value.startswith("#") for value in references)
    assert "http" not in "".join(PICTURE.getroot().itertext())
