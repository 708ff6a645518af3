"""Clients from TFF's client data, and back."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tf_pflego.system import file_arrays

tff = pytest.importorskip("tensorflow_federated", reason="TensorFlow Federated is optional")

NAMES = ("a", "b", "c")


def by_name(split):
    return {
        name: tf.data.Dataset.from_tensor_slices(split.of(client))
        for client, name in enumerate(NAMES)
    }


def client_data(split, change=lambda dataset: dataset):
    def dataset(name):
        return change(by_name(split)[name])

    return tff.simulation.datasets.ClientData.from_clients_and_tf_fn(list(NAMES), dataset)


def as_dictionary(x, y):
    return collections.OrderedDict(label=y, pixels=x)


FORMS = {
    "pairs": client_data,
    "dictionaries": lambda split: client_data(split, lambda dataset: dataset.map(as_dictionary)),
    "batches": lambda split: client_data(split, lambda dataset: dataset.batch(2)),
    "datasets by name": by_name,
    "datasets in a list": lambda split: list(by_name(split).values()),
}


@pytest.mark.parametrize("form", FORMS)
def test_tffs_clients_are_those_of_the_arrays(form, tiny_clients):
    """With their names, where they have some, and with the examples in a file."""
    splits = (tiny_clients.train, tiny_clients.test)
    clients = pfl.from_tff(*map(FORMS[form], splits))
    expected = pfl.from_arrays(
        *({name: split.of(client) for client, name in enumerate(NAMES)} for split in splits)
    )
    assert clients.client_names == (None if "list" in form else NAMES)
    np.testing.assert_array_equal(clients.fingerprints, expected.fingerprints)
    assert file_arrays.file_of(clients.train.examples) is not None


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_way_back_gives_the_same_clients(split, tiny_clients):
    back = pfl.tff.to_client_data(tiny_clients, split)
    for client, name in enumerate(back.client_ids):
        elements = list(back.create_tf_dataset_for_client(name).as_numpy_iterator())
        examples, labels = tiny_clients.splits[split].of(client)
        np.testing.assert_array_equal([x for x, _ in elements], examples)
        np.testing.assert_array_equal([y for _, y in elements], labels)


def test_other_things_are_refused(tiny_clients):
    good = client_data(tiny_clients.train)
    with pytest.raises(TypeError, match=r"a dictionary or list of `tf\.data\.Dataset`; got int"):
        pfl.from_tff(good, 3)
    with pytest.raises(TypeError, match=r"client 0 of `test` must have a `tf\.data\.Dataset`"):
        pfl.from_tff(good, [3])
    for change in (lambda x, y: (x, y, y), lambda x, y: {"x": x, "z": y}):
        bad = client_data(tiny_clients.test, lambda d, change=change: d.map(change))
        with pytest.raises(TypeError, match=r"an element of `test` must be a pair"):
            pfl.from_tff(good, bad)
