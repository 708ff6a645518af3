import numpy as np
import pytest

from tests.comparison import assert_identical
from tf_pflego.data import Dataset, Examples, merge_splits
from tf_pflego.data.partitions.dirichlet import dirichlet

CLASSES = 10
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(CLASSES), 200))


@pytest.mark.parametrize("alpha", [0.1, 0.3, 100.0])
def test_every_example_is_dealt_once_and_no_client_is_small(alpha):
    """A class's share of a client's test examples differs from a quarter by less than one."""
    partition = dirichlet(LABELS, 12, CLASSES, seed=1, alpha=alpha, min_examples=30)
    dealt = np.concatenate([*partition.train_indices, *partition.test_indices])
    np.testing.assert_array_equal(np.sort(dealt), np.arange(len(LABELS)))
    train, test = (  # how many examples of each class each client has
        np.stack([np.bincount(LABELS[rows], minlength=CLASSES) for rows in of_split])
        for of_split in partition.indices.values()
    )
    both = train + test
    assert both.sum(axis=1).min() >= 30
    for client, classes in enumerate(partition.classes):
        assert classes.tolist() == np.flatnonzero(both[client]).tolist()
    assert np.abs(test - both / 4).max() < 1
    assert np.abs(test.sum(axis=1) - both.sum(axis=1) / 4).max() < 1


@pytest.mark.parametrize("alpha", [0.5, 20.0])
def test_the_shares_of_a_class_have_the_dirichlet_distribution(alpha):
    """The first class meets no full client, so its shares are the draw itself.

    Their mean is 1 / I and their variance (I - 1) / (I^2 (I alpha + 1)); 400 draws of 4 shares.
    """
    clients, labels = 4, np.repeat([0, 1], [300, 900])
    shares = []
    for seed in range(400):
        parts = dirichlet(labels, clients, 2, seed, alpha, min_examples=4)
        both = zip(parts.train_indices, parts.test_indices, strict=True)
        shares.append([np.sum(labels[np.concatenate(own)] == 0) / 300 for own in both])
    expected = (clients - 1) / (clients**2 * (clients * alpha + 1))
    assert np.mean(shares) == pytest.approx(1 / clients, abs=1e-9)
    assert np.var(shares) == pytest.approx(expected, rel=0.1)


def test_it_is_a_function_of_the_seed():
    same, again, other = (dirichlet(LABELS, 8, CLASSES, seed) for seed in (1, 1, 2))
    assert_identical(same.train_indices, again.train_indices)
    assert not all(map(np.array_equal, same.train_indices, other.train_indices))


def test_each_group_has_clients_of_its_own():
    groups = np.repeat(["art", "clipart"], 1000)
    partition = dirichlet(LABELS, 6, CLASSES, seed=4, min_examples=20, groups=groups)
    for client in range(6):
        own = np.concatenate([partition.train_indices[client], partition.test_indices[client]])
        assert set(groups[own]) == {"art" if client < 3 else "clipart"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"alpha": 0.0}, "`alpha` must be above 0; got 0.0. Raise"),
        ({"min_examples": 3}, "`min_examples` must be at least 4, so that .*; got 3. Raise"),
        ({"num_clients": 5, "groups": np.arange(2000) % 4}, "`num_clients` must be a multiple of "
         "4, the number of groups; got 5"),
        ({"num_classes": 9}, r"`labels` must be in \[0, 9\), the classes; got 9"),
        ({"num_clients": 30, "min_examples": 80}, "`min_examples` must be at most 66, for 2000 "
         "examples and 30 clients; got 80. Lower"),
        ({"alpha": 0.5, "min_examples": 200},
         r"in 20 draws with alpha 0.5 the smallest client had at most \d+ examples"),
    ],
)  # fmt: skip
def test_what_cannot_be_dealt_is_refused(changed, message, monkeypatch):
    monkeypatch.setattr("tf_pflego.data.partitions.dirichlet.MAX_DRAWS", 20)
    arguments = {"num_clients": 10, "num_classes": CLASSES, "seed": 0, **changed}
    with pytest.raises(ValueError, match=message):
        dirichlet(LABELS, **arguments)


def test_merged_puts_training_and_test_examples_into_one():
    train, test = (Examples(np.full([n, 2], n), np.arange(n)) for n in (3, 2))
    whole = merge_splits(Dataset("own", train, test, 3))
    assert whole.test is None
    np.testing.assert_array_equal(whole.train.labels, [0, 1, 2, 0, 1])
    np.testing.assert_array_equal(whole.train.examples[:, 0], [3, 3, 3, 2, 2])
    assert merge_splits(whole) is whole
