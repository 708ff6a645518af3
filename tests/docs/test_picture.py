"""The picture of README.md is to scale, and needs nothing from elsewhere."""

import json
import pathlib
import xml.etree.ElementTree as ElementTree

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PICTURE = ElementTree.parse(ROOT / "docs" / "images" / "round.svg")
PASS = 45  # The width of a pass through the network.


def test_the_heads_steps_are_as_wide_as_they_were_measured():
    report = json.loads((ROOT / "results" / "benchmark.json").read_text(encoding="utf-8"))
    of_99_steps = report["fashion_mnist/pflego/in_process/tau100_over_tau1"] - 1
    widths = {bar.get("id"): bar.get("width") for bar in PICTURE.iter() if bar.get("id")}
    for tau in (5, 50):
        expected = (tau - 1) * PASS * 2 * of_99_steps / 99
        assert float(widths[f"head-tau-{tau}"]) == pytest.approx(expected, abs=0.01)


def test_the_picture_needs_nothing_from_elsewhere():
    for element in PICTURE.iter():
        references = [value for key, value in element.attrib.items() if "href" in key]
        assert all(value.startswith("#") for value in references)
    assert "http" not in "".join(PICTURE.getroot().itertext())
