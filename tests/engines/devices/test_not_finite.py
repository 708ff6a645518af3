"""Whoever computes numbers that are not finite is left out as in a simulation, and named."""

import dataclasses

import pytest
from drill_runs import end

from tests.devices import federation
from tests.engines.devices.clients import residents
from tf_pflego.devices import serving
from tf_pflego.devices.definition import Definition
from tf_pflego.runs import training


@pytest.mark.thorough
def test_it_is_left_out_at_the_scale_of_those_who_report(tmp_path, monkeypatch, caplog):
    """Its absence would raise the scale, but it has reported: only its numbers do not count."""
    usual = federation.site_of

    def exploding(number):
        arrays = usual(number)
        if number == 1:
            arrays["train_examples"] = arrays["train_examples"] * 1e38
        return arrays

    monkeypatch.setattr(federation, "site_of", exploding)
    config = federation.config_of(num_rounds=2, clients_per_round=3)
    definition = Definition.of(config, {}, federation.clients_like())
    with residents(definition, tmp_path) as sockets:
        here = dataclasses.replace(
            config,
            engine="devices",
            sockets=str(sockets),
            client_names=",".join(federation.NAMES),
            output_dir=str(tmp_path / "served"),
        )
        serving.serve(here, definition=definition)
    there = dataclasses.replace(config, output_dir=str(tmp_path / "simulated"))
    training.run(there, clients=federation.clients_like())
    (records, _, _, server), (others, _, _, other) = map(
        end, (tmp_path / "served", tmp_path / "simulated")
    )
    assert server == other
    for record in [*records, *others]:
        assert (record["not_finite_clients"], record["dropped"]) == ([1], 0)
    assert "what client 1 computed is not finite" in caplog.text
