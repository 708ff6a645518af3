"""Files between a program and its worker, tested here between two graphs."""

import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import tensorflow as tf

from tf_pflego.core.temporary import make_directory
from tf_pflego.engines.files import Inbox, Outbox
from tf_pflego.engines.packing import Packing

ROW = {"a": np.zeros([3], np.float32), "b": np.zeros([2], np.int64)}


def rows_of(count, rng):
    return {
        "a": rng.normal(size=(count, 3)).astype(np.float32),
        "b": rng.integers(9, size=(count, 2)),
    }


def test_rows_are_read_as_they_were_last_written():
    """This holds even for a file so small that TensorFlow would copy its rows into the graph."""
    packing, rng = Packing(ROW), np.random.default_rng(0)
    with tempfile.TemporaryFile() as file:
        inbox = Inbox(file, packing, max_clients=4)
        read = tf.function(lambda slot: packing.unpack(inbox.read(slot)), autograph=False)
        for count in (4, 2):
            written = rows_of(count, rng)
            inbox.write(written, count)
            for slot in range(count):
                found = read(tf.constant(slot))
                for key, value in written.items():
                    np.testing.assert_array_equal(found[key], value[slot])


def test_files_are_read_once_and_removed(tmp_path):
    packing, rng = Packing(ROW), np.random.default_rng(0)
    outbox, rows = Outbox(str(tmp_path), packing), rows_of(3, rng)
    write = tf.function(lambda slot, row: outbox.write(slot, packing.pack(row)), autograph=False)
    for slot in range(3):
        row = tf.nest.map_structure(lambda leaf, k=slot: tf.constant(leaf[k]), rows)
        assert int(write(tf.constant(slot), row)) == slot
    found = packing.unpack_all(outbox.read(3))
    for key, value in rows.items():
        np.testing.assert_array_equal(found[key], value)
    assert not list(tmp_path.glob("*data*"))
    with pytest.raises(FileNotFoundError):
        outbox.read(3)


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    owner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    left = tmp_path / f"tf_pflego_directory_{owner.pid}_x"
    left.mkdir()
    (left / "0.data-00000-of-00001").write_bytes(b"1")
    first = make_directory()
    assert left.exists()
    owner.kill()
    owner.wait()
    second = make_directory()
    assert not left.exists()
    assert pathlib.Path(first).is_dir()
    assert pathlib.Path(second).is_dir()
