"""PGFed, PGFedMo and PGFed-CE against a float64 oracle that draws the same batches."""

import numpy as np

from tests.algorithms.mini_batches import (
    ORACLE_TOLERANCE,
    assert_close,
    combine,
    dot,
    draw,
    flat,
    own,
    rounds_of,
    sgd,
    simulation_of,
    weighted_mean,
)
from tests.methods import by_task
from tests.oracles import batches, network

PGFED = {
    "plain": ("pgfed", {}),
    "momentum": ("pgfedmo", {"risk_momentum": 0.6}),
    "CE": ("pgfed_ce", {}),
    "mu = 0": ("pgfed", {"risk_weight": 0.0}),
    "bound": ("pgfed", {"risk_learning_rate": 0.2}),  # Some of A stops at 0.
}


@by_task("name,config", PGFED, "classification", "regression", quick=3)
def test_pgfed_and_its_variants(tiny_model, tiny_clients, name, config):
    """Weights, A, mu grad_j and g1_j."""
    asked = {"risk_weight": 0.3, "risk_learning_rate": 0.05} | config
    mu, a_rate, b = asked["risk_weight"], asked["risk_learning_rate"], asked.get("risk_momentum", 0)
    simulation = simulation_of(name, tiny_model, tiny_clients, **asked)
    theta = flat(simulation.server_state.weights)
    zeros = [np.zeros_like(w) for w in theta]
    a, last = np.full([3, 3], 1 / simulation.federation.mean_clients_per_round), {}
    kept, trained = [zeros] * 3, {}
    for number, participants in rounds_of(simulation):
        uploads = {}
        for client in participants:
            mixed, mean = zeros, zeros
            for j, (g, _) in last.items():
                mixed = combine(mixed, mu * a[client, j], g)
                mean = combine(mean, mu / len(last), g)
            kept[client] = combine([b * w for w in kept[client]], 1 - b, mixed)
            weights, row, optimizer = theta, a[client].copy(), sgd()
            for x, y in draw(tiny_clients, client, number):
                slopes = {j: dot(mean, weights) for j in last}
                if name == "pgfed_ce":
                    slopes = {j: mu * dot(g, theta) for j, (g, _) in last.items()}
                gradient = batches.gradient(weights, x, y)
                weights = optimizer.step(weights, combine(gradient, 1, kept[client]))
                for j, (_, offset) in last.items():
                    row[j] = max(0, row[j] - a_rate * (offset + slopes[j]))
            x, y = network.of_client(tiny_clients.train, client)
            gradient, risk = (
                batches.gradient(weights, x, y),
                network.loss(weights[:-1], weights[-1], x, y),
            )
            uploads[client] = gradient, mu * (risk - dot(gradient, weights))
            a[client], trained[client] = row, weights
        models = [trained[client] for client in participants]
        theta, last = weighted_mean(models, tiny_clients, participants), uploads
        simulation.run_round()
        state = simulation.server_state
        assert_close(flat(state.weights), theta)
        np.testing.assert_allclose(state.risk_weights, a, atol=ORACLE_TOLERANCE)
        assert state.last.ids.numpy().tolist() == participants
        for slot, client in enumerate(participants):
            known, (g, offset) = [leaf[slot] for leaf in flat(state.last.kept)], uploads[client]
            assert_close(known, [*(mu * leaf for leaf in g), offset])
            assert_close(own(simulation)[client], trained[client])
            if name == "pgfedmo":
                assert_close(own(simulation, "risk_gradient")[client], kept[client])
    assert (a != 1 / simulation.federation.mean_clients_per_round).any() == (mu > 0)
    assert (a == 0).any() == (a_rate == 0.2)
