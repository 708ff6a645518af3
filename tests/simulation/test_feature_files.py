"""Features are in files, which a later run or another process reads as they were written."""

import signal
import stat
import time
from concurrent import futures

import numpy as np
import pytest

from tests import programs
from tests.comparison import assert_identical
from tf_pflego.simulation import feature_files
from tf_pflego.system import durable, rows

ROWS = np.arange(24, dtype=np.float32).reshape(4, 3, 2)


def blocks_of(array, parts=2):
    return durable.Blocks(array.shape, array.dtype, iter(np.array_split(array, parts)))


def kept(directory, array=ROWS, digest="of_these", **how):
    with feature_files.kept_in(directory, **how):
        return feature_files.stored(digest, blocks_of(array))


def damaged(path, content):
    """Yields contents that the file might have in place of its own."""
    kept(path.parent, ROWS + 1, "of_others", is_shared=True)
    yield (path.parent / f"of_others{path.suffix}").read_bytes()
    yield content[:-1]
    yield content[: len(content) // 2]
    yield b""
    yield content + b"\0"
    for place in (0, len(content) // 2, len(content) - 1):
        yield content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    yield np.ones_like(ROWS).tobytes() + content[-4:]


def test_a_file_that_is_damaged_or_of_others_is_made_again(tmp_path, caplog):
    """None but its owner reads it."""
    kept(tmp_path)
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    content = path.read_bytes()
    for number, other in enumerate(damaged(path, content), 1):
        path.write_bytes(other)
        assert_identical([kept(tmp_path, is_shared=True)], [ROWS])
        assert path.read_bytes() == content
        assert caplog.text.count(f"{path} is not as it was written") == number


def test_what_a_run_did_not_use_is_removed_unless_others_share_it(tmp_path, monkeypatch):
    """A run within a sweep has the sweep's directory; without room there is none."""
    for digest, is_shared, names in [("a", True, "a"), ("b", True, "ab"), ("a", False, "a")]:
        kept(tmp_path, digest=digest, is_shared=is_shared)
        assert {path.stem for path in tmp_path.iterdir()} == set(names)
    with pytest.raises(KeyError), feature_files.kept_in(tmp_path):
        raise KeyError
    assert [path.stem for path in tmp_path.iterdir()] == ["a"]
    with feature_files.kept_in(tmp_path / "sweep", is_shared=True):
        kept(tmp_path / "run")
    assert {path.name for path in (tmp_path / "sweep").iterdir()}
    monkeypatch.setattr(rows, "_SHARE_OF_DISK", 0.0)
    assert kept(tmp_path / "features") is None
    assert not {"run", "features"} & {path.name for path in tmp_path.iterdir()}


KILLED = """
import os, pathlib, signal, sys
import numpy as np
from tf_pflego.simulation import feature_files
from tf_pflego.system import durable

def blocks():
    yield np.zeros([2, 3, 2], np.float32)
    os.kill(os.getpid(), signal.SIGKILL)

with feature_files.kept_in(pathlib.Path(sys.argv[1])):
    rows = durable.Blocks((4, 3, 2), np.dtype(np.float32), blocks())
    feature_files.stored(sys.argv[2], rows)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("digest", ["0a" * 32, "0b" * 32])
def test_a_process_that_is_killed_on_the_way_leaves_nothing_that_is_read(digest, tmp_path):
    assert programs.run(KILLED, tmp_path, digest).returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.glob(".*.partial")] == [f".{digest}.float32.partial"]
    assert_identical([kept(tmp_path, digest="0a" * 32)], [ROWS])
    assert [path.stem for path in tmp_path.iterdir()] == ["0a" * 32]


def test_one_computes_while_others_wait(tmp_path):
    made = []

    def slowly(number):
        made.append(number)
        time.sleep(0.3)
        yield ROWS

    def taken(number):
        with feature_files.kept_in(tmp_path, is_shared=True):
            features = durable.Blocks(ROWS.shape, ROWS.dtype, slowly(number))
            return feature_files.stored("of_these", features)

    with futures.ThreadPoolExecutor(2) as threads:
        assert_identical(threads.map(taken, range(2)), [ROWS, ROWS])
    assert len(made) == 1
