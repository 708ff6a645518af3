"""Arrays in files are as those in memory, and a dataset may be larger than the memory."""

import tempfile

import numpy as np
import pytest
import tensorflow_datasets as tfds

from tests import resources
from tf_pflego import data
from tf_pflego.data import mapped
from tf_pflego.data.datasets import prepared
from tf_pflego.system import file_arrays


@pytest.fixture
def array():
    return np.random.default_rng(0).integers(0, 256, (5000, 30, 30)).astype(np.uint8)


def in_file(array):
    writer = file_arrays.Writer()
    for block in np.array_split(array, 7):
        writer.append(block)
    return writer.array()


def test_what_is_taken_and_joined_is_what_memory_would_have(array, monkeypatch):
    monkeypatch.setattr(file_arrays, "_BLOCK_BYTES", 10_000)
    rows = np.random.default_rng(1).permutation(5000)[:3000]
    stored = in_file(array)
    for found, expected in (
        (stored, array),
        (file_arrays.take(stored, rows), array[rows]),
        (file_arrays.take(np.asarray(stored), rows), array[rows]),
        (file_arrays.take(stored, rows[:0]), array[:0]),
        (file_arrays.concatenated([array, stored[:9]]), np.concatenate([array, array[:9]])),
    ):
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype
        assert (file_arrays.file_of(found) is not None) == (found.size > 0)
    assert file_arrays.file_of(stored[1:]) is None
    assert file_arrays.file_of(array) is None
    assert type(file_arrays.take(array, rows)) is np.ndarray


def test_clients_share_the_file_of_their_data(array):
    """The engine maps it as it is; it is there until the last who uses it."""
    split = data.ClientSplit(in_file(array), np.zeros(5000, np.int32), np.array([0, 5000]))
    clients = data.ClientData(split, split, np.array([1]))
    file = file_arrays.file_of(clients.train.examples)
    engine_data = mapped.MappedData(clients)
    assert file.fileno() in engine_data.descriptors
    engine_data.close()
    np.testing.assert_array_equal(clients.train.examples[4000], array[4000])


def test_a_full_disk_is_an_error_that_says_where(array):
    expected = f"{tempfile.gettempdir()} must have room for the clients' data, .* TMPDIR"
    with resources.files_up_to(100_000), pytest.raises(OSError, match=expected):
        in_file(array)


# Examples of 16 KiB: all are 225 MiB. TensorFlow reads up to 70 MiB ahead.
SIDE, EXAMPLES = 128, 14_400


class LargeExamples(tfds.core.GeneratorBasedBuilder):
    """Examples that follow from their numbers."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "image": tfds.features.Tensor(shape=(SIDE, SIDE, 1), dtype=np.uint8, encoding="bytes"),
            "label": tfds.features.ClassLabel(num_classes=3),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        del dl_manager
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for number in range(EXAMPLES):
            image = np.full((SIDE, SIDE, 1), number % 251, np.uint8)
            yield number, {"image": image, "label": number % 3}


@pytest.mark.thorough
def test_a_dataset_is_read_as_tfds_gives_it_in_less_memory_than_it_needs(tmp_path, monkeypatch):
    """It is read, dealt out to clients, and some of the clients are taken from it."""
    large = LargeExamples(data_dir=str(tmp_path))
    large.download_and_prepare()
    monkeypatch.setattr(file_arrays, "_BLOCK_BYTES", 2**20)
    # TensorFlow takes memory when it first reads.
    next(iter(tfds.as_numpy(large.as_dataset(split="train[:8]", batch_size=8))))
    with resources.peak_of_anonymous_memory() as peak:
        labels, images = prepared.read(large, "train", ("label", "image"))
        dataset = data.Dataset("large", data.Examples(images, labels), None, 3)
        partition = data.dirichlet(labels, 3, 3, seed=0, alpha=10.0, min_examples=9)
        clients = data.assign_clients(dataset, partition)
        for some in (clients, clients.without([1])):
            mapped.MappedData(some).close()
    assert clients.train.examples.nbytes + clients.test.examples.nbytes == images.nbytes
    for client, rows in enumerate(partition.train_indices):
        np.testing.assert_array_equal(clients.train.of(client)[0], images[rows])
    assert peak() < images.nbytes * 2 / 3
    expected = tfds.as_numpy(large.as_dataset(split="train", batch_size=-1))
    for name, found in (("label", labels), ("image", images)):
        np.testing.assert_array_equal(found, expected[name])
        assert found.dtype == expected[name].dtype
