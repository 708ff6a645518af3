import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests.runs.resumed import contents
from tf_pflego import data

DOMAINS = ("Art", "Clipart", "Product", "Real World")
# In ascending order of Unicode, which is not the order without regard to case.
CLASSES = ("Alarm_Clock", "TV", "Table", "pen")
SIZES = ((50, 70), (32, 32), (20, 9))


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Folders in the published format; each domain has two pictures of a class, the last three."""
    folder = tmp_path_factory.mktemp("published") / "office_home"
    rng = np.random.default_rng(0)
    for domain in DOMAINS:
        for label in CLASSES:
            of_class = folder / domain / label
            of_class.mkdir(parents=True)
            for number in range(3 if domain == DOMAINS[-1] else 2):
                # A large picture in steps, as noise in each pixel would vanish when it is resized.
                steps = rng.integers(0, 256, (5, 7, 3)).astype(np.uint8)
                picture = tf.image.resize(steps, SIZES[number], method="nearest")
                content = tf.io.encode_jpeg(picture, quality=95).numpy()
                (of_class / f"{number + 1:05}.jpg").write_bytes(content)
    # What is no picture of the dataset.
    (folder / "ImageInfo.csv").write_text("Art,1")
    (folder / "Art" / "readme.txt").write_text("Art")
    (folder / "Art" / "TV" / "Thumbs.db").write_bytes(b"thumbs")
    (folder / "Art" / "TV" / "._00001.jpg").write_bytes(b"a file of the file system")
    (folder / "Clipart" / ".cache").mkdir()
    return folder


@pytest.fixture
def data_dir(published, tmp_path):
    """A TFDS directory with a copy of these folders where they are expected."""
    shutil.copytree(published, tmp_path / "downloads" / "manual" / "office_home")
    return tmp_path


def load(data_dir):
    return data.load("office_home", data_dir=str(data_dir))


def refused(data_dir, message):
    """Checks that the folders are refused with a message that matches, and leave nothing."""
    before = contents(data_dir)
    with pytest.raises(data.DatasetError, match=message):
        load(data_dir)
    assert contents(data_dir) == before


def test_office_home_is_the_published_pictures_resized(data_dir):
    before = contents(data_dir / "downloads")
    dataset = load(data_dir)
    train = dataset.train
    assert train.examples.shape == ((2 + 2 + 2 + 3) * len(CLASSES), 32, 32, 3)
    assert train.examples.dtype == np.uint8
    assert train.labels.dtype == train.groups.dtype == np.int32
    assert (dataset.test, dataset.num_classes) == (None, len(CLASSES))
    expected = []
    for group, domain in enumerate(DOMAINS):
        for label, name in enumerate(CLASSES):
            folder = data_dir / "downloads" / "manual" / "office_home" / domain / name
            for path in folder.glob("0*.jpg"):
                picture = tf.io.decode_jpeg(path.read_bytes())
                small = tf.image.resize(picture, (32, 32), method="bilinear", antialias=True)
                expected.append((group, label, np.rint(small).astype(np.uint8).tobytes()))
    images = [image.tobytes() for image in train.examples]
    got = zip(train.groups, train.labels, images, strict=True)
    assert sorted(got) == sorted(expected)
    partition = data.by_group(train.groups, train.labels, seed=0)
    clients = data.assign_clients(dataset, partition)
    assert clients.num_classes.tolist() == [len(CLASSES)] * 4
    # It is prepared once, and nothing else is left.
    assert sorted(file.name for file in data_dir.iterdir()) == ["downloads", "office_home"]
    assert contents(data_dir / "downloads") == before
    shutil.rmtree(data_dir / "downloads")  # A second preparation would need it.
    again = load(data_dir)
    np.testing.assert_array_equal(train.examples, again.train.examples)
    assert again.num_classes == len(CLASSES)


def test_office_home_reduces_pictures_over_all_their_pixels(data_dir):
    """A picture of fine black and white stripes becomes grey; without antialiasing it would not."""
    stripes = np.zeros((320, 320, 3), np.uint8)
    stripes[:, 5::10] = stripes[:, 6::10] = 255
    stripes[:, 0::10] = stripes[:, 1::10] = stripes[:, 2::10] = 255
    pictures = {"Product/TV": stripes, "Clipart/pen": np.full((40, 40, 1), 90, np.uint8)}
    for place, picture in pictures.items():
        folder = data_dir / "downloads" / "manual" / "office_home" / place
        for path in folder.glob("*.jpg"):
            path.write_bytes(tf.io.encode_jpeg(picture, quality=100).numpy())
    train = load(data_dir).train
    striped = train.examples[(train.groups == 2) & (train.labels == CLASSES.index("TV"))]
    assert len(striped) == 2
    assert (abs(striped[:, 2:-2, 2:-2].astype(float) - 127.5) < 20).all()
    # A grey picture becomes one of three equal colours.
    grey = train.examples[(train.groups == 1) & (train.labels == CLASSES.index("pen"))]
    np.testing.assert_array_equal(grey, np.full((2, 32, 32, 3), 90))


def test_folders_and_pictures_that_are_not_the_published_ones_are_refused_by_name(data_dir):
    folder = data_dir / "downloads" / "manual" / "office_home"
    (folder / "Real World").rename(folder / "RealWorld")
    refused(data_dir, "No such file or directory: .*manual/office_home/Real World")
    (folder / "RealWorld").rename(folder / "Real World")
    shutil.copytree(folder / "Product" / "TV", folder / "Product" / "Bike")
    refused(data_dir, "'Bike' is in one of the folders Art and Product only")
    shutil.rmtree(folder / "Product" / "Bike")
    path = folder / "Real World" / "pen" / "00002.jpg"
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"<html>Not found</html>"):
        path.write_bytes(content)
        refused(data_dir, r"Real World/pen/00002.jpg must be a JPEG image; got another file")
    path.write_bytes(whole)
    (folder / "Art" / "Zebra").mkdir()
    for domain in DOMAINS[1:]:
        shutil.copytree(folder / domain / "TV", folder / domain / "Zebra")
    refused(data_dir, "Art/Zebra has no .jpg file")
