import importlib.util
import itertools
import shutil

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from tests.runs.resumed import contents
from tf_pflego import data
from tf_pflego.data.datasets import catalogue
from tf_pflego.data.datasets.digits import Digits
from tf_pflego.data.partitions import partition
from tf_pflego.models import networks


def test_digits_are_scikit_learns(digits_dir):
    from sklearn.datasets import load_digits

    dataset = data.load("digits", data_dir=digits_dir)
    assert dataset.train.examples.shape == (1438, 8, 8, 1)
    assert dataset.test.examples.shape == (359, 8, 8, 1)
    assert (dataset.num_classes, dataset.class_names) == (10, tuple("0123456789"))
    ours = np.concatenate([dataset.train.examples, dataset.test.examples]).reshape(-1, 64)
    theirs = np.rint(load_digits().data * 255 / 16).astype(np.uint8)
    np.testing.assert_array_equal(ours[np.lexsort(ours.T)], theirs[np.lexsort(theirs.T)])


def test_files_that_have_changed_are_read_again_and_left_if_that_cannot_be(digits_dir, tmp_path):
    directory = shutil.copytree(digits_dir, tmp_path / "tfds")

    def examples():
        return np.asarray(data.load("digits", data_dir=directory).test.examples)

    first, again = examples(), examples()
    assert np.shares_memory(first, again)
    next(directory.rglob("*.tfrecord*")).touch()
    changed = examples()
    assert not np.shares_memory(first, changed)
    np.testing.assert_array_equal(first, changed)
    (record,) = directory.glob("digits/*/digits-test.tfrecord*")
    record.write_bytes(record.read_bytes()[:-100])
    before = contents(directory)
    with pytest.raises(data.DatasetError, match=r"split test, must be readable in .*Put back a wh"):
        examples()
    assert contents(directory) == before
    (info,) = directory.glob("digits/*/dataset_info.json")
    info.write_text('{"name": ')
    with pytest.raises(data.DatasetError, match=r"`dataset` digits, .*, must be readable in "):
        examples()


@pytest.mark.parametrize(("name", "known"), catalogue.KNOWN.items(), ids=catalogue.KNOWN)
def test_what_a_run_on_a_dataset_has_exists(name, known):
    assert known.network in networks.NETWORKS
    assert known.partition in partition.NAMES
    assert known.num_clients > 0
    if known.own_builder:
        assert importlib.util.find_spec(f"tf_pflego.data.datasets.{name}") is not None


def test_dataset_that_cannot_be_prepared_leaves_nothing(tmp_path, monkeypatch):
    """TFDS fails half-way: the builder is a real one, whose examples end in an error."""

    def broken(self, test):
        yield 0, {"image": np.zeros((8, 8, 1), np.uint8), "label": 1}
        raise OSError("the disk is full")

    monkeypatch.setattr(Digits, "_generate_examples", broken)
    with pytest.raises(data.DatasetError, match=r"digits could not be prepared .*the disk is full"):
        data.load("digits", data_dir=str(tmp_path / "tfds"))
    assert not (tmp_path / "tfds").exists()


def test_builders_of_our_own_say_what_they_lack_and_ask_nothing_of_the_network(
    tmp_path, monkeypatch
):
    def asked(path):
        raise AssertionError(f"TFDS asked for {path}")

    monkeypatch.setattr(tfds.core.utils.gcs_utils, "exists", asked)
    data.load("digits", data_dir=str(tmp_path))
    for name, expected in (
        (
            "organamnist",
            r"organamnist.npz, its source, does not exist either.* https://medmnist.com",
        ),
        ("office_home", "office_home, .* https://www.heman.*Art, Clipart, Product, Real World"),
    ):
        with pytest.raises(data.DatasetError, match=f"none/downloads/manual/{expected}"):
            data.load(name, data_dir=str(tmp_path / "none"), download=True)
        assert not (tmp_path / "none").exists()
    # Newer versions of TFDS do not ask for their own datasets either.
    asks_or_not = r"asked for gs://.*/mnist|mnist is not in"
    with pytest.raises((AssertionError, data.DatasetError), match=asks_or_not):
        data.load("mnist", data_dir=str(tmp_path))


def test_a_name_and_a_directory_that_will_not_do_are_refused():
    with pytest.raises(data.DatasetError, match=r"one of digits, mnist.*; got 'cats'"):
        data.load("cats")
    expected = r"digits could not be prepared in /proc/tfds .*\. Check that the directory"
    with pytest.raises(data.DatasetError, match=expected):
        data.load("digits", data_dir="/proc/tfds")


def make_omniglot(path):
    """Makes a TFDS directory in Omniglot's format: small1 (alphabets 3, 8), small2 (8, 5)."""
    features = tfds.builder_cls("omniglot")(data_dir=str(path)).info.features

    def examples(alphabets):
        rng = np.random.default_rng(0)
        for alphabet, character in itertools.product(alphabets, range(2)):
            for _ in range(4):
                image = np.full((105, 105, 3), 255, np.uint8)
                image[: rng.integers(20, 80), :40] = 0
                ids = {"alphabet": alphabet, "alphabet_char_id": character}
                yield {"image": image, "label": 10 * alphabet + character} | ids

    def split(alphabets):
        spec = features.get_tensor_spec()
        return tf.data.Dataset.from_generator(lambda: examples(alphabets), output_signature=spec)

    tfds.dataset_builders.store_as_tfds_dataset(
        name="omniglot",
        version="3.0.0",
        features=features,
        split_datasets={"small1": split((3, 8)), "small2": split((8, 5))},
        data_dir=str(path),
    )


def test_omniglot_merges_splits_drops_repeated_alphabets_and_rotates(tmp_path):
    make_omniglot(tmp_path)
    dataset = data.load("omniglot", data_dir=str(tmp_path), omniglot_splits=("small1", "small2"))
    assert dataset.test is None
    assert dataset.train.examples.shape == (3 * 2 * 4 * 4, 28, 28, 1)
    assert sorted(set(dataset.train.groups)) == [3, 5, 8]
    first = dataset.train.examples[::24]
    for turn in range(1, 4):
        np.testing.assert_array_equal(first[turn], np.rot90(first[0], turn))
    assert (first[0][0, 0], first[0][-1, -1]) == (255, 0)  # Ink is high, paper 0.
    partition = data.by_group(dataset.train.groups, dataset.train.labels, seed=0)
    clients = data.assign_clients(dataset, partition)
    np.testing.assert_array_equal(clients.num_classes, [2, 2, 2])
    np.testing.assert_array_equal(clients.train.sizes, [24, 24, 24])
    np.testing.assert_array_equal(clients.test.sizes, [8, 8, 8])
    with pytest.raises(data.DatasetError, match="must be among small1, small2; got 'train'"):
        data.load("omniglot", data_dir=str(tmp_path))
