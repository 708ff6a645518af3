"""The passes of the in-process engine."""

import numpy as np

from tf_pflego import algorithms
from tf_pflego.core.participation import Participation
from tf_pflego.engines import in_process
from tf_pflego.training import Simulation


def test_passes_of_any_size_give_the_same_round(tiny_model, tiny_clients, monkeypatch):
    algorithm = algorithms.build("pflego", tiny_model, local_steps=3)
    finals = []
    for clients_a_pass in (1, 3):
        budget = 10**9 if clients_a_pass == 3 else 1
        monkeypatch.setattr(in_process, "_ACTIVATION_BYTES_PER_PASS", budget)
        simulation = Simulation(algorithm, tiny_clients, Participation(3, 3), "in_process")
        record = simulation.run_round(evaluate=True)
        finals.append([*simulation.server_state.theta, simulation.store.get(range(3)).head, *record.values()][:-1])
    for a, b in zip(*finals, strict=True):
        if np.ndim(a):
            np.testing.assert_allclose(a, b, atol=1e-6)


def test_features_update_and_client_update_are_one_algorithm(tiny_model, tiny_clients):
    """The pass over all participants gives what each client's own update gives."""
    import dataclasses

    algorithm = algorithms.build("pflego", tiny_model, local_steps=3)
    (exchange,) = algorithm.exchanges
    apart = dataclasses.replace(algorithm, exchanges=(dataclasses.replace(exchange, features_update=None),))
    finals = []
    for each in (algorithm, apart):
        simulation = Simulation(each, tiny_clients, Participation(3, 2), "in_process")
        for _ in range(3):
            simulation.run_round(evaluate=True)
        finals.append([*simulation.server_state.theta, simulation.store.get(range(3)).head])
    for a, b in zip(*finals, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
