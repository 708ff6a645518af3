import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import make_clients
from tf_pflego.data import ClientData, Dataset, Examples, Partition, federate
from tf_pflego.data.clients import as_floats

DATASET = Dataset(
    "four classes",
    Examples(np.arange(8, dtype=np.uint8).reshape(8, 1), np.array([0, 1, 2, 3, 0, 1, 2, 3], np.int32)),
    Examples(np.arange(4, dtype=np.uint8).reshape(4, 1), np.array([3, 2, 1, 0], np.int32)),
    num_classes=4,
)
PARTITION = Partition(
    classes=(np.array([1, 3]), np.array([0, 2])),
    train_indices=(np.array([1, 3, 5, 7]), np.array([0, 2, 4, 6])),
    test_indices=(np.array([0, 2]), np.array([1, 3])),
)


def test_local_labels_are_positions_among_the_clients_own_classes():
    data = federate(DATASET, PARTITION)
    np.testing.assert_array_equal(data.train.of(0)[1], [0, 1, 0, 1])
    np.testing.assert_array_equal(data.train.of(1)[0].ravel(), [0, 2, 4, 6])
    np.testing.assert_array_equal(data.test.of(0)[1], [1, 0])
    np.testing.assert_array_equal(data.num_classes, [2, 2])


def test_global_labels_are_the_datasets():
    data = federate(DATASET, PARTITION, label_space="global")
    np.testing.assert_array_equal(data.train.of(0)[1], [1, 3, 1, 3])
    np.testing.assert_array_equal(data.num_classes, [4, 4])
    with pytest.raises(ValueError, match="one of local, global; got 'both'"):
        federate(DATASET, PARTITION, label_space="both")


def test_client_weights_are_shares_of_all_training_examples():
    np.testing.assert_allclose(make_clients().client_weights, np.array([3, 7, 5]) / 15)


def test_images_are_read_as_numbers_from_0_to_1():
    np.testing.assert_allclose(as_floats(tf.constant([0, 51, 255], tf.uint8)), [0, 0.2, 1], rtol=1e-6)
    np.testing.assert_array_equal(as_floats(tf.constant([-2.0, 7.0])), [-2, 7])


def test_what_does_not_fit_together_is_refused():
    data = make_clients()
    with pytest.raises(ValueError, match="must go from 0 to 15 in 3 numbers"):
        ClientData(data.train, data.test, np.array([2, 3], np.int32))
    empty = type(data.train)(data.train.examples, data.train.labels, np.array([0, 3, 3, 15]))
    with pytest.raises(ValueError, match="client 1 has no train examples"):
        ClientData(empty, data.test, data.num_classes)
