import numpy as np
import pytest

from tf_pflego.data import Partition, by_group, classes_per_client, round_robin


def labels_of(num_classes, per_class):
    return np.random.default_rng(0).permutation(np.repeat(np.arange(num_classes), per_class))


@pytest.mark.parametrize("held", [1, 2, 5, 10])
def test_round_robin_deals_every_example_once_and_evenly(held):
    train, test = labels_of(10, 97), labels_of(10, 43)
    partition = round_robin(train, test, 30, held, 10, seed=1)
    for labels, parts in ((train, partition.train_indices), (test, partition.test_indices)):
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
        for classes, part in zip(partition.classes, parts, strict=True):
            assert len(classes) == held
            assert set(labels[part]) <= set(classes)
        for label in range(10):
            shares = [np.sum(labels[part] == label) for c, part in zip(partition.classes, parts, strict=True) if label in c]
            assert max(shares) - min(shares) <= 1  # Dealt one by one.


def test_round_robin_is_a_function_of_the_seed():
    arguments = (labels_of(10, 50), labels_of(10, 20), 20, 2, 10)
    same, again, other = (round_robin(*arguments, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(same.train_indices, again.train_indices, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(same.train_indices, other.train_indices, strict=True))


def test_every_class_is_held_even_with_as_few_clients_as_can():
    for seed in range(20):
        partition = round_robin(labels_of(10, 20), labels_of(10, 20), 5, 2, 10, seed)
        assert sorted(np.concatenate(partition.classes)) == list(range(10))


@pytest.mark.parametrize(
    ("clients", "held", "message"),
    [
        (10, 11, r"must be in \[1, 10\], the number of classes; got 11"),
        (10, 0, r"must be in \[1, 10\]"),
        (4, 2, "must be at least 5, so that with 2 classes a client each of the 10 classes is held"),
        (0, 2, "`num_clients` must be at least 1; got 0"),
        (1000, 1, "every client must have train examples"),
    ],
)
def test_the_impossible_is_refused_with_its_numbers(clients, held, message):
    with pytest.raises(ValueError, match=message):
        round_robin(labels_of(10, 20), labels_of(10, 20), clients, held, 10, seed=0)


def test_by_group_is_one_client_a_group_with_a_quarter_of_each_class_for_test():
    labels = np.repeat(np.arange(6), 80)
    groups = np.repeat([4, 9], [160, 320])
    partition = by_group(groups, labels, seed=0)
    assert [list(c) for c in partition.classes] == [[0, 1], [2, 3, 4, 5]]
    for classes, train, test in zip(partition.classes, partition.train_indices, partition.test_indices, strict=True):
        for label in classes:
            assert (np.sum(labels[train] == label), np.sum(labels[test] == label)) == (60, 20)
    everything = np.concatenate([*partition.train_indices, *partition.test_indices])
    np.testing.assert_array_equal(np.sort(everything), np.arange(480))


def test_saved_partition_is_read_back(tmp_path):
    partition = round_robin(labels_of(10, 20), labels_of(10, 20), 7, 3, 10, seed=0)
    partition.save(tmp_path / "partition.npz")
    loaded = Partition.load(tmp_path / "partition.npz")
    for field in ("classes", "train_indices", "test_indices"):
        for a, b in zip(getattr(partition, field), getattr(loaded, field), strict=True):
            np.testing.assert_array_equal(a, b)


def test_degrees_of_personalization():
    assert [classes_per_client(degree, 62) for degree in ("high", "medium", "no")] == [2, 31, 62]
    with pytest.raises(ValueError, match="one of high, medium, no; got 'low'"):
        classes_per_client("low", 10)
