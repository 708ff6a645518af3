"""Every algorithm under the TFF engine agrees with the in-process engine."""

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.everything import build_everything
from tf_pflego import algorithms
from tf_pflego.core.participation import Participation
from tf_pflego.training import Simulation

pytest.importorskip("tensorflow_federated", reason="the TFF engine is optional")

# Sums over clients and examples are taken in another order; float32, weights of order 1, five rounds.
ENGINE_TOLERANCE = 2e-6
ROUNDS = 5


@pytest.mark.parametrize("name", [*sorted(algorithms.REGISTRY), "everything"])
def test_tff_agrees_with_in_process(name, tiny_model, tiny_clients):
    algorithm = build_everything(tiny_model) if name == "everything" else algorithms.build(name, tiny_model, local_steps=4)
    participation = Participation(3, 2, "range", (0, 3))
    finals, records = [], []
    for engine in ("in_process", "tff"):
        with Simulation(algorithm, tiny_clients, participation, engine, seed=6) as simulation:
            records.append([simulation.run_round(evaluate=number % 2 == 0) for number in range(ROUNDS)])
            finals.append(tf.nest.flatten((simulation.server_state, simulation.client_states(range(3)))))
    for a, b in zip(*finals, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=ENGINE_TOLERANCE, rtol=ENGINE_TOLERANCE)
    for a, b in zip(*records, strict=True):
        assert a.keys() == b.keys()
        for key in a.keys() - {"seconds", "train_loss"}:
            assert a[key] == b[key], key


def test_stored_images_are_read_as_in_process(tiny_model):
    """uint8 images, from files that the worker maps, at offsets that are not aligned."""
    from tests.conftest import make_clients

    data = make_clients((3, 8, 6), (2, 4, 3), (2, 3, 2))
    as_bytes = [
        type(split)((split.examples * 40 + 128).clip(0, 255).astype(np.uint8), split.labels, split.offsets)
        for split in (data.train, data.test)
    ]
    data = type(data)(*as_bytes, data.num_classes)
    algorithm = algorithms.build("pflego", tiny_model, local_steps=3)
    heads = []
    for engine in ("in_process", "tff"):
        with Simulation(algorithm, data, Participation(3, 3), engine) as simulation:
            simulation.run_round(evaluate=True)
            heads.append(simulation.client_states(range(3)).head)
    np.testing.assert_allclose(*heads, atol=ENGINE_TOLERANCE)
