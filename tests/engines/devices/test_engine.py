"""A server and resident clients, each in a thread of its own, beside a simulation."""

import dataclasses

import numpy as np
import pytest

from tests.devices.federation import NAMES, clients_like, config_of
from tests.engines.devices.clients import residents
from tests.methods import thorough
from tf_pflego.devices import serving
from tf_pflego.devices.definition import Definition
from tf_pflego.runs import reader, training

ROUNDS = 3


def served(config, clients, directory):
    """Runs a federation; returns what server.npz and metrics.jsonl have."""
    definition = Definition.of(config, {}, clients, NAMES)
    with residents(definition, directory) as sockets:
        devices = dataclasses.replace(
            config,
            engine="devices",
            sockets=str(sockets),
            client_names=",".join(NAMES),
            output_dir=str(directory / "run"),
        )
        serving.serve(devices, definition=definition)
    return ends_of(directory / "run")


def ends_of(run):
    records = reader.records(run / "metrics.jsonl")
    for record in records:
        del record["seconds"]
    return dict(np.load(run / "server.npz")), records


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "pgfed"},
        thorough({"algorithm": "feddbe", "clients_per_round": 1}),
    ],
    ids=["pgfed", "feddbe"],
)
def test_a_federation_has_the_bits_of_its_simulation(settings, tmp_path):
    config, clients = config_of(num_rounds=ROUNDS, **settings), clients_like()
    state, records = served(config, clients, tmp_path)
    simulated = dataclasses.replace(config, output_dir=str(tmp_path / "simulated"))
    training.run(simulated, clients=clients)
    expected, expected_records = ends_of(tmp_path / "simulated")
    assert state.keys() == expected.keys() and records == expected_records
    for name, array in expected.items():
        np.testing.assert_array_equal(state[name], array)
    table = reader.columns(tmp_path / "run/clients.csv")
    assert table["test_examples"] == ["3", "3", "3"] and not any(table["classes"])


@pytest.mark.thorough
def test_none_of_all_clients_is_to_spare(tmp_path):
    settings = {"algorithm": "feddbe", "clients_per_round": 1, "spare_clients": 1}
    _, records = served(config_of(num_rounds=2, **settings), clients_like(), tmp_path)
    assert records[0]["participants"] == 3 and records[0]["dropped"] == 0
    assert records[1]["participants"] in (1, 2)  # Two may report in the same moment.
