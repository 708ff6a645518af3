"""Clients that permute classes or see other images: against loops over single examples."""

import dataclasses
import itertools

import numpy as np
import pytest

from tests.data.partitions.test_validation import same_data
from tf_pflego import data
from tf_pflego.data import Dataset, Examples, Partition
from tf_pflego.runs import loading
from tf_pflego.runs.config import RunConfig
from tf_pflego.system import file_arrays

NAMES = tuple("abcdef")


def examples_of(count, seed, shape=(3, 4), dtype=np.uint8):
    labels = np.random.default_rng(seed).permutation(np.arange(count) % 6)
    values = np.random.default_rng(seed).integers(0, 256, (count, *shape))
    return Examples(values.astype(dtype), labels)


def dataset_of(shape=(3, 4), dtype=np.uint8):
    sources = examples_of(240, 0, shape, dtype), examples_of(120, 1, shape, dtype)
    return Dataset("six", *sources, 6, NAMES)


DATASET = dataset_of()


def partition_of(seed=3):
    return data.round_robin(DATASET.train.labels, DATASET.test.labels, 10, 3, 6, seed)


@pytest.mark.parametrize("label_space", ["local", "global"])
def test_labels_are_what_each_client_calls_the_class(label_space):
    partition = data.permute_labels(partition_of(), 0.5, 6, seed=3)
    clients = data.assign_clients(DATASET, partition, label_space)
    assert clients.client_groups["permuted"].sum() == 5
    for client, own in enumerate(partition_of().classes):
        renaming = partition.renamings[client]
        assert (renaming is not None) == clients.client_groups["permuted"][client]
        called = [int(c) if renaming is None else int(renaming[c]) for c in own]
        assert clients.classes[client].tolist() == sorted(called)
        names = clients.class_names_of(client)
        for split in ("train", "test"):
            source, stored = getattr(DATASET, split), getattr(clients, split)
            rows = partition.indices[split][client]
            images, labels = stored.of(client)
            np.testing.assert_array_equal(images, source.examples[rows])
            for row, label in zip(rows, labels, strict=True):
                name = called[own.tolist().index(source.labels[row])]
                assert names[label] == NAMES[name]
                assert label == (sorted(called).index(name) if label_space == "local" else name)
    counts = []
    for client, called in enumerate(clients.classes):
        labels = clients.train.of(client)[1]
        labels = called[labels] if label_space == "local" else labels
        counts += [np.sum(labels == name) for name in called]
    assert clients.class_counts.tolist() == counts


def test_who_holds_what_does_not_depend_on_it():
    before = partition_of()
    after = data.shift_images(data.permute_labels(before, 0.7, 6, 3), 0.3, "invert", 3)
    for split in ("train", "test"):
        assert after.indices[split] is before.indices[split]
    assert repr(after).endswith("of 3 classes; 7 permuted; 3 shifted)")
    assert data.permute_labels(before, 0, 6, 3) is before
    assert data.shift_images(before, 0, "rotate", 3) is before
    # A smaller share is a part of a larger one, with the same names.
    fewer = data.permute_labels(before, 0.3, 6, 3)
    for own, more in zip(fewer.renamings, after.renamings, strict=True):
        assert own is None or own.tolist() == more.tolist()
    other = data.permute_labels(before, 0.7, 6, 4).client_groups["permuted"]
    assert not np.array_equal(other, after.client_groups["permuted"])


def test_each_permutation_is_as_likely_and_each_client_has_its_own():
    many = Partition(*[tuple(np.zeros((6000, 1), int))] * 3)
    renamings = np.stack(data.permute_labels(many, 1, 3, seed=0).renamings)
    counts = [np.sum((renamings == one).all(axis=1)) for one in itertools.permutations(range(3))]
    assert sum(counts) == 6000
    assert np.abs(np.array(counts) - 1000).max() < 150  # Five standard deviations.


@pytest.mark.parametrize("in_file", [False, True], ids=["in memory", "in a file"])
@pytest.mark.parametrize(
    ("shift", "shape", "dtype"),
    [
        ("rotate", (3, 4), np.uint8),
        ("rotate", (2, 3, 2), np.float32),
        ("invert", (3, 4, 1), np.uint8),
    ],
)
def test_shifted_clients_see_all_their_images_changed(shift, shape, dtype, in_file, monkeypatch):
    monkeypatch.setattr(file_arrays, "_BLOCK_BYTES", 100)  # Blocks that end amid a client's rows.
    dataset = dataset_of(shape, dtype)
    sources = {"train": dataset.train, "test": dataset.test}
    originals = {split: source.examples.copy() for split, source in sources.items()}
    if in_file:
        for split, source in sources.items():
            writer = file_arrays.Writer()
            writer.append(source.examples)
            sources[split] = dataclasses.replace(source, examples=writer.array())
    dataset = dataclasses.replace(dataset, **sources)
    partition = data.shift_images(partition_of(), 0.4, shift, seed=3)
    plain, clients = (data.assign_clients(dataset, one) for one in (partition_of(), partition))
    assert clients.client_groups["shifted"].sum() == 4
    for split, client in itertools.product(sources, range(10)):
        found = getattr(clients, split)
        assert (file_arrays.file_of(found.examples) is not None) == in_file
        rows = partition.indices[split][client]
        np.testing.assert_array_equal(found.of(client)[1], getattr(plain, split).of(client)[1])
        for row, image in zip(rows, found.of(client)[0], strict=True):
            expected = originals[split][row]
            if clients.client_groups["shifted"][client]:
                expected = 255 - expected if shift == "invert" else np.rot90(expected, 2)
            np.testing.assert_array_equal(image, expected)
    for split, source in sources.items():
        np.testing.assert_array_equal(source.examples, originals[split])


def test_a_saved_partition_is_read_back(tmp_path):
    partition = data.shift_images(data.permute_labels(partition_of(), 0.5, 6, 3), 0.3, "rotate", 3)
    partition.save(tmp_path / "partition.npz")
    loaded = Partition.load(tmp_path / "partition.npz")
    assert loaded.shifts == partition.shifts
    same_data(*(data.assign_clients(DATASET, one, "global") for one in (partition, loaded)))
    assert [own is None for own in loaded.renamings] == [own is None for own in partition.renamings]
    partition_of().save(tmp_path / "without.npz")
    with np.load(tmp_path / "without.npz") as arrays:
        assert sorted(arrays) == sorted(
            f"{name}{end}"
            for name in ("classes", "train_indices", "test_indices")
            for end in ("", "_offsets")
        )
    loaded = Partition.load(tmp_path / "without.npz")
    assert (loaded.renamings, loaded.shifts, loaded.client_groups) == (None, None, {})


def test_groups_stay_with_the_clients_that_are_taken_or_joined():
    partition = data.shift_images(data.permute_labels(partition_of(), 0.5, 6, 3), 0.3, "rotate", 3)
    clients = data.assign_clients(DATASET, partition)
    others = data.assign_clients(DATASET, data.permute_labels(partition_of(), 0.5, 6, 4))
    groups, of_others = clients.client_groups, others.client_groups
    ids = np.array([1, 4, 8])
    for part, chosen in (
        (clients.part(2, 7), np.arange(2, 7)),
        (clients.without([1, 4, 8]), np.setdiff1d(np.arange(10), ids)),
        (clients.shard(ids), ids),
    ):
        assert part.client_groups.keys() == {"permuted", "shifted"}
        for name, members in part.client_groups.items():
            np.testing.assert_array_equal(members, groups[name][chosen])
    joined = clients.joined_by(others).client_groups
    assert joined["permuted"].tolist() == [*groups["permuted"], *of_others["permuted"]]
    assert joined["shifted"].tolist() == [*groups["shifted"], *[False] * 10]


def test_a_run_has_the_clients_that_its_flags_say(digits_dir):
    flags = {"data_dir": digits_dir, "num_clients": 10, "seed": 5}
    plain = loading.load_clients(RunConfig(**flags))
    clients = loading.load_clients(
        RunConfig(**flags, permuted_fraction=0.5, shifted_fraction=0.2, shift="invert")
    )
    permuted, shifted = (clients.client_groups[name] for name in ("permuted", "shifted"))
    assert (plain.client_groups, permuted.sum(), shifted.sum()) == ({}, 5, 2)
    for client in range(10):
        expected = plain.train.of(client)[0]
        expected = 255 - expected if shifted[client] else expected
        np.testing.assert_array_equal(clients.train.of(client)[0], expected)
        assert permuted[client] or np.array_equal(clients.classes[client], plain.classes[client])


def with_shift(shift, share=0.5):
    return data.shift_images(partition_of(), share, shift, 0)


def permuted(share=0.5, partition=None, num_classes=6):
    return data.permute_labels(partition or partition_of(), share, num_classes, 0)


def given(**fields):
    return dataclasses.replace(partition_of(), **fields)


REFUSED = [
    (lambda: data.assign_clients(dataset_of((7,)), with_shift("rotate")),
     r"must be images for shift=rotate, .*; got uint8 of shape \(7,\). Set `shifted_"),
    (lambda: data.assign_clients(dataset_of(dtype=float), with_shift("invert")),
     r"must be images for shift=invert, uint8 of .*; got float64 of shape \(3, 4\)"),
    (lambda: with_shift("mirror"), "`shift` must be one of rotate, invert; got 'mirror'"),
    (lambda: permuted(num_classes=5), r"classes must be in \[0, num_classes=5\); got 5"),
    (lambda: permuted(partition=permuted()), "`partition` must have no permuted clients yet"),
    (lambda: data.shift_images(with_shift("rotate"), 0.5, "invert", 0), "have no shifted clients"),
    (lambda: data.assign_clients(DATASET, given(shifts=("rotate",))),
     "`shifts` must be 10, one per"),
    (lambda: data.assign_clients(DATASET, given(shifts=("turn",) * 10)),
     "client 0's shift must be"),
    (lambda: data.assign_clients(DATASET, given(renamings=(np.zeros(6, int),) * 10)),
     "client 0's renaming must be a permutation of the 6 classes; got .0 0 0 0 0 0.. Name"),
    (lambda: dataclasses.replace(
        data.assign_clients(DATASET, partition_of()), client_groups={"mine": np.zeros(10)}),
     r"`client_groups` must be 10 truth values for 'mine', one per client; got float64"),
]  # fmt: skip


@pytest.mark.parametrize(("action", "message"), REFUSED)
def test_what_cannot_be_is_refused(action, message):
    with pytest.raises(ValueError, match=message):
        action()
