"""Fingerprints, which identify own clients in another run and in another order.

A fingerprint is made from the client's training and test examples: their values, dtype and shape,
and the global class of each, in order. It does not depend on the label space, on names, or on other
clients.
"""

from __future__ import annotations

import hashlib

import numpy as np

from tf_pflego.data.client_split import ClientSplit

SIZE = 16  # bytes of a fingerprint
MOST_ROWS = 2**16  # The least so many digests are a sample, the same of equal rows anywhere.


def of_rows(examples: np.ndarray) -> np.ndarray:
    """Returns [N] uint64, a digest of each of the examples."""
    rows = map(np.ascontiguousarray, examples)
    return np.frombuffer(
        b"".join(hashlib.blake2b(row, digest_size=8).digest() for row in rows), np.uint64
    )


def of(
    train: ClientSplit, test: ClientSplit, classes: tuple[np.ndarray, np.ndarray] | None
) -> np.ndarray:
    """Returns [I, 16] uint8, the fingerprint of each client.

    In the local label space, `classes` has the classes of all clients end to end, and their
    offsets.
    """
    examples, splits = train.examples, [(train, train.labels), (test, test.labels)]
    kind = f"{examples.dtype.newbyteorder('<').str} {examples.shape[1:]}".encode()
    if classes is not None:
        flat, offsets = classes
        splits = [(s, flat[np.repeat(offsets[:-1], s.sizes) + labels]) for s, labels in splits]
    digests = []
    for client in range(len(train.sizes)):
        digest = hashlib.blake2b(kind, digest_size=SIZE)
        for split, labels in splits:
            rows = slice(split.offsets[client], split.offsets[client + 1])
            digest.update(np.int64(len(labels[rows])).astype("<i8"))
            digest.update(np.ascontiguousarray(labels[rows]))
            digest.update(np.ascontiguousarray(split.examples[rows]))
        digests.append(digest.digest())
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, SIZE)
