"""What comes back from clients, be it late, wrong or hostile, and what is kept of it."""

import json
import os
import pathlib
import pickle
import struct
import tempfile
import threading

import numpy as np
import pytest

from tests.devices.server.clients import NAMES, framed, introduced, links_to, scripted
from tf_pflego.devices import frames, messages, server_links
from tf_pflego.devices.server_links import Request

EXPECTED = np.arange(3, dtype=np.float32)
REQUEST = Request({"ask": "exchange"}, {"message/0": np.ones(300, np.float32)})


def _checked(facts, arrays):
    (leaf,) = messages.leaves(arrays, "summed", [EXPECTED])
    return leaf


def _good(request, **facts):
    about = {"to": messages.answer_to(request)} | facts
    return messages.packed(about, {"summed/0": EXPECTED})


def _saying(**facts):
    return lambda request: _good(request, **facts)


def _with_header(header, rest=b""):
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return struct.pack(">I", len(text)) + text + rest


def _with_array(dtype, shape, count):
    return _with_arrays(["summed/0", dtype, shape], rest=bytes(count))


def _with_arrays(*about, rest=b"", **facts):
    return lambda request: _with_header(
        {"arrays": list(about), "to": messages.answer_to(request)} | facts, rest
    )


BOMB = pathlib.Path(tempfile.gettempdir()) / f"tf_pflego_bomb_{os.getpid()}"


class _Bomb:
    """Writes a file if a pickle of it is read."""

    def __reduce__(self):
        return (open, (str(BOMB), "w"))


# What a client answers, and a word of why it is left out.
HOSTILE = {
    "nothing": (lambda request: b"", "no message"),
    "a pickle": (lambda request: pickle.dumps(_Bomb()), "header"),
    "random bytes": (lambda request: bytes(range(200)), "no message"),
    "a header without an end": (lambda request: struct.pack(">I", 90) + b"{", "no message"),
    "a header that is no JSON": (lambda request: _with_header(b"{]"), "no message"),
    "a header that is no object": (lambda request: _with_header(b"[]"), "no message"),
    "a header that is deep": (lambda request: _with_header(b"[" * 90 + b"]" * 90), "no message"),
    "a huge header": (lambda request: struct.pack(">I", 2**31) + b"{}", "header"),
    "too much": (lambda request: bytes(2**20 + 1), "at most 1048576 bytes"),
    "no arrays": (lambda request: _with_header({"to": messages.answer_to(request)}), "no message"),
    "to another request": (_saying(to="0" * 32), "another request"),
    "to no request": (_saying(to=None), "another request"),
    "a refusal with a control sequence": (_saying(error="\x1b[2Jno\nno"), "it says: ?[2Jno?no"),
    "arrays missing, again and again": (_saying(missing=["ab"]), "lacks arrays that were sent"),
    "another shape": (_with_array("float32", [4], 16), "of shape [3]"),
    "another dtype": (_with_array("int32", [3], 12), "float32"),
    "a dtype of objects": (_with_array("object", [3], 24), "dtype"),
    "a dtype of fields": (_with_array("f4,f4", [3], 24), "dtype"),
    "a negative shape": (_with_array("float32", [-1], 12), "shape"),
    "a shape of floats": (_with_array("float32", [3.0], 12), "shape"),
    "a shape without end": (_with_array("float32", [99] * 10**5, 0), "shape"),
    "more numbers than bytes": (_with_array("float32", [2**40], 0), "ends before"),
    "more bytes than numbers": (_with_array("float32", [3], 13), "after its last array"),
    "an array twice": (_with_arrays(*[["summed/0", "float32", [0]]] * 2), "called"),
    "one array too many": (
        _with_arrays(["summed/0", "float32", [3]], ["summed/1", "bool", [0]], rest=bytes(12)),
        "1 arrays called summed",
    ),
    "another name": (_with_arrays(["summed/1", "float32", [3]], rest=bytes(12)), "missing"),
}


@pytest.fixture(scope="module")
def sockets(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sockets")
    directory.chmod(0o700)
    return directory


@pytest.fixture(scope="module")
def federation(sockets):
    """Links to two clients that answer well and one whose answer a test decides."""
    answers = {}

    def of(name):
        return lambda request: introduced(request, name) or answers.get(name, _frame)(request)

    with scripted(sockets, "a", of(NAMES[0])), scripted(sockets, "b", of(NAMES[1])):
        with scripted(sockets, "c", of(NAMES[2])), links_to(sockets) as links:
            links.wait_for(3)
            yield links, answers


def _frame(request):
    return framed(_good(request))


@pytest.mark.parametrize("what", HOSTILE)
def test_an_answer_that_is_none_leaves_its_client_out(what, federation):
    links, answers = federation
    answer, reason = HOSTILE[what]
    answers[NAMES[2]] = lambda request: framed(answer(request))

    result = links.ask(dict.fromkeys(range(3), REQUEST), _checked, 2**20, at_least=3)

    assert sorted(result.replies) == [0, 1] and list(result.left_out) == [2]
    assert all(np.array_equal(one, EXPECTED) for one in result.replies.values())
    assert reason in result.left_out[2] and "\n" not in result.left_out[2]
    assert not BOMB.exists()
    assert len(result.left_out[2]) < 300


def test_a_client_that_answers_twice_is_left_out_and_a_link_that_breaks_is_tried_again(federation):
    links, answers = federation
    answers[NAMES[2]] = lambda request: 2 * _frame(request)
    assert "twice" in links.ask({2: REQUEST}, _checked, 2**20).left_out[2]
    broken = iter([None, (100).to_bytes(8, "big") + b"part"])
    answers[NAMES[2]] = lambda request: next(broken, _frame(request))
    assert list(links.ask({2: REQUEST}, _checked, 2**20).replies) == [2]


def test_who_is_late_is_not_waited_for_once_enough_have_answered(federation):
    links, answers = federation
    late = threading.Event()
    answers[NAMES[2]] = lambda request: late.wait(60) and None
    requests = dict.fromkeys(range(3), REQUEST)
    result = links.ask(requests, _checked, 2**20, at_most=2)
    assert sorted(result.replies) == [0, 1] and result.left_out == {2: "others were sooner"}
    late.set()


@pytest.mark.thorough
def test_who_is_dead_costs_a_deadline_once(federation, sockets, monkeypatch):
    """Its socket is there, as that of a carrier whose client has gone."""
    (links, answers), is_dead, asked = federation, threading.Event(), []

    def dead(request):
        asked.append(messages.unpacked(request)[0]["ask"])
        return None if is_dead.is_set() else introduced(request, NAMES[2]) or _frame(request)

    is_dead.set()
    monkeypatch.setattr(server_links, "_SHORT_SECONDS", 0.5)
    monkeypatch.setattr(links, "_introduce", lambda node: None)  # `d` is known, not looked for.
    monkeypatch.setitem(answers, NAMES[2], _frame)
    requests = dict.fromkeys(range(3), REQUEST)
    with scripted(sockets, "d", dead):
        monkeypatch.setitem(links._known, NAMES[2], {"node": "d", "examples": 5})
        object.__setattr__(links.settings, "round_timeout", 1.5)
        first = links.ask(requests, _checked, 2**20)
        object.__setattr__(links.settings, "round_timeout", 600.0)
        second = links.ask(requests, _checked, 2**20)  # It would take ten minutes.
        for answered in (first, second):
            assert answered.left_out == {2: "it has not answered in time"}
        assert "exchange" not in asked[asked.index("introduce") :]
        is_dead.clear()
        third = links.ask(requests, _checked, 2**20)
        assert sorted(third.replies) == [0, 1, 2] and asked[-2:] == ["introduce", "exchange"]


def test_a_directory_that_others_may_write_to_is_refused(tmp_path):
    tmp_path.chmod(0o770)
    with pytest.raises(PermissionError, match=r"open to you only \(mode 700\); .* has mode 770"):
        links_to(tmp_path).__enter__()


def test_what_a_client_has_is_not_sent_again(federation, monkeypatch):
    links, answers = federation
    answers.clear()
    links.ask({1: REQUEST}, _checked, 2**20)
    ask, sent = frames.ask, []
    monkeypatch.setattr(
        frames, "ask", lambda link, body, most: (sent.append(len(body)), ask(link, body, most))[1]
    )
    links.ask({1: REQUEST}, _checked, 2**20)
    assert sent.pop() < 400 and not sent  # The array alone has 1200 bytes.
    # One that has forgotten it, as after a restart, says so and is sent it again.
    first = iter([True])
    answers[NAMES[1]] = lambda request: (
        framed(_good(request, missing=["x"])) if next(first, False) else _frame(request)
    )
    assert list(links.ask({1: REQUEST}, _checked, 2**20).replies) == [1]
    assert sum(sent) > 1300


def test_a_name_belongs_to_the_node_that_came_with_it_first(federation, sockets):
    told = threading.Event()

    def answer(request, name=NAMES[0]):
        told.set()
        return introduced(request, name)

    for node, name in (("thief", NAMES[0]), ("stranger", "nobody\x1b[2J")):
        told.clear()
        with scripted(sockets, node, lambda request, name=name: answer(request, name)):
            assert told.wait(30)
    known = json.loads((sockets / "names.json").read_text())
    assert {name: one["node"] for name, one in known.items()} == dict(
        zip(NAMES, "abc", strict=True)
    )
    with links_to(sockets) as again:  # A server that starts again knows them all.
        again.wait_for(3, known=True)
        assert again.examples == [5, 5, 5]
