import zipfile

import numpy as np
import pytest

from tests.runs.resumed import contents
from tf_pflego import data

COUNTS = {"train": 5, "val": 3, "test": 4}


def published_arrays():
    """Returns arrays in the published format, with few images: the classes 0 to 10 and 0 again."""
    rng = np.random.default_rng(0)
    arrays, first = {}, 0
    for split, count in COUNTS.items():
        arrays[f"{split}_images"] = rng.integers(0, 256, (count, 28, 28), np.uint8)
        labels = np.arange(first, first + count) % 11
        arrays[f"{split}_labels"] = labels.astype(np.uint8)[:, None]
        first += count
    return arrays


def write(data_dir, arrays):
    """Writes organamnist.npz where it is expected, and returns its path."""
    path = data_dir / "downloads" / "manual" / "organamnist.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)
    return path


def rows(examples):
    """Returns examples as sorted rows of pixels and label: TFDS shuffles what it prepares."""
    labels = examples.labels[:, None]
    return sorted(map(tuple, np.hstack([examples.examples.reshape(len(labels), -1), labels])))


def refused(data_dir, path):
    """Checks that a file is refused by its path, and leaves nothing."""
    before = contents(data_dir)
    with pytest.raises(data.DatasetError, match=f"could not be prepared .*Check {path}"):
        data.load("organamnist", data_dir=str(data_dir))
    assert contents(data_dir) == before


def test_organamnist_is_the_published_file_with_validation_in_training(tmp_path):
    arrays = published_arrays()
    path = write(tmp_path, arrays)
    dataset = data.load("organamnist", data_dir=str(tmp_path))
    assert dataset.train.examples.shape == (8, 28, 28, 1)
    assert dataset.test.examples.shape == (4, 28, 28, 1)
    assert dataset.train.examples.dtype == np.uint8
    assert dataset.train.labels.dtype == np.int32
    assert (dataset.num_classes, dataset.train.groups) == (11, None)
    for examples, splits in (dataset.train, ("train", "val")), (dataset.test, ("test",)):
        images, labels = (
            np.concatenate([arrays[f"{split}_{which}"] for split in splits])
            for which in ("images", "labels")
        )
        assert rows(examples) == rows(data.Examples(images, labels[:, 0]))
    partition = data.round_robin(dataset.train.labels, dataset.test.labels, 1, 11, 11, seed=0)
    assert data.assign_clients(dataset, partition).example_shape == (28, 28, 1)
    # It is prepared once, and nothing else is left.
    assert sorted(file.name for file in tmp_path.iterdir()) == ["downloads", "organamnist"]
    assert [file for file in (tmp_path / "downloads").rglob("*") if file.is_file()] == [path]
    path.unlink()  # A second preparation would need it.
    again = data.load("organamnist", data_dir=str(tmp_path))
    np.testing.assert_array_equal(dataset.train.examples, again.train.examples)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("val_labels", None),
        ("train_images", np.zeros((5, 64, 64), np.uint8)),
        ("test_labels", np.array([[0], [10], [11], [12]])),
    ],
)
def test_wrong_array_is_refused_and_leaves_nothing(tmp_path, name, value):
    arrays = published_arrays() | {name: value}
    if value is None:
        del arrays[name]
    refused(tmp_path, write(tmp_path, arrays))


def test_damaged_file_is_refused_and_leaves_nothing(tmp_path):
    path = write(tmp_path, published_arrays())
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        middle = archive.getinfo("val_images.npy").header_offset + 1000
    flipped = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
    for content in (whole[: len(whole) // 2], b"<html>Not found</html>", b"", flipped):
        path.write_bytes(content)
        refused(tmp_path, path)
