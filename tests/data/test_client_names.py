"""Clients have names, and are known again by their examples."""

import dataclasses

import numpy as np
import pytest

import tf_pflego as pfl
from tf_pflego.data import ClientData, client_names

NAMES = ("hospital_7", "Süd 2", "3")


def pair_of(name, size):
    rng = np.random.default_rng([len(name), size])
    return rng.normal(size=(size, 2)), np.resize([1, len(name)], size)


TRAIN = {name: pair_of(name, 6) for name in NAMES}
TEST = {name: pair_of(name, 2) for name in reversed(NAMES)}


def clients_of(names=NAMES, **keywords):
    pairs = ({name: split[name] for name in names} for split in (TRAIN, TEST))
    return pfl.from_arrays(*pairs, **keywords)


def test_a_dictionary_names_its_clients_in_the_order_of_the_training_examples():
    clients = pfl.from_arrays(TRAIN, TEST)
    assert clients.client_names == NAMES
    with pytest.raises(TypeError, match="since a split does not know names; got 'hospital_7'"):
        clients.train.of("hospital_7")
    for client, name in enumerate(NAMES):
        np.testing.assert_array_equal(clients.train.of(client)[0], np.float32(TRAIN[name][0]))
        np.testing.assert_array_equal(clients.test.of(client)[0], np.float32(TEST[name][0]))
    assert pfl.from_arrays(**named(np.array(NAMES))).client_names == NAMES
    assert pfl.from_arrays(**named(None)).client_names is None


def test_names_stay_with_their_clients():
    clients = clients_of()
    assert clients.part(1, 3).client_names == NAMES[1:]
    assert clients.shard(np.array([0, 2])).client_names == ("hospital_7", "3")
    assert clients.without([0]).client_names == NAMES[1:]
    assert clients.with_validation(0.5).client_names == NAMES
    first, second = clients.part(0, 1), clients.part(1, 3)
    assert second.joined_by(first).client_names == (*NAMES[1:], NAMES[0])
    with pytest.raises(ValueError, match=r"differ, in more than .*; got 'hospital_7' and"):
        clients.joined_by(first)
    nameless = dataclasses.replace(first, client_names=None)
    with pytest.raises(ValueError, match=r"and client names; got .* and no names. Prepare"):
        second.joined_by(nameless)


def named(names):
    """Clients that are given as lists, with names."""
    train, test = ([split[name] for name in NAMES] for split in (TRAIN, TEST))
    return {"train": train, "test": test, "client_names": names}


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"test": {"3": TEST["3"]}}, ValueError, "`test` lacks 'hospital_7'. Give the client"),
        ({"test": list(TEST.values())}, TypeError, "both be dictionaries, if one is; got list"),
        ({"client_names": NAMES}, ValueError, "not be given with dictionaries as `train`"),
        ({"train": {**TRAIN, "3": (TRAIN["3"][0], TRAIN["3"][1] / 2)}}, TypeError, "client 3's "
         "train labels must be integers"),
        ({"train": {**TRAIN, "hospital_7": (np.full((6, 2), np.nan), TRAIN["3"][1])}}, ValueError,
         "client hospital_7's train examples must be finite in float32; got nan"),
        (named(["a", "b"]), ValueError, "must be 3 names, one per client; got 2"),
        (named(["a", "b", "A"]), ValueError, "more than upper and lower case, .*; got 'a' and 'A'"),
        (named(["a", "b", "\x1b[31mc"]), ValueError, r"got '\\x1b\[31mc' with the .* U\+001B"),
        (named(["a", "b", " c"]), ValueError, "no space at the ends; got ' c'"),
        (named([1, 2, 3]), TypeError, r"must be text; got 1. Write numbers as `str\(number\)`"),
        (named("abc"), TypeError, "must be a sequence of text; got str"),
    ],
)  # fmt: skip
def test_names_that_do_not_tell_the_clients_apart_are_refused(changed, error, message):
    with pytest.raises(error, match=message):
        pfl.from_arrays(**{"train": TRAIN, "test": TEST} | changed)


def test_names_of_any_length_have_room_in_the_name_of_a_file():
    names = ["a" * 200, "a" * 199 + "b", "/" * 200, "日" * 200, "日" * 199 + "本", "short/one"]
    called = [client_names.in_file_name(name) for name in names]
    assert max(len(one.encode()) for one in called) <= 200
    assert len(set(called)) == len(names)
    assert called[-1] == "short%2Fone"


def test_fingerprints_follow_from_examples_and_classes_alone():
    clients = clients_of()
    prints = clients.fingerprints
    assert prints.shape == (3, 16) and prints.dtype == np.uint8
    assert len({row.tobytes() for row in prints}) == 3
    turned = clients_of(NAMES[::-1], label_space="global", name="other")
    np.testing.assert_array_equal(turned.fingerprints, prints[::-1])
    np.testing.assert_array_equal(clients.part(1, 2).fingerprints, prints[1:2])
    train, test = clients.train, clients.test
    examples, labels = train.examples.copy(), train.labels.copy()
    examples[7, 1] += 1  # Of the second client.
    labels[7] = 1 - labels[7]
    for changed, same in (
        ({"examples": examples}, [True, False, True]),
        ({"labels": labels}, [True, False, True]),
        ({"offsets": [0, 5, 12, 18]}, [False, False, True]),
    ):
        other = dataclasses.replace(clients, train=dataclasses.replace(train, **changed))
        assert (other.fingerprints == prints).all(axis=1).tolist() == same
    tokens = [
        dataclasses.replace(split, examples=split.examples.view(np.int32))
        for split in (train, test)
    ]
    assert (ClientData(*tokens, clients.num_classes).fingerprints != prints).any(axis=1).all()


def test_own_arrays_have_a_partition():
    clients = pfl.from_arrays(TRAIN, TEST).with_validation(0.5)
    partition = clients.partition
    examples = np.float32(np.concatenate([TRAIN[name][0] for name in NAMES]))
    for name, split in (("train", clients.train), ("validation", clients.validation)):
        rows = getattr(partition, f"{name}_indices")
        np.testing.assert_array_equal(examples[np.concatenate(rows)], split.examples)
    assert [own.tolist() for own in partition.test_indices] == [[0, 1], [2, 3], [4, 5]]
    assert [own.tolist() for own in partition.classes] == [[1, 10], [1, 5], [1]]
    part = clients.part(1, 3).whole_partition  # Which has no other than its own rows.
    assert [own.tolist() for own in part.train_indices] == [[0, 1, 2], [3, 4, 5]]
    assert [own.tolist() for own in part.validation_indices] == [[6, 7, 8], [9, 10, 11]]
