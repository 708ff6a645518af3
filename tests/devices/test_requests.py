"""What a resident client refuses, in one line and without any other effect."""

import json
import re
import struct

import numpy as np
import pytest
import tensorflow as tf

from tests.devices.federation import Site, two_steps
from tf_pflego.devices import messages


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return Site(two_steps(), 0, tmp_path_factory.mktemp("site") / "north")


ROUND = messages.numbered(
    "round", [np.int32(1), np.array([1, 2], np.int32), np.float32(1.5), np.int32(3), np.float32(2)]
)
EXCHANGE = {
    "ask": "exchange",
    **{"position": 0, "state": 0, "new": 1, "oldest": 0, "seed": [1, 2]},
    "evaluate": False,
}
EVALUATE = {"ask": "evaluate", "state": 0, "seed": [1, 2], "train": False}


def theta_of(site, name="message"):
    return messages.numbered(name, tf.nest.flatten(site.resident.first.theta))


def changed(name, array):
    return lambda arrays: arrays | {name: array}


def without(name):
    return lambda arrays: {key: array for key, array in arrays.items() if key != name}


FACTS = [
    ({"definition": "0" * 64}, "the definition must be .*, which north expects"),
    ({"ask": "predict"}, "`ask` must be one of introduce, exchange, evaluate"),
    ({"position": 1}, "`position` must be whole, from 0 on; got 1"),
    ({"state": 7, "new": 8}, "north has no state 7"),
    ({"state": 3, "new": 3}, "`new` must be whole, from 4 on; got 3"),
    ({"new": 10**30}, "it is no message"),
    ({"seed": [1, 2**31]}, "`seed` must be two int32"),
    ({"evaluate": 1}, "`evaluate` must be true or false"),
    ({"all_examples": 3}, "`all_examples` must be whole, from 5 on; got 3"),
    ({"known": [["message/9", "0" * 32]]}, "`known` must be pairs"),
    ({"known": [["__class__", {}]]}, "`known` must be pairs"),
]
ARRAYS = [
    (without("message/0"), "it must have 2 arrays called message"),
    (changed("message/2", np.zeros(3)), "there must be no array called 'message/2'"),
    (changed("message/1", np.zeros(199, np.float32)), r"of shape \[200\]; got float32 of shape"),
    (changed("message/1", np.full(200, np.nan, np.float32)), "all numbers must be finite"),
    (changed("round/2", np.float32(np.inf)), "all numbers must be finite"),
    (changed("round/0", np.zeros([], np.int64)), "round/0 must be int32"),
    (lambda arrays: {}, "it must have 5 arrays called round"),
]


def refused(site, message, arrays=(), **facts):
    before = sorted(path.name for path in site.journal.path.iterdir())
    reply, got = site.ask(arrays, **facts)
    assert list(reply) == ["error"]
    assert not got
    assert "\n" not in reply["error"]
    assert re.search(message, reply["error"]), reply["error"]
    assert sorted(path.name for path in site.journal.path.iterdir()) == before


CASES = [(facts, dict, message) for facts, message in FACTS]
CASES += [({}, change, message) for change, message in ARRAYS]


@pytest.mark.parametrize(("facts", "change", "message"), CASES)
def test_other_facts_or_arrays_are_refused(site, facts, change, message):
    refused(site, message, change(ROUND | theta_of(site)), **EXCHANGE | facts)


def test_other_arrays_of_a_test_are_refused(site):
    served = theta_of(site, "served")
    refused(site, "there must be no array", served | theta_of(site), **EVALUATE)
    refused(site, "it must have 2 arrays called served", **EVALUATE)


BODIES = [
    b"",
    b"\xff" * 4,
    struct.pack(">I", 2) + b"[]",
    struct.pack(">I", 13) + b'{"arrays":[]}' + b"more",
    struct.pack(">I", 2**31) + b"{}",
    b"\x80\x04\x95" + b"cos\nsystem\n",
    struct.pack(">I", 47) + b'{"arrays": [["message/0", "object", [1]]]}     ',
]


@pytest.mark.parametrize("body", BODIES)
def test_what_is_no_message_is_refused(site, body):
    reply, _ = site.resident.answer(body)
    facts, arrays = messages.unpacked(reply)
    assert set(facts) == {"error", "to"}
    assert not arrays


def test_after_all_that_it_answers(site):
    """Nothing of it has stayed, and a leaf that has come before need not come again."""
    arrays = ROUND | theta_of(site)
    first = site.ask(arrays, **EXCHANGE)
    assert first[0] == {"finite": True}
    assert site.journal.numbers() == [1]
    digests = [[f"message/{k}", wire_digest(arrays[f"message/{k}"])] for k in range(2)]
    again = site.ask(ROUND, **EXCHANGE, known=digests)
    assert json.dumps(again[0]) == json.dumps(first[0])
    for name, array in first[1].items():
        np.testing.assert_array_equal(again[1][name], array)
    missing = site.ask(ROUND, **EXCHANGE, known=[digests[0], ["message/1", "0" * 32]])
    assert missing == ({"missing": ["0" * 32]}, {})


def wire_digest(array):
    return messages.digest(np.asarray(array))
