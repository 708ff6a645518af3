import numpy as np
import pytest

from tests.comparison import assert_identical
from tf_pflego.data import by_group, classes_per_client, round_robin


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
            holders = [k for k, classes in enumerate(partition.classes) if label in classes]
            shares = [np.sum(labels[parts[k]] == label) for k in holders]
            assert max(shares) - min(shares) <= 1  # Dealt one by one.


def test_round_robin_is_a_function_of_the_seed():
    arguments = (labels_of(10, 50), labels_of(10, 20), 20, 2, 10)
    same, again, other = (round_robin(*arguments, seed=seed) for seed in (1, 1, 2))
    for split, first in same.indices.items():
        assert_identical(first, again.indices[split])
        assert not all(map(np.array_equal, first, other.indices[split]))


def test_every_class_is_held_even_with_as_few_clients_as_can():
    for seed in range(20):
        partition = round_robin(labels_of(10, 20), labels_of(10, 20), 5, 2, 10, seed)
        assert sorted(np.concatenate(partition.classes)) == list(range(10))


def test_fewer_hold_a_class_each_and_the_rest_is_not_used(caplog):
    labels = labels_of(10, 20)
    with caplog.at_level("INFO"):
        partition = round_robin(labels, labels, 4, 2, 10, seed=0)
    held = np.concatenate(partition.classes)
    assert len(set(held)) == 8
    dealt = np.concatenate(partition.train_indices)
    np.testing.assert_array_equal(np.sort(dealt), np.flatnonzero(np.isin(labels, held)))
    without = ", ".join(map(str, sorted(set(range(10)) - set(held))))
    assert f"no client has the classes {without}, and their examples" in caplog.text


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"classes_per_client": 11},
         r"`classes_per_client` must be in \[1, 10\], the number of classes; got 11. Lower"),
        ({"num_clients": 1000}, "must be at most 200, the number of train .*; got 1000. Lower"),
        ({"train_labels": [*range(10), 12, 10]},
         r"`train_labels` must be in \[0, 10\), the classes; got 12 for example 10. Correct"),
        ({"test_labels": labels_of(10, 20)[:, None]}, r"`test_labels` must be of rank 1; got"),
    ],
)  # fmt: skip
def test_round_robin_refuses_the_impossible_with_its_numbers(changed, message):
    arguments = {split: labels_of(10, 20) for split in ("train_labels", "test_labels")}
    arguments |= {"num_clients": 10, "classes_per_client": 2, "num_classes": 10, "seed": 0}
    round_robin(**arguments)
    with pytest.raises(ValueError, match=message):
        round_robin(**{**arguments, **changed})


def test_each_group_by_its_name_is_a_client_with_a_quarter_of_each_class_for_the_test():
    labels = np.repeat(np.arange(6), 80)
    partition = by_group(np.repeat(["zoe", "ada"], [160, 320]), labels, seed=0)
    assert [list(c) for c in partition.classes] == [[2, 3, 4, 5], [0, 1]]
    for k in range(partition.num_clients):
        for label in partition.classes[k]:
            assert np.sum(labels[partition.train_indices[k]] == label) == 60
            assert np.sum(labels[partition.test_indices[k]] == label) == 20
    everything = np.concatenate([*partition.train_indices, *partition.test_indices])
    np.testing.assert_array_equal(np.sort(everything), np.arange(480))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"labels": np.array([0, 0, -3, 0, 1, 1, 1, 1])},
         r"`labels` must be in \[0, 2147483648\), the classes; got -3 for example 2"),
        ({"groups": np.zeros(7, int)}, r"must be 8 ids, .*, one for each label; got int64"),
        ({"groups": np.full(8, np.nan)}, "must be 8 ids, integers or text, .*; got float64"),
        ({"test_fraction": -0.25}, "`test_fraction` must be above 0; got -0.25"),
        ({"test_fraction": 0.2},
         "every client must have test examples; 2 of 2 would have none of the 8 .* Raise `test"),
    ],
)  # fmt: skip
def test_by_group_refuses(changed, message):
    arguments = {"groups": np.repeat([4, 9], 4), "labels": np.repeat([0, 1], 4), "seed": 0}
    by_group(**arguments)
    with pytest.raises(ValueError, match=message):
        by_group(**{**arguments, **changed})


def test_degrees_of_personalization():
    assert [classes_per_client(degree, 62) for degree in ("high", "medium", "no")] == [2, 31, 62]
    with pytest.raises(ValueError, match="one of high, medium, no; got 'low'"):
        classes_per_client("low", 10)
