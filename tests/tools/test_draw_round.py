"""The picture of README.md is what its program draws."""

import pathlib
import xml.etree.ElementTree as ElementTree

import draw_round
import matplotlib
import pytest

pytestmark = pytest.mark.same_on_both_lines

IMAGES = pathlib.Path(__file__).parents[2] / "docs" / "images"
PINNED = "3.9.4"  # Another matplotlib may put outlines a little otherwise.


@pytest.mark.parametrize("name", ["LIGHT", "DARK"])
@pytest.mark.skipif(matplotlib.__version__ != PINNED, reason=f"drawn by matplotlib {PINNED}")
def test_the_picture_is_up_to_date(tmp_path, name):
    file = {"LIGHT": "round.svg", "DARK": "round-dark.svg"}[name]
    draw_round.write(draw_round.picture(getattr(draw_round, name)), tmp_path / file)
    assert (tmp_path / file).read_bytes() == (IMAGES / file).read_bytes(), (
        "run `python tools/draw_round.py`"
    )


def test_the_pictures_need_nothing_from_elsewhere():
    for path in IMAGES.glob("*.svg"):
        for element in ElementTree.parse(path).iter():
            references = [value for key, value in element.attrib.items() if "href" in key]
            assert all(value.startswith("#") for value in references), path.name
