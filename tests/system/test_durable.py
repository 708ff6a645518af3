"""Files that are written whole, or not at all."""

import os

import pytest

from tf_pflego.system import durable


def test_a_block_that_fails_leaves_what_was_there_and_nothing_else(tmp_path):
    path = tmp_path / "report.html"
    path.write_bytes(b"an old page")
    with pytest.raises(KeyboardInterrupt), durable.batch() as files:
        with files.open(path) as stream:
            stream.write(b"a new page")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"an old page"
    assert os.listdir(tmp_path) == ["report.html"]
