"""Files between a program and its worker, tested here between two graphs, and what they hold."""

import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import tensorflow as tf

from tf_pflego.system.temporary import make_directory, remove_directory
from tf_pflego.tff.engine.files import Inbox, Outbox, remove_files
from tf_pflego.tff.engine.packing import Packing

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


MAKE = "import sys; from tf_pflego.system.temporary import make_directory; print(make_directory())"
IN_A_CONTAINER = ["unshare", "--pid", "--fork", "--mount-proc"]


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, "-c", f"{MAKE}; sys.stdout.flush(); sys.stdin.read()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as owner:
        left = pathlib.Path(owner.stdout.readline().strip())
        (left / "0.data-00000-of-00001").write_bytes(b"1")
        first = make_directory()
        assert left.stat().st_mode & 0o777 == 0o700
        owner.kill()
    second = make_directory()
    assert not left.exists()
    assert sorted(tmp_path.iterdir()) == sorted(map(pathlib.Path, (first, second)))
    remove_files(first)  # It stays locked.
    third = make_directory()
    assert pathlib.Path(first).is_dir()
    for directory in (first, second, third):
        remove_directory(directory)
    assert not list(tmp_path.iterdir())


def test_a_container_that_shares_the_directory_leaves_what_is_in_use(tmp_path, monkeypatch):
    """Its `/proc` does not have this process."""
    if subprocess.run([*IN_A_CONTAINER, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this user cannot make a namespace of processes")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    directory = make_directory()
    command = [*IN_A_CONTAINER, sys.executable, "-c", MAKE]
    made = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    assert pathlib.Path(directory).is_dir()
    remove_directory(directory)
    remove_directory(make_directory())
    assert not pathlib.Path(made).exists()


def test_a_nest_survives_both_ways():
    """NumPy packs and a graph unpacks, and the other way round; every bit comes back."""
    rng = np.random.default_rng(0)
    nest = {
        "weights": [rng.normal(size=(3, 2, 5)).astype(np.float32), rng.normal(size=(3,))],
        "count": (rng.integers(-9, 9, (3, 4)), rng.integers(0, 255, (3, 2), dtype=np.uint8)),
        "flag": rng.random((3, 3)) < 0.5,
        "nothing": np.zeros((3, 0), np.int32),
    }
    packing = Packing(tf.nest.map_structure(lambda leaf: leaf[0], nest))
    packed = packing.pack_all(nest, 3)
    assert packed.shape == (3, packing.num_bytes)
    again = tf.function(lambda row: packing.pack(packing.unpack(row)))
    back = packing.unpack_all(np.stack([again(row) for row in packed]))
    tf.nest.assert_same_structure(nest, back)
    for a, b in zip(tf.nest.flatten(nest), tf.nest.flatten(back), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype


def test_nothing_is_packed_as_nothing():
    packing = Packing(((), ()))
    assert packing.pack_all(((), ()), 2).shape == (2, 0)
    assert packing.pack(((), ())).shape == (0,)
    assert packing.unpack_all(np.zeros((2, 0), np.uint8)) == ((), ())
