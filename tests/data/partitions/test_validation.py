"""Which training examples are held out, and that each federation keeps them where they belong."""

import dataclasses
import functools

import numpy as np
import pytest

from tests.comparison import assert_identical
from tests.conftest import make_clients
from tf_pflego import data
from tf_pflego.data.partitions.partition import starts
from tf_pflego.runs import loading
from tf_pflego.runs.config import RunConfig

SIZES = (50, 2, 7, 40, 31)


def labels_of(sizes=SIZES, num_classes=4):
    rng = np.random.default_rng(1)
    return np.concatenate([rng.integers(0, num_classes, size) for size in sizes]), starts(sizes)


@pytest.mark.parametrize("fraction", [0.01, 0.2, 0.5, 0.99])
def test_each_class_of_a_client_gives_its_share_whatever_its_name(fraction):
    """So a client that names classes by a permutation holds the same examples out."""
    labels, offsets = labels_of()
    held, again = (data.held_out(of, offsets, fraction, seed=3) for of in (labels, 3 - labels))
    np.testing.assert_array_equal(held, again)
    for client, size in enumerate(SIZES):
        own = slice(offsets[client], offsets[client + 1])
        counts = np.bincount(labels[own])
        taken = np.bincount(labels[own][held[own]], minlength=len(counts))
        if size == 2 and counts.max() == 1:
            assert taken.sum() == 1
            continue
        assert np.all(counts[counts > 0] - taken[counts > 0] >= 1)
        low = np.floor(fraction * counts)
        assert np.all(taken >= np.minimum(low, np.maximum(counts - 1, 0)))
        assert np.all(taken <= low + 1)
        if np.all((low + 1 < counts) | (counts == 0)):  # Every class has room for one more.
            assert taken.sum() == max(1, round(fraction * size))


def test_the_rest_goes_to_the_classes_of_which_most_was_cut_off():
    """0.2 of 9, 13 and 6 examples are 1.8, 2.6 and 1.2; of 28 together they are 6 to the nearest
    whole number, and of each at least 1, 2 and 1."""
    labels = np.repeat([0, 1, 2], [9, 13, 6])
    held = data.held_out(labels, np.array([0, 28]), 0.2, seed=0)
    assert np.bincount(labels[held]).tolist() == [2, 3, 1]


def test_within_a_class_the_draw_is_uniform_and_a_function_of_the_seed():
    labels, offsets = np.zeros(20, int), np.array([0, 10, 20])
    draws = [data.held_out(labels, offsets, 0.3, seed) for seed in range(500)]
    assert np.abs(np.sum(draws, axis=0) - 150).max() < 40
    np.testing.assert_array_equal(draws[7], data.held_out(labels, offsets, 0.3, 7))


def test_where_each_class_has_one_example_one_of_them_is_held_out():
    held = data.held_out(np.arange(5), np.array([0, 3, 5]), 0.9, seed=0)
    assert (held[:3].sum(), held[3:].sum()) == (1, 1)


@pytest.mark.parametrize(
    ("sizes", "fraction", "message"),
    [
        ((3, 1), 0.2, "at least 2 training examples.*client 1 has 1"),
        ((3, 3), 0.0, "`validation_fraction` must be above 0; got 0"),
    ],
)
def test_what_cannot_be_held_out_is_refused(sizes, fraction, message):
    with pytest.raises(ValueError, match=message):
        data.held_out(*labels_of(sizes), fraction, seed=0)


@pytest.mark.parametrize("kind", ["round_robin", "dirichlet"])
def test_partition_and_test_examples_are_as_without(kind, digits_dir):
    chosen = {"partition": kind, "label_space": "global", "permuted_fraction": 0.5}
    chosen |= {"data_dir": digits_dir, "num_clients": 6, "clients_per_round": 2}
    plain, held = (
        loading.load_clients(RunConfig(**chosen, validation_fraction=fraction))
        for fraction in (0.0, 0.2)
    )
    for client in range(6):
        parts = [held.partition.indices[split][client] for split in ("train", "validation")]
        np.testing.assert_array_equal(
            np.sort(np.concatenate(parts)), plain.partition.train_indices[client]
        )
        assert len(parts[1]) == round(0.2 * plain.train.sizes[client])
        assert_identical(held.test.of(client), plain.test.of(client))
        np.testing.assert_array_equal(held.classes[client], plain.classes[client])
    same_data(held, plain.with_validation(0.2))
    np.testing.assert_allclose(held.client_weights, held.train.sizes / held.train.sizes.sum())


def same_data(first, second):
    assert first.splits.keys() == second.splits.keys()
    for name, split in first.splits.items():
        for field in ("examples", "labels", "offsets"):
            np.testing.assert_array_equal(
                getattr(split, field), getattr(second.splits[name], field)
            )


def test_a_partition_is_saved_with_its_validation_examples(tmp_path):
    labels = np.tile(np.arange(5), 20)
    partition = data.round_robin(labels, labels, 7, 3, 5, seed=0)
    held = partition.with_validation(labels, 0.25, seed=0)
    for saved in (partition, held):
        saved.save(tmp_path / "partition.npz")
        loaded = data.Partition.load(tmp_path / "partition.npz")
        assert repr(loaded) == repr(saved)
        assert_identical(loaded.validation_indices or (), saved.validation_indices or ())
    assert loaded.validation_indices is not None
    with pytest.raises(ValueError, match="must not have validation examples yet"):
        held.with_validation(labels, 0.25, seed=0)
    twice = dataclasses.replace(held, train_indices=partition.train_indices)
    source = data.Examples(np.zeros((100, 1)), labels)
    with pytest.raises(ValueError, match=r"must have one client.*train.*validation"):
        data.assign_clients(data.Dataset("five", source, source, 5), twice)


def test_clients_keep_their_validation_examples():
    """Each client's examples have values of their own, and so tell whose they are."""
    data_of_five = make_clients((9, 7, 5, 4, 6), (2, 4, 3, 2, 3), (2, 3, 2, 3, 2))
    five = data_of_five.with_validation(0.4, seed=1)
    assert "19 training, 12 validation and 14 test examples" in repr(five)
    joined = five.joined_by(five)
    for found, ids in (
        (five.part(1, 4), [1, 2, 3]),
        (five.without([0, 3]), [1, 2, 4]),
        (five.shard(np.array([0, 4])), [0, 4]),
        (joined, [0, 1, 2, 3, 4] * 2),
    ):
        for position, client in enumerate(ids):
            assert_identical(found.validation.of(position), five.validation.of(client))
    np.testing.assert_array_equal(
        five.shard(np.array([0, 4])).client_weights, five.client_weights[[0, 4]]
    )
    with pytest.raises(ValueError, match=r", some validation examples .*; got .* no validation"):
        five.joined_by(data_of_five)
    with pytest.raises(ValueError, match="must not have validation examples yet"):
        five.with_validation(0.4)


def test_another_process_loads_the_same_validation_examples():
    make = functools.partial(make_clients, (9, 7, 5), (2, 4, 3), (2, 3, 2))
    own = dataclasses.replace(make(), origin=data.Origin(make, np.arange(3)))
    held = own.part(0, 2).with_validation(0.4, seed=1)
    same_data(held.origin.load(), held)
