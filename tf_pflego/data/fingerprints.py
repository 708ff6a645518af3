"""By what a client of a user's own is known again, also in another run and in another order.

A fingerprint follows from what the client trains on and is tested on: the values of the examples,
their dtype and shape, and the global class of each, in their order. It does not depend on the label
space, on names, or on which other clients there are.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tf_pflego.data.clients import ClientData

SIZE = 16  # bytes of a fingerprint


def of(clients: ClientData) -> np.ndarray:
    """Returns [I, 16] uint8, the fingerprint of each client."""
    examples = clients.train.examples
    kind = f"{examples.dtype.newbyteorder('<').str} {examples.shape[1:]}".encode()
    splits = [(split, _global_labels(clients, split)) for split in (clients.train, clients.test)]
    digests = []
    for client in range(clients.num_clients):
        digest = hashlib.blake2b(kind, digest_size=SIZE)
        for split, labels in splits:
            rows = slice(split.offsets[client], split.offsets[client + 1])
            digest.update(np.int64(len(labels[rows])).astype("<i8"))
            digest.update(labels[rows])
            digest.update(np.ascontiguousarray(split.examples[rows]))
        digests.append(digest.digest())
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, SIZE)


def _global_labels(clients, split):
    """Returns [n] int32, the global class of each example of a split."""
    if clients.label_space == "global":
        return split.labels
    classes, offsets = clients.joined_classes
    return classes[np.repeat(offsets[:-1], split.sizes) + split.labels]
