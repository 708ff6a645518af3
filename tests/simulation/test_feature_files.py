"""Features are in files, which a later run or another process reads as they were written."""

import shutil
import signal
import stat
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import tf_pflego as pfl
from tests.comparison import assert_identical
from tests.serving.test_client_models import clients_of
from tests.simulation.test_frozen_features import body, computed, images, other_images
from tf_pflego.simulation import feature_files
from tf_pflego.system import durable, rows

ROWS = np.arange(24, dtype=np.float32).reshape(4, 3, 2)


def blocks_of(array, parts=2):
    return durable.Blocks(array.shape, array.dtype, iter(np.array_split(array, parts)))


def kept(directory, array=ROWS, digest="of_these", **how):
    with feature_files.kept_in(directory, **how):
        return feature_files.stored(digest, blocks_of(array))


def in_files(directory, data, model=None):
    """Returns the features of training examples, as a run with this directory gets them."""
    with feature_files.kept_in(directory):
        _, features = pfl.with_frozen_features(model or pfl.SplitModel(body(), 3), data)
    return features.train.examples


def test_they_are_computed_anew_for_other_examples_or_weights_alone(tmp_path, monkeypatch):
    blocks, clients, others = computed(monkeypatch), clients_of(images), clients_of(other_images)
    _, expected = pfl.with_frozen_features(pfl.SplitModel(body(), 3), clients)
    blocks.clear()
    first = in_files(tmp_path / "a", clients)
    assert_identical([first, in_files(tmp_path / "a", clients)], [expected.train.examples] * 2)
    assert len(blocks) == 1
    assert len(set(tmp_path.rglob("*"))) == 2  # The directory and a file in it.
    in_files(tmp_path / "b", others)
    changed = body()
    kernel = changed.weights[0]
    kernel.assign(kernel + 0.1)
    shutil.copytree(tmp_path / "a", tmp_path / "c")
    other = in_files(tmp_path / "c", clients, pfl.SplitModel(changed, 3))
    assert len(blocks) == 3
    assert np.abs(other - first).max() > 1e-3
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0


def test_no_one_but_their_owner_reads_them(tmp_path):
    kept(tmp_path / "features")
    (path,) = (tmp_path / "features").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


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
    kept(tmp_path)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    for number, other in enumerate(damaged(path, content), 1):
        path.write_bytes(other)
        assert_identical([kept(tmp_path, is_shared=True)], [ROWS])
        assert path.read_bytes() == content
        assert caplog.text.count(f"{path} is not as it was written") == number


def test_what_a_run_did_not_use_is_removed_unless_others_share_it(tmp_path):
    for digest, is_shared, names in [("a", True, "a"), ("b", True, "ab"), ("a", False, "a")]:
        kept(tmp_path, digest=digest, is_shared=is_shared)
        assert {path.stem for path in tmp_path.iterdir()} == set(names)
    with pytest.raises(KeyError), feature_files.kept_in(tmp_path):
        raise KeyError
    assert [path.stem for path in tmp_path.iterdir()] == ["a"]


def test_a_run_within_a_sweep_has_the_directory_of_the_sweep(tmp_path):
    with feature_files.kept_in(tmp_path / "sweep", is_shared=True):
        kept(tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["sweep"]


def test_without_room_there_is_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "_SHARE_OF_DISK", 0.0)
    assert kept(tmp_path / "features") is None
    assert not (tmp_path / "features").exists()


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


@pytest.mark.parametrize("digest", ["of_these", "of_others"])
def test_a_process_that_is_killed_on_the_way_leaves_nothing_that_is_read(digest, tmp_path):
    code = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), digest]).returncode
    assert code == -signal.SIGKILL
    assert [path.name for path in tmp_path.glob(".*.partial")] == [f".{digest}.float32.partial"]
    assert_identical([kept(tmp_path)], [ROWS])
    assert [path.name for path in tmp_path.iterdir()] == ["of_these.float32"]


def test_one_computes_while_others_wait(tmp_path):
    made, found = [], []

    def slowly(number):
        made.append(number)
        time.sleep(0.3)
        yield ROWS

    def take(number):
        with feature_files.kept_in(tmp_path, is_shared=True):
            features = durable.Blocks(ROWS.shape, ROWS.dtype, slowly(number))
            found.append(feature_files.stored("of_these", features))

    threads = [threading.Thread(target=take, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert_identical(found, [ROWS, ROWS])
