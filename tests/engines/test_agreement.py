"""Every algorithm under the TFF engine agrees with the in-process engine."""

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.test_contract import NAMES, TOYS, build
from tests.conftest import make_clients
from tf_pflego import algorithms
from tf_pflego.core.participation import Participation
from tf_pflego.training import Simulation

tff_engine = pytest.importorskip(
    "tf_pflego.engines.tff_engine", reason="the TFF engine is optional"
)

# float32 over five rounds on weights of order 1, where the engines sum over clients and examples in
# different orders.
ENGINE_TOLERANCE = 2e-6
ROUNDS = 5


def final_and_records(algorithm, clients, engine):
    """All states after some rounds, and the rounds' records."""
    participation = Participation(clients.num_clients, 2, "range", (0, 3))
    with Simulation(algorithm, clients, participation, engine, seed=6) as simulation:
        records = [simulation.run_round(evaluate=number % 2 == 0) for number in range(ROUNDS)]
        states = simulation.client_states(range(clients.num_clients))
        leaves = tf.nest.flatten((simulation.server_state, states))
        return [np.asarray(leaf) for leaf in leaves], records


def assert_agreement(algorithm, clients):
    (first, records), (second, others) = (
        final_and_records(algorithm, clients, engine) for engine in ("in_process", "tff")
    )
    for a, b in zip(first, second, strict=True):
        np.testing.assert_allclose(a, b, atol=ENGINE_TOLERANCE, rtol=ENGINE_TOLERANCE)
    for a, b in zip(records, others, strict=True):
        assert a.keys() == b.keys()
        for key in a:
            if key != "seconds" and not key.endswith("train_loss"):
                assert a[key] == b[key], key


@pytest.mark.parametrize("name", [*NAMES, *TOYS])
def test_tff_agrees_with_in_process(name, tiny_model, tiny_clients):
    assert_agreement(build(name, tiny_model), tiny_clients)


def test_what_is_too_large_for_a_message_goes_through_files(tiny_model, tiny_clients, monkeypatch):
    """States, messages to single clients and uploads all do, and the files are removed then."""
    boxes = []
    monkeypatch.setattr(tff_engine, "_MESSAGE_BYTES", 0)
    for name in ("Inbox", "Outbox"):
        box = getattr(tff_engine, name)
        monkeypatch.setattr(
            tff_engine, name, lambda *given, box=box: boxes.append(box(*given)) or boxes[-1]
        )
    assert_agreement(build("everything", tiny_model), tiny_clients)
    # An inbox and an outbox in both exchanges, with and without a test of the participants.
    assert len(boxes) == 8
    directories = [box._directory for box in boxes if hasattr(box, "_directory")]
    assert len(directories) == 4
    assert not any(directory.exists() for directory in directories)


def test_stored_images_are_read_as_in_process(tiny_model):
    """The worker reads uint8 images from files that it maps, at offsets that are not aligned."""
    data = make_clients((3, 8, 6), (2, 4, 3), (2, 3, 2))
    as_bytes = [
        type(split)(
            (split.examples * 40 + 128).clip(0, 255).astype(np.uint8), split.labels, split.offsets
        )
        for split in (data.train, data.test)
    ]
    data = type(data)(*as_bytes, data.num_classes)
    assert_agreement(algorithms.build("pflego", tiny_model, local_steps=3), data)
