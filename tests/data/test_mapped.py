import numpy as np
import pytest
import tensorflow as tf

from tf_pflego.data import ClientSplit, mapped


@pytest.mark.parametrize("most_bytes", [0, 2**31], ids=["decoded at each visit", "decoded once"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_rows_are_the_splits(dtype, most_bytes, monkeypatch):
    monkeypatch.setattr(mapped, "_MOST_DECODED_BYTES", most_bytes)
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
