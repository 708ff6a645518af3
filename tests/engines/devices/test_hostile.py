"""One client among others that uploads or counts what it should not, over real sockets."""

import dataclasses

import numpy as np
import pytest

from tests.devices.federation import NAMES, clients_like, config_of
from tests.engines.devices.clients import residents
from tests.methods import each_of
from tf_pflego.devices import serving
from tf_pflego.devices.definition import Definition
from tf_pflego.devices.resident import Resident
from tf_pflego.runs import reader
from tf_pflego.system import wire

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


CASES = {
    "a huge number": (filled("summed/", 3e38), "is left out of the round: its upload has norm"),
    "a long upload": (filled("summed/", 1e4), "is left out of the round: its upload has norm"),
    "more right than there are": (counted(900, 3), "must count examples; got 900, 3"),
    "fewer than none": (counted(-5, -3), "must count examples; got -5, -3"),
    "infinitely many": (counted(1e308, 1e308), "is not finite, or above 1e+15"),
}


def trained(tmp_path, monkeypatch, changed):
    """Trains with residents whose replies are `changed(resident, request, reply)`."""
    answer = Resident.answer

    def other(resident, request):
        reply, line = answer(resident, request)
        return changed(resident, request, reply), line

    monkeypatch.setattr(Resident, "answer", other)
    config = config_of(num_rounds=2, clients_per_round=3, eval_every=1)
    definition = Definition.of(config, {}, clients_like(), NAMES)
    with residents(definition, tmp_path) as sockets:
        places = {"sockets": str(sockets), "output_dir": str(tmp_path / "run")}
        devices = dataclasses.replace(
            config, engine="devices", client_names=",".join(NAMES), **places
        )
        serving.serve(devices, definition=definition)
    with np.load(tmp_path / "run/server.npz") as state:
        assert all(np.isfinite(state[name]).all() for name in state)
    return reader.records(tmp_path / "run/metrics.jsonl")


@pytest.mark.parametrize("what", each_of(CASES, ("a huge number",)))
def test_one_client_does_not_stop_the_others(what, tmp_path, monkeypatch, capsys):
    change, said = CASES[what]

    def hostile(resident, request, reply):
        if resident.name != HOSTILE:
            return reply
        facts, arrays = wire.unpacked(reply)
        return wire.packed(*change(facts, dict(arrays)))

    records = trained(tmp_path, monkeypatch, hostile)
    assert [record["participants"] for record in records] == [2, 2]
    (line, *_) = [one for one in capsys.readouterr().err.splitlines() if said in one]
    assert line.startswith(f"tf_pflego: {HOSTILE} ")


def test_a_test_that_nobody_answers_has_no_metric(tmp_path, monkeypatch):
    def silent(resident, request, reply):
        if wire.unpacked(request)[0]["ask"] != "evaluate":
            return reply
        return wire.packed({"error": "no", "to": wire.answer_to(request)}, {})

    records = trained(tmp_path, monkeypatch, silent)
    assert [record["participants"] for record in records] == [3, 3]
    assert not any("test_accuracy/client_mean" in record for record in records)
