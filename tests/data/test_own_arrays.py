import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

import tf_pflego as pfl

# For each client, its classes.
CLASSES = ((3, 7), (0, 3, 9))
TRAIN_SIZES, TEST_SIZES = (6, 9), (2, 3)


def pairs_of(make_examples, sizes, dtype=np.int64):
    """Pairs of arrays whose labels go through the classes of their client in turn."""
    return [
        (make_examples(size), np.resize(np.asarray(classes, dtype), size))
        for size, classes in zip(sizes, CLASSES, strict=True)
    ]


def tables(size):
    return np.random.default_rng(size).normal(size=(size, 4))


def tokens(size):
    return np.random.default_rng(size).integers(0, 50_000, (size, 12))


def images(size):
    return np.random.default_rng(size).integers(0, 256, (size, 5, 5, 1), np.uint8)


def clients_of(make_examples, **keywords):
    train, test = (pairs_of(make_examples, sizes) for sizes in (TRAIN_SIZES, TEST_SIZES))
    return pfl.from_arrays(train, test, **keywords)


@pytest.mark.parametrize(
    ("make_examples", "stored"), [(tables, np.float32), (tokens, np.int32), (images, np.uint8)]
)
def test_clients_have_their_own_examples_and_labels_among_their_classes(make_examples, stored):
    clients = clients_of(make_examples, name="ours")
    assert (clients.num_clients, clients.dataset) == (2, "ours")
    assert clients.example_shape == make_examples(1).shape[1:]
    for split, sizes in ((clients.train, TRAIN_SIZES), (clients.test, TEST_SIZES)):
        assert split.examples.dtype == stored
        for client, size in enumerate(sizes):
            np.testing.assert_array_equal(split.of(client)[0], make_examples(size).astype(stored))
    assert [tuple(classes) for classes in clients.classes] == list(CLASSES)
    np.testing.assert_array_equal(clients.num_classes, [2, 3])
    np.testing.assert_array_equal(clients.train.of(0)[1], [0, 1, 0, 1, 0, 1])
    np.testing.assert_array_equal(clients.test.of(1)[1], [0, 1, 2])


def test_a_class_of_the_test_alone_is_a_class_of_the_client():
    clients = pfl.from_arrays([([[1.0], [2.0]], [8, 2])], [([[3.0]], [5])])
    assert list(clients.classes[0]) == [2, 5, 8]
    np.testing.assert_array_equal(clients.train.labels, [2, 0])
    np.testing.assert_array_equal(clients.test.labels, [1])


@pytest.mark.parametrize(("num_classes", "expected"), [(None, 10), (12, 12)])
def test_global_labels_stay(num_classes, expected):
    clients = clients_of(tables, label_space="global", num_classes=num_classes)
    assert [tuple(classes) for classes in clients.classes] == list(CLASSES)
    np.testing.assert_array_equal(clients.num_classes, [expected, expected])
    np.testing.assert_array_equal(clients.train.of(0)[1], [3, 7, 3, 7, 3, 7])


TABLES = {"train": pairs_of(tables, TRAIN_SIZES), "test": pairs_of(tables, TEST_SIZES)}
X, Y = TABLES["train"][1]


def second(pair):
    """Changes what client 1 trains on."""
    return {"train": [TABLES["train"][0], pair]}


BAD = [
    ({"test": TABLES["test"][:1]}, "must have one pair for each client; got 2 and 1 pairs. Remove"),
    (second((X, Y, Y)), TypeError, r"client 1's .* a pair \(examples, labels\); got 3 parts. Give"),
    ({"train": (X, Y), "test": (X, Y)}, TypeError, "must be a pair .*; got ndarray. Give one pair"),
    (second((X[:8], Y)), r"client 1's train examples must be \[9, ...\], one for each of its "
     r"labels; got shape \(8, 4\). Give every"),
    (second(([[1.0, 2.0, 3.0, 4.0], [5.0]], [0, 3])), "must all have .*; got ragged ones .* Pad"),
    (second((X[:, :3], Y)), r"client 1's train examples must be like client 0's, "
     r"float64 of shape \(4,\); got float64 of shape \(3,\). Prepare"),
    (second((X, Y.astype(np.float32))), TypeError,
     "client 1's train labels must be integers; got float32. If these are classes, "
     r"number them with `np.unique\(labels, return_inverse=True\)`, .* `task='regression'`"),
    (second((X, np.eye(10, dtype=int)[Y])), "train labels must be of rank 1, one .*; got "
     r"shape \(9, 10\). If they are one-hot, convert them with `labels.argmax\(axis=1\)`"),
    (second((X, np.tile([0, 1, 1], (9, 1)))), r"got shape \(9, 3\). Give one class for each "
     "example, or say what they are: `task='multi_label'` for several labels"),
    (second((np.array([*X[:8], X[0, :3]], object), Y)), "examples must all have .* Pad or cut"),
    (second((scipy.sparse.csr_array(X), Y)), TypeError, r"client 1's train examples must be dense; "
     r"got a csr_array, which is sparse or ragged. Convert it with `.toarray\(\)`"),
    (second((tf.sparse.from_dense(X), Y)), TypeError, "a SparseTensor, .* `tf.sparse.to_dense`"),
    (second((tf.ragged.stack([X[0, :2], *X[1:]]), Y)), TypeError, r"RaggedTensor, .*to_tensor\(\)"),
    (second((X, np.ma.masked_equal(Y, 9))), "labels must have no masked values; got "
     r"3, the first of them in example 2. Fill them in with `.filled\(VALUE\)`, or leave"),
    (second((X.astype(str), Y)), TypeError, r"client 1's train examples must be numbers .*; "
     r"got <U32. Convert numbers that were read as text with `.astype\(np.float32\)`; number "
     r"the values .* `np.unique\(column, " ".* make texts tokens"),
    (second((X, np.array(["cat", "dog", "cat"] * 3))), TypeError,
     r"client 1's train labels must be integers from 0 on; got <U3, such as 'cat'. Number "
     r"the classes with `np.unique\(labels, return_inverse=True\)`, over .* all clients"),
    (second((X, Y - 1)), r"train labels must be in \[0, .*; got -1 .* 0. Labels count from 0"),
    ({"class_names": "abcd"}, "different names, .* of all 10 global classes; got 4 names"),
    ({"class_names": "abacdefghi"}, "different names, .* global classes; got 'a'"),
    ({"class_names": [*"abcdefghi", "j\nk"]}, r"different names, .* global classes; got 'j\\nk'"),
    ({"class_names": [*"abcdefghi", 3]}, TypeError, "`class_names` must be text; got 3"),
]  # fmt: skip


@pytest.mark.parametrize("row", BAD, ids=lambda row: row[-1][:40])
def test_from_arrays_refuses(row):
    changed, *kind, message = row
    pfl.from_arrays(**TABLES)
    with pytest.raises(kind[0] if kind else ValueError, match=message):
        pfl.from_arrays(**{**TABLES, **changed})


def test_class_names_are_those_of_the_labels():
    names = ["cat", "dog", "eel", "fox", "gnu", "hen"]
    pairs = [(tables(2), [1, 4]), (tables(3), [0, 4, 2])]
    clients = pfl.from_arrays(pairs, pairs, class_names=names)
    assert clients.class_names_of(0) == ("dog", "gnu")
    assert clients.part(1, 2).class_names_of(0) == ("cat", "eel", "gnu")
    assert pfl.from_arrays(pairs, pairs).class_names_of(1) == ("0", "2", "4")
    in_all = {"num_classes": 6, "label_space": "global"}
    everywhere = pfl.from_arrays(pairs, pairs, class_names=names, **in_all)
    assert everywhere.class_names_of(0) == tuple(names)
