"""Clients from TFF's client data, and back."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tf_pflego.system import file_arrays

tff = pytest.importorskip("tensorflow_federated", reason="TensorFlow Federated is optional")

NAMES = ("a", "b", "c")


def client_data(clients, split, change=lambda dataset: dataset):
    def dataset(name):
        return change(tf.data.Dataset.from_tensor_slices(split.of(NAMES.index(name))))

    return tff.simulation.datasets.ClientData.from_clients_and_tf_fn(list(NAMES), dataset)


def as_dictionary(x, y):
    return collections.OrderedDict(label=y, pixels=x)


@pytest.mark.parametrize(
    "change",
    [
        lambda dataset: dataset,
        lambda dataset: dataset.map(as_dictionary),
        lambda dataset: dataset.batch(2),
    ],
    ids=["pairs", "dictionaries", "batches"],
)
def test_tffs_clients_are_those_of_the_arrays(change, tiny_clients):
    """With their names, and with the examples in a file."""
    splits = (tiny_clients.train, tiny_clients.test)
    clients = pfl.from_tff(*(client_data(tiny_clients, split, change) for split in splits))
    expected = pfl.from_arrays(
        *({name: split.of(client) for client, name in enumerate(NAMES)} for split in splits)
    )
    assert clients.client_names == NAMES
    np.testing.assert_array_equal(clients.fingerprints, expected.fingerprints)
    assert file_arrays.file_of(clients.train.examples) is not None


def test_datasets_by_name_or_in_a_list_are_clients(tiny_clients):
    splits = [
        [tf.data.Dataset.from_tensor_slices(split.of(client)) for client in range(len(NAMES))]
        for split in (tiny_clients.train, tiny_clients.test)
    ]
    expected = pfl.from_tff(
        *(client_data(tiny_clients, split) for split in (tiny_clients.train, tiny_clients.test))
    )
    by_name = pfl.from_tff(*(dict(zip(NAMES, split, strict=True)) for split in splits))
    listed = pfl.from_tff(*splits)
    assert (by_name.client_names, listed.client_names) == (NAMES, None)
    for clients in (by_name, listed):
        np.testing.assert_array_equal(clients.fingerprints, expected.fingerprints)


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_way_back_gives_the_same_clients(split, tiny_clients):
    back = pfl.tff.to_client_data(tiny_clients, split)
    for client, name in enumerate(back.client_ids):
        elements = list(back.create_tf_dataset_for_client(name).as_numpy_iterator())
        examples, labels = tiny_clients.splits[split].of(client)
        np.testing.assert_array_equal([x for x, _ in elements], examples)
        np.testing.assert_array_equal([y for _, y in elements], labels)


def test_other_things_are_refused(tiny_clients):
    good = client_data(tiny_clients, tiny_clients.train)
    with pytest.raises(TypeError, match=r"a dictionary or list of `tf\.data\.Dataset`; got int"):
        pfl.from_tff(good, 3)
    with pytest.raises(TypeError, match=r"client 0 of `test` must have a `tf\.data\.Dataset`"):
        pfl.from_tff(good, [3])
    for change in (lambda x, y: (x, y, y), lambda x, y: {"x": x, "z": y}):
        bad = client_data(tiny_clients, tiny_clients.test, lambda d, change=change: d.map(change))
        with pytest.raises(TypeError, match=r"an element of `test` must be a pair"):
            pfl.from_tff(good, bad)
