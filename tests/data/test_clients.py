import numpy as np
import pytest

from tests.conftest import make_clients
from tf_pflego.data import ClientData, ClientSplit, Dataset, Examples, Partition, assign_clients

TRAIN = Examples(np.arange(8, dtype=np.uint8)[:, None], np.tile(np.arange(4), 2))
TEST = Examples(np.arange(4, dtype=np.uint8)[:, None], np.array([3, 2, 1, 0]))
DATASET = Dataset("four classes", TRAIN, TEST, num_classes=4)
PARTITION = Partition(
    classes=(np.array([1, 3]), np.array([0, 2])),
    train_indices=(np.array([1, 3, 5, 7]), np.array([0, 2, 4, 6])),
    test_indices=(np.array([0, 2]), np.array([1, 3])),
)


@pytest.mark.parametrize("label_space", ["local", "global"])
def test_class_counts_are_of_training_examples_of_held_classes(label_space):
    partition = Partition(
        classes=(np.array([1, 2, 3]), np.array([0, 2])),
        train_indices=(np.array([1, 3, 5]), np.array([0, 2, 4, 6])),
        test_indices=PARTITION.test_indices,
    )
    assert assign_clients(DATASET, partition, label_space).class_counts.tolist() == [2, 0, 1, 2, 2]


def test_rows_of_heads_are_the_clients_own_classes_or_those_of_the_dataset():
    own, every = assign_clients(DATASET, PARTITION), assign_clients(DATASET, PARTITION, "global")
    masked = assign_clients(DATASET, PARTITION, "global", class_mask=True)
    for data, rows in (
        (own, [[1, 3, -1, -1], [0, 2, -1, -1]]),
        (every, [[0, 1, 2, 3], [0, 1, 2, 3]]),
        (masked, [[-1, 1, -1, 3], [0, -1, 2, -1]]),
    ):
        actual = data.head_classes([0, 1, 1], 5)
        assert (actual.shape, actual.dtype) == ((3, 5), np.int32)
        np.testing.assert_array_equal(actual[:2, :4], rows)
        np.testing.assert_array_equal(actual[2], actual[1])
        assert (actual[:, 4] == -1).all()
        assert data.num_global_classes == 4
    for part in (masked.part(1, 2), masked.without([0]), masked.shard([1])):
        np.testing.assert_array_equal(part.head_classes([0], 4), [[0, -1, 2, -1]])
    with pytest.raises(ValueError, match=r"labels with a class mask, .*; got .* global labels,"):
        masked.joined_by(every)


def test_classes_start_from_0_and_clients_weigh_as_many_training_examples_as_they_have():
    clients = make_clients()
    assert [list(classes) for classes in clients.classes] == [[0, 1], [0, 1, 2], [0, 1]]
    np.testing.assert_allclose(clients.client_weights, np.array([3, 7, 5]) / 15)


STORED = {
    "float32": ("float16", "float32", "float64", ">f4"),
    "int32": ("bool", "int8", "uint16", "int32", ">i4", "int64", "uint64"),
    "uint8": ("uint8",),
}


@pytest.mark.parametrize(
    ("given", "stored"), [(given, stored) for stored in STORED for given in STORED[stored]]
)
def test_examples_are_stored_in_one_of_three_dtypes(given, stored):
    values = np.array([[0, 1], [1, 0], [1, 1], [0, 0]])
    split = ClientSplit(values.astype(given), np.zeros(4, int), [0, 3, 4])
    data = ClientData(split, split, [1, 1])
    assert data.train.examples.dtype == np.dtype(stored)
    np.testing.assert_array_equal(data.train.examples, values)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64", ">i8"])
def test_labels_are_stored_as_int32(dtype):
    split = ClientSplit(np.zeros((3, 1)), np.array([1, 0, 2], dtype), np.array([0, 2, 3], dtype))
    data = ClientData(split, split, np.array([2, 3], dtype))
    assert (data.train.labels.dtype, data.num_classes.dtype) == (np.int32, np.int32)
    assert data.train.offsets.dtype == np.int64
    np.testing.assert_array_equal(data.train.labels, [1, 0, 2])


def test_arrays_of_the_stored_dtypes_are_not_copied():
    data = make_clients()
    again = ClientData(data.train, data.test, data.num_classes)
    assert np.shares_memory(again.train.examples, data.train.examples)
    assert np.shares_memory(again.test.labels, data.test.labels)


def split_of(examples=None, labels=(0, 1, 0, 2, 1), offsets=(0, 2, 5)):
    """Two clients with 2 and 3 examples; their classes are 2 and 3."""
    if examples is None:
        examples = np.arange(10, dtype=np.float32).reshape(5, 2)
    return ClientSplit(examples, np.asarray(labels), np.asarray(offsets))


def with_value(value, dtype, row=3):
    examples = np.arange(10, dtype=dtype).reshape(5, 2)
    examples[row, 1] = value
    return examples


def trained(*arguments, **named):
    return {"train": split_of(*arguments, **named)}


def tested(*arguments, **named):
    return {"test": split_of(*arguments, **named)}


REFUSED = [
    ({"num_classes": []}, "there must be at least one client; got none. Add clients"),
    ({"num_classes": [2, 0]}, r"must be in \[1, 2147483648\) for every client; got 0 for client 1"),
    ({"label_space": "both"}, "`label_space` must be one of local, global; got 'both'. Correct"),
    (trained(labels=[0, 1, 0, 3, 1]), "client 1's train labels must be in .*; got 3 for its exam"),
    (trained(labels=np.zeros((5, 1), int)), r"`train.labels` must be of rank 1; got .*5, 1\)"),
    (trained(labels=[0, 1, 0, 2]), "`train.labels` must be one for each of the 5 examples; got 4"),
    (trained(np.float32(1)), r"`train.examples` must be \[N, ...\] .*; got shape \(\). Put the"),
    (trained(np.zeros((5, 0), np.float32)), r"with numbers in each .*; got shape \(5, 0\)"),
    (tested(offsets=[0, 2, 4, 5]), "must be 3 numbers from 0 to 5, for 2 clients and 5 examples"),
    ({"num_classes": [2, 2, 3]} | trained(offsets=[0, 3, 2, 5]),
     "`train.offsets` must not decrease; got 2 after 3 for client 1. Put"),
    ({"num_classes": [2, 2, 3]} | trained(offsets=[0, 2, 2, 5]),
     "every client must have train examples; client 1 has no train examples. Leave it out"),
    (trained(with_value(np.nan, np.float32)),
     "client 1's train examples must be finite in float32; got nan in its example 1. Fill"),
    (trained(with_value(2**31, np.int64)), r"client 1's train examples must fit int32, "
     r"\[-2147483648, 2147483647\]; got 2147483648 in its example 1. Number the tokens"),
    (trained(np.full((5, 2), "word")), TypeError, "train examples must be numbers .*; got <U4"),
    (trained(np.ma.masked_equal(with_value(7, np.int32), 7)),
     "`train.examples` must have no masked values; got 1, the first of them in example 3"),
    (trained(np.zeros((5, 2), np.uint8)),
     r"must have one dtype and one shape; got uint8 \(2,\) for train and float32 \(2,\) for"),
    ({"classes": ([0, 1],)}, "`classes` must be 2 arrays, one per client; got 1. Name"),
    ({"classes": ([0, 1], [4, 5])},
     "client 1's classes must be num_classes=3, one for each local label; got 2. Name"),
    ({"classes": ([0, 1], [4, 4, 5])}, "must be ascending and different; got 4 after 4. Sort them"),
    ({"classes": ([-1, 1], [4, 5, 6])},
     r"client 0's classes must be in \[0, num_classes=2147483648\); got -1. Correct"),
    ({"class_mask": True}, "must not be given in the local label space, .*; got True. Leave"),
    ({"num_classes": [3, 3], "label_space": "global", "classes": ([0, 1], [0, 1])},
     r"client 1's train examples must be of its classes, \[0 1\]; got class 2 "
     "for its example 1. Add the class"),
    ({"num_classes": [3, 3], "label_space": "global", "classes": ([0, 1], [0, 1, 3])},
     r"client 1's classes must be in \[0, num_classes=3\); got 3. Correct"),
]  # fmt: skip


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row[-1][:40])
def test_client_data_refuses(row):
    changed, *kind, message = row
    arguments = {"train": split_of(), "test": split_of(), "num_classes": [2, 3]}
    ClientData(**arguments)
    with pytest.raises(kind[0] if kind else ValueError, match=message):
        ClientData(**{**arguments, **changed})


BAD_PARTITIONS = [
    ({"train_indices": ([0, 2],)}, "must have the train indices of 2 clients, .*; got 1. Give eve"),
    ({"train_indices": ([0, 2], [1, 2])}, "every example must have one client; got index 2 in "
     "client 0's train indices and in client 1's train indices. Take it out of one"),
    ({"train_indices": ([0, 8], [1, 3])}, r"client 0's train indices must be in \[0, 8\), the "
     "number of the dataset's examples; got 8. Make the partition from the labels of this dataset"),
    ({"train_indices": ([0, 2], [1.0, 3.0])}, TypeError, "indices must be integers; got float64"),
    ({"train_indices": ([0, 1], [3])}, r"client 0's train examples must be of its classes, \[0 2\]"
     r"; got class 1 for its example 1. Add the class to the client's classes or"),
    ({"classes": ([0, 2], [])}, "every client must have a class; client 1 has none"),
]  # fmt: skip


@pytest.mark.parametrize("label_space", ["local", "global"])
@pytest.mark.parametrize("one_source", [False, True], ids=["two sources", "one source"])
@pytest.mark.parametrize("row", BAD_PARTITIONS, ids=lambda row: row[-1][:40])
def test_federate_refuses_a_partition(row, one_source, label_space):
    changed, *kind, message = row
    dataset = Dataset("four", TRAIN, None if one_source else TRAIN, num_classes=4)
    indices = {"train_indices": ([0, 2], [1, 3]), "test_indices": ([4], [5])}
    arguments = {"classes": ([0, 2], [1, 3]), **indices}
    assign_clients(dataset, Partition(**arguments), label_space)
    with pytest.raises(kind[0] if kind else ValueError, match=message):
        assign_clients(dataset, Partition(**{**arguments, **changed}), label_space)


def test_an_example_is_for_training_or_for_the_test():
    """This holds only if both are dealt from the same examples."""
    both = Partition(([0, 2], [1, 3]), ([0, 2], [1, 3]), ([4], [3]))
    assert assign_clients(Dataset("four", TRAIN, TRAIN, num_classes=4), both).num_clients == 2
    with pytest.raises(
        ValueError, match="got index 3 in client 1's train indices and in client 1's test indices"
    ):
        assign_clients(Dataset("four", TRAIN, None, num_classes=4), both)
