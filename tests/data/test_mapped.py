import numpy as np
import pytest
import tensorflow as tf

from tf_pflego.data import ClientSplit, mapped


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_rows_are_the_splits(dtype):
    rng = np.random.default_rng(0)
    examples = rng.integers(0, 256, (10_000, 3)).astype(dtype)
    split = mapped.MappedSplit(ClientSplit(examples, np.arange(10_000, dtype=np.int32), np.array([0, 10_000])))
    read = tf.function(lambda start, count: split.open().read(start, count))
    for start, count in ((0, 10_000), (1, 4), (4097, 3), (9_999, 1)):
        rows, labels = read(start, count)
        expected = examples[start : start + count].astype(np.float32)
        np.testing.assert_allclose(rows, expected / 255 if dtype == np.uint8 else expected, rtol=1e-6)
        np.testing.assert_array_equal(labels, range(start, start + count))
    split.close()


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_an_operation_may_write_where_its_input_was(dtype):
    """TensorFlow does so where nothing else reads the input; into a mapped file that would end the process."""
    split = mapped.MappedSplit(ClientSplit(np.ones((64, 16), dtype), np.ones(64, np.int32), np.array([0, 64])))

    @tf.function
    def run():
        rows = split.open()
        return tf.nest.map_structure(tf.zeros_like, rows.read(tf.constant(16), tf.constant(32))), rows.read(16, 32)

    for _ in range(20):
        zeros, _ = run()
        assert not any(np.asarray(leaf).any() for leaf in zeros)
    (_, labels) = tf.function(lambda: split.open().read(16, 32))()
    assert labels.numpy().all()
    split.close()
