"""One client among others that uploads or counts what it should not, over real sockets."""

import numpy as np
import pytest

from tests.devices import federation
from tests.devices.federation import NAMES, clients_like, config_of
from tests.devices.server.clients import serve
from tf_pflego.devices import messages
from tf_pflego.devices.resident import Resident
from tf_pflego.runs import reader

HOSTILE = NAMES[2]


def filled(name, value):
    """Arrays of this name have this value alone."""

    def change(facts, arrays):
        chosen = {key: np.full_like(a, value) for key, a in arrays.items() if name in key}
        return facts, arrays | chosen

    return change


def counted(right, examples):
    def change(facts, arrays):
        pair = np.array([right, examples], np.float64)
        return facts, arrays | {key: pair for key in arrays if key.endswith("test/accuracy")}

    return change


def of_norm(length):
    """What is clipped of an upload has this norm; whether it was below the bound stays."""

    def change(facts, arrays):
        long = {key: a for key, a in arrays.items() if key.startswith("summed/") and a.ndim}
        if long:
            scale = length / np.sqrt(sum((a.astype(float) ** 2).sum() for a in long.values()))
            arrays |= {key: (scale * a).astype(a.dtype) for key, a in long.items()}
        return facts, arrays

    return change


BOUND = 0.05
PRIVATE = {
    **{"clip_norm": BOUND, "dp_noise_multiplier": 0.1, "client_weights": "uniform"},
    **{"checkpoint_every": 1},
}
# What it does, round by round, and what is said of that.
CASES = [
    (filled("summed/", 3e38), "is excluded from round 1: its upload has norm"),
    (filled("summed/", 1e4), "is excluded from round 2: its upload has norm"),
    (counted(900, 3), "must count examples; got 900, 3"),  # More right than there are.
    (counted(-5, -3), "must count examples; got -5, -3"),
    (counted(1e308, 1e308), "is not finite, or above 1e+15"),
    (counted(2, 2), "count the client's examples, 3 at most; got 2"),  # It had 3.
]


def trained(tmp_path, monkeypatch, changed, num_rounds=2, **settings):
    """Trains with residents whose replies are `changed(resident, request, reply)`."""
    answer, last = Resident.answer, {}

    def other(resident, request):
        last[resident.name] = messages.unpacked(request)[0]["ask"]
        reply, line = answer(resident, request)
        return changed(resident, request, reply), line

    monkeypatch.setattr(Resident, "answer", other)
    of_server = {name: settings.pop(name) for name in settings.keys() & {"checkpoint_every"}}
    config = config_of(num_rounds=num_rounds, clients_per_round=3, eval_every=1, **settings)
    clients = clients_like(uniform=config.client_weights == "uniform")
    serve(config, clients, tmp_path, of_server=of_server, local_steps=1)
    assert last == dict.fromkeys(NAMES, "end")
    with np.load(tmp_path / "run/server.npz") as state:
        assert all(np.isfinite(state[name]).all() for name in state)
    return reader.records(tmp_path / "run/metrics.jsonl")


def hostile(*changes):
    """Lets one client's replies be changed, in each round in another way."""

    def changed(resident, request, reply):
        asked, _ = messages.unpacked(request)
        number = asked.get("round", asked.get("new"))  # A round has one exchange.
        if resident.name != HOSTILE or number is None:
            return reply
        facts, arrays = messages.unpacked(reply)
        return messages.packed(*changes[number - 1](facts, dict(arrays)))

    return changed


def test_one_client_does_not_stop_the_others(tmp_path, monkeypatch, caplog):
    changes, said = zip(*CASES, strict=True)
    records = trained(tmp_path, monkeypatch, hostile(*changes), len(CASES))
    assert [record["participants"] for record in records] == [2] * len(CASES)
    for one in said:
        (line, *_) = [line for line in caplog.messages if one in line]
        assert line.startswith(f"{HOSTILE} ")


def test_the_first_count_of_a_client_has_the_limit_of_what_it_may_tell(
    tmp_path, monkeypatch, caplog
):
    trained(tmp_path, monkeypatch, hostile(counted(2e7, 2e7)), 1)
    assert "count the client's examples, 1e+07 at most; got 2e+07" in caplog.text


def test_a_client_weighs_as_it_has_told(tmp_path, monkeypatch, caplog):
    def change(facts, arrays):
        return facts, {key: a if a.ndim else np.full_like(a, 0.9) for key, a in arrays.items()}

    records = trained(tmp_path, monkeypatch, hostile(change), 1, algorithm="fedavg")
    assert records[0]["participants"] == 2
    assert f"{HOSTILE} is excluded from round 1: it must weigh 0.389, by its" in caplog.text


def test_a_client_with_many_examples_takes_part(tmp_path, monkeypatch):
    """What it uploads is averaged by examples, and so thousands of times the others'."""
    own = federation.site_of

    def site_of(number):
        repeats = 4_000 if number == 0 else 1
        return {name: np.repeat(array, repeats, axis=0) for name, array in own(number).items()}

    monkeypatch.setattr(federation, "site_of", site_of)
    records = trained(tmp_path, monkeypatch, lambda resident, request, reply: reply)
    assert [record["participants"] for record in records] == [3, 3]


def test_no_upload_of_a_private_run_is_longer_than_its_bound(tmp_path, monkeypatch, caplog):
    changed = hostile(of_norm(BOUND), of_norm(1.1 * BOUND))
    trained(tmp_path, monkeypatch, changed, **PRIVATE)
    (line,) = [one for one in caplog.messages if "its upload is longer than the bound" in one]
    assert line.startswith(f"{HOSTILE} is excluded from round 2")


@pytest.mark.thorough
def test_a_test_that_nobody_answers_has_no_metric(tmp_path, monkeypatch):
    def silent(resident, request, reply):
        if messages.unpacked(request)[0]["ask"] != "evaluate":
            return reply
        return messages.packed({"error": "no", "to": messages.answer_to(request)}, {})

    records = trained(tmp_path, monkeypatch, silent)
    assert [record["participants"] for record in records] == [3, 3]
    assert not any("test_accuracy/client_mean" in record for record in records)
