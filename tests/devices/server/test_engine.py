"""A server and resident clients, each in a thread of its own, beside a simulation."""

import dataclasses

import numpy as np
import pytest

from tests.devices import federation
from tests.devices.federation import clients_like, config_of
from tests.devices.server.clients import serve
from tests.methods import thorough
from tf_pflego.devices import server_links
from tf_pflego.runs import reader, training
from tf_pflego.runs.callbacks import Callback


def ends_of(run):
    records = reader.records(run / "metrics.jsonl")
    for record in records:
        del record["seconds"]
    return dict(np.load(run / "server.npz")), records


def records_of_both(config, tmp_path):
    """Returns the records of a federation and of its simulation, whose states are the same bits."""
    serve(config, clients_like(), tmp_path)
    simulated = dataclasses.replace(config, output_dir=str(tmp_path / "simulated"))
    training.run(simulated, clients=clients_like())
    (state, records), (expected, others) = map(ends_of, (tmp_path / "run", tmp_path / "simulated"))
    assert state.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(state[name], array)
    return records, others


@pytest.mark.parametrize(("name", "per_round"), [("pgfed", 2), thorough("feddbe", 1)])
def test_a_federation_has_the_bits_of_its_simulation(name, per_round, tmp_path):
    config = config_of(num_rounds=3, algorithm=name, clients_per_round=per_round)
    records, others = records_of_both(config, tmp_path)
    assert records == others
    table = reader.columns(tmp_path / "run/clients.csv")
    assert table["test_examples"] == ["3", "3", "3"] and not any(table["classes"])


class GoesAway(Callback):
    """A client that cannot be reached from the second round to the third, nor at their tests."""

    def __init__(self, socket):
        self.socket, self.target = socket, None

    def on_round_end(self, simulation, record):
        settings = simulation._engine.place.settings
        if record["round"] == 1:
            self.target = self.socket.readlink()
            self.socket.unlink()
            object.__setattr__(settings, "round_timeout", 0.5)
        elif record["round"] == 3:
            self.socket.symlink_to(self.target)
            object.__setattr__(settings, "round_timeout", 600.0)


@pytest.mark.thorough
def test_a_client_that_is_away_is_said_once_and_so_is_its_return(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(server_links, "_SHORT_SECONDS", 60.0)
    config = config_of(num_rounds=5, clients_per_round=3, eval_every=1)
    away = GoesAway(tmp_path / "sockets/node_2.socket")
    serve(config, clients_like(), tmp_path, [away], {"min_reports": 2})
    name = federation.NAMES[2]
    assert [line for line in caplog.messages if line.startswith(f"{name} ")] == [
        f"{name} is excluded from round 2: it has not answered in time",
        f"{name} is back",
    ]
    _, records = ends_of(tmp_path / "run")
    assert [record["participants"] for record in records] == [3, 2, 2, 3, 3]


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
    records, others = records_of_both(config_of(num_rounds=2, clients_per_round=3), tmp_path)
    for record in [*records, *others]:
        assert (record["not_finite_clients"], record["dropped"]) == ([1], 0)
    assert "what client 1 computed is not finite" in caplog.text
