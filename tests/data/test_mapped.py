import tempfile

import numpy as np
import pytest
import tensorflow as tf

from tests import resources
from tf_pflego.data import ClientData, ClientSplit, mapped
from tf_pflego.system import operating_system

pytestmark = pytest.mark.grappler

# x * (1 / 255) and x / 255 differ by one rounding of float32.
_ROUNDING = 1e-6
# More than TensorFlow copies into a graph as a constant.
_MANY = 3_000_000


def mapped_data(examples, labels):
    """The data of one client, whose training and test examples are the same."""
    split = ClientSplit(examples, labels, np.array([0, len(labels)]))
    return mapped.MappedData(ClientData(split, split, [labels.max() + 1]))


@pytest.fixture(params=[True, False], ids=["Linux", "another system"])
def named(request, monkeypatch, tmp_path):
    """A function that returns the temporary files with names; they are gone after the test."""
    monkeypatch.setattr(operating_system, "IS_LINUX", request.param)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with resources.collecting() as collect:
        yield lambda: list(tmp_path.glob("tf_pflego_*"))
        collect()
    assert not list(tmp_path.glob("tf_pflego_*"))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int32])
def test_rows_are_the_splits(dtype, named):
    rng = np.random.default_rng(0)
    examples = rng.integers(0, 256, (10_000, 3)).astype(dtype)
    labels = np.arange(10_000, dtype=np.int32)
    data = mapped_data(examples, labels)
    read = tf.function(lambda start, count: data.open().train.read(start, count))
    for start, count in ((0, 10_000), (1, 4), (4097, 3), (9_999, 1)):
        rows, labels = read(start, count)
        expected = examples[start : start + count]
        assert rows.dtype == (np.int32 if dtype == np.int32 else np.float32)
        np.testing.assert_allclose(
            rows, expected / 255 if dtype == np.uint8 else expected, rtol=_ROUNDING
        )
        np.testing.assert_array_equal(labels, range(start, start + count))
    assert len(named()) == (0 if operating_system.IS_LINUX else 4)
    data.close()


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int32])
def test_an_operation_may_write_where_its_input_was(dtype):
    """TensorFlow writes there if nothing else reads the input.

    If the input were the mapped file, that would end the process.
    """
    data = mapped_data(np.ones((_MANY, 1), dtype), np.ones(_MANY, np.int32))

    @tf.function
    def negated(start, count):
        return tf.nest.map_structure(lambda leaf: -leaf, data.open().train.read(start, count))

    for _ in range(3):  # TensorFlow would make a view of rows from an aligned row on.
        for leaf in negated(tf.constant(16), tf.constant(32)):
            assert (leaf.numpy() < 0).all()
    data.close()


def test_the_rows_that_are_read_are_all_that_is_in_memory():
    """TensorFlow must not take the file for a constant, and copy it before the first call."""
    examples = np.zeros((2**17, 2**10), np.uint8)
    data = mapped_data(examples, np.zeros(len(examples), np.int32))
    read = tf.function(lambda start, count: data.open().train.read(start, count))
    before = resources.reset_peak_memory()
    read(tf.constant(70_000), tf.constant(16))
    assert resources.peak_memory() - before < examples.nbytes / 4
    data.close()
