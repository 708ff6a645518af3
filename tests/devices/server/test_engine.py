"""A server and resident clients, each in a thread of its own, beside a simulation."""

import dataclasses

import numpy as np
import pytest

from tests.devices import federation
from tests.devices.federation import clients_like, config_of
from tests.devices.server.clients import serve
from tests.methods import thorough
from tf_pflego.runs import reader, training


def ends_of(run):
    records = reader.records(run / "metrics.jsonl")
    for record in records:
        del record["seconds"]
    return dict(np.load(run / "server.npz")), records


@pytest.mark.parametrize(
    "settings",
    [{"algorithm": "pgfed"}, thorough({"algorithm": "feddbe", "clients_per_round": 1})],
    ids=["pgfed", "feddbe"],
)
def test_a_federation_has_the_bits_of_its_simulation(settings, tmp_path):
    config = config_of(num_rounds=3, **settings)
    serve(config, clients_like(), tmp_path)
    simulated = dataclasses.replace(config, output_dir=str(tmp_path / "simulated"))
    training.run(simulated, clients=clients_like())
    state, records = ends_of(tmp_path / "run")
    expected, expected_records = ends_of(tmp_path / "simulated")
    assert state.keys() == expected.keys() and records == expected_records
    for name, array in expected.items():
        np.testing.assert_array_equal(state[name], array)
    table = reader.columns(tmp_path / "run/clients.csv")
    assert table["test_examples"] == ["3", "3", "3"] and not any(table["classes"])


@pytest.mark.thorough
def test_none_of_all_clients_is_to_spare(tmp_path):
    settings = {"algorithm": "feddbe", "clients_per_round": 1, "spare_clients": 1}
    serve(config_of(num_rounds=2, **settings), clients_like(), tmp_path)
    records = reader.records(tmp_path / "run/metrics.jsonl")
    assert records[0]["participants"] == 3 and records[0]["dropped"] == 0
    assert records[1]["participants"] in (1, 2)  # Two may report in the same moment.


@pytest.mark.thorough
def test_what_is_not_finite_is_left_out_at_the_scale_of_those_who_report(
    tmp_path, monkeypatch, caplog
):
    """Its absence would raise the scale, but it has reported: only its numbers do not count."""
    usual = federation.site_of

    def exploding(number):
        arrays = usual(number)
        if number == 1:
            arrays["train_examples"] = arrays["train_examples"] * 1e38
        return arrays

    monkeypatch.setattr(federation, "site_of", exploding)
    config = config_of(num_rounds=2, clients_per_round=3)
    serve(config, clients_like(), tmp_path)
    there = dataclasses.replace(config, output_dir=str(tmp_path / "simulated"))
    training.run(there, clients=clients_like())
    (state, records), (expected, others) = map(ends_of, (tmp_path / "run", tmp_path / "simulated"))
    for name, array in expected.items():
        np.testing.assert_array_equal(state[name], array)
    for record in [*records, *others]:
        assert (record["not_finite_clients"], record["dropped"]) == ([1], 0)
    assert "what client 1 computed is not finite" in caplog.text
