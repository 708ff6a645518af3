"""How the states and records of an engine are compared with those of the engine in process."""

import numpy as np
import pytest
import tensorflow as tf

from tests.comparison import assert_near
from tests.conftest import CLASSIFICATION
from tests.methods import thorough
from tf_pflego.core.participation import Participation
from tf_pflego.simulation.simulation import Simulation

# float32 over five rounds on weights of order 1, where the engines sum over clients and examples in
# different orders.
ENGINE_TOLERANCE = 2e-6
STATISTIC_TOLERANCE = 1e-5
ROUNDS = 5


# All that the contract offers, averages, a first exchange with all clients, and labels that are no
# classes. PFLEGO is quick in the test of stored images.
CASES = [("feddane", CLASSIFICATION), ("feddbe", CLASSIFICATION), ("pflego", "regression")]
of_shapes = pytest.mark.parametrize(
    ("name", "tiny_model", "tiny_clients"),
    [
        ("everything", CLASSIFICATION, CLASSIFICATION),
        *(thorough(name, task, task) for name, task in CASES),
    ],
    indirect=["tiny_model", "tiny_clients"],
)

# The engines that can be tested here, for a test of each. The quick tests compare others than that
# in process where they are the subject.
ENGINES = [
    "in_process",
    *(
        pytest.param(name, marks=[pytest.mark.lines(line), pytest.mark.thorough])
        for name, line in (("tff", "tff"), ("ray", "current"))
    ),
]


def final_and_records(algorithm, clients, engine):
    """All states after some rounds, and the rounds' records.

    Each round is evaluated, or each other one of the method with all that the contract offers:
    rounds with and without are traced apart.
    """
    participation = Participation(clients.num_clients, 2, "range", (0, 3))
    every = 2 if algorithm.name == "everything" else 1
    with Simulation(algorithm, clients, participation, engine, seed=6) as simulation:
        records = [simulation.run_round(evaluate=number % every == 0) for number in range(ROUNDS)]
        states = simulation.client_states(range(clients.num_clients))
        leaves = tf.nest.flatten((simulation.server_state, states))
        return [np.asarray(leaf) for leaf in leaves], records


def assert_agreement(algorithm, clients, other):
    """Asserts that another engine gives what the engine in process gives."""
    (first, records), (second, others) = (
        final_and_records(algorithm, clients, engine) for engine in ("in_process", other)
    )
    assert_near(first, second, atol=ENGINE_TOLERANCE, rtol=ENGINE_TOLERANCE)
    for a, b in zip(records, others, strict=True):
        assert a.keys() == b.keys()
        for key in a:
            if "test_" in key and "accuracy" not in key:
                assert a[key] == pytest.approx(b[key], rel=STATISTIC_TOLERANCE), key
            elif key != "seconds" and not key.endswith("train_loss"):
                assert a[key] == b[key], key
