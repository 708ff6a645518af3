"""Methods with all that the contract offers agree on the TFF engine with the in-process engine.

`tests/tff/test_process.py` compares methods of all kinds as processes of TFF with it.
"""

import dataclasses

import numpy as np
import pytest

from tests.algorithms.test_contract import build
from tests.conftest import make_clients
from tests.engines.agreement import assert_agreement, of_shapes
from tf_pflego import algorithms

pytest.importorskip("tensorflow_federated", reason="the TFF engine is optional")
from tf_pflego.tff.engine import tff_engine as tff_engine


@of_shapes
def test_tff_agrees_with_in_process(name, tiny_model, tiny_clients):
    assert_agreement(build(name, tiny_model), tiny_clients, "tff")


@pytest.mark.thorough
def test_what_is_too_large_for_a_message_goes_through_files(tiny_model, tiny_clients, monkeypatch):
    """States, messages to single clients and uploads all do, and the files are removed then."""
    boxes = []
    monkeypatch.setattr(tff_engine, "_MESSAGE_BYTES", 0)
    for name in ("Inbox", "Outbox"):
        box = getattr(tff_engine, name)
        monkeypatch.setattr(
            tff_engine, name, lambda *given, box=box: boxes.append(box(*given)) or boxes[-1]
        )
    assert_agreement(build("everything", tiny_model), tiny_clients, "tff")
    # An inbox and an outbox in both exchanges, with and without a test of the participants.
    assert len(boxes) == 8
    directories = [box._directory for box in boxes if hasattr(box, "_directory")]
    assert len(directories) == 4
    assert not any(directory.exists() for directory in directories)


def test_stored_images_are_read_as_in_process(tiny_model):
    """The worker reads uint8 images from files that it maps, at offsets that are not aligned.

    So it does of validation examples.
    """
    data = make_clients((3, 8, 6), (2, 4, 3), (2, 3, 2))

    def as_bytes(split):
        pixels = (split.examples * 40 + 128).clip(0, 255).astype(np.uint8)
        return dataclasses.replace(split, examples=pixels)

    data = type(data)(as_bytes(data.train), as_bytes(data.test), data.num_classes)
    data = data.with_validation(0.3)
    assert_agreement(algorithms.build("pflego", tiny_model, local_steps=3), data, "tff")


@pytest.mark.thorough
def test_blocks_of_examples_pass_as_in_process(tiny_model, tiny_clients):
    """What is kept of a block until the backward pass stays in the loops of the worker."""
    two_examples = 2 * tiny_model.activation_bytes_per_example
    model = tiny_model._in_blocks(two_examples, keep=True)
    pflego = algorithms.build("pflego", model, local_steps=3)
    assert_agreement(pflego, tiny_clients, "tff")
