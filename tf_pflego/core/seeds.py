"""Random streams, each derived from the run's seed, a purpose and keys, never from a position."""

import hashlib
import os
from collections.abc import Sequence

import numpy as np


def generator(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """Returns the random stream of one purpose, such as "participation", from the run's seed.

    The keys distinguish streams of the same purpose, such as the round or the client id. Keys and
    seed are at least 0.
    """
    digest = hashlib.sha256(purpose.encode()).digest()[:16]
    words = np.frombuffer(digest, dtype="<u4").tolist()
    return np.random.default_rng(np.random.SeedSequence([seed, *words, *keys]))


def integer(seed: int, purpose: str, *keys: int) -> int:
    """Returns one integer in [0, 2**31), a seed for libraries that take one."""
    return int(generator(seed, purpose, *keys).integers(2**31))


def secret() -> np.ndarray:
    """Returns [2] int64, a secret from the system's secure source of random numbers."""
    return np.frombuffer(os.urandom(16), np.int64).copy()


def of_secret(secret: np.ndarray, purpose: str, *keys: int | np.ndarray) -> np.ndarray:
    """Returns [2] int64, a seed that only the holder of a secret can know.

    It is a keyed hash (BLAKE2b) of the purpose and the keys: a seed contains no information about
    other seeds, and a search has to try all 2^128 secrets.
    """
    message = hashlib.blake2b(purpose.encode() + b"\0", key=secret.tobytes(), digest_size=16)
    for key in keys:
        content = np.asarray(key, "<i8").tobytes()
        message.update(len(content).to_bytes(8, "little") + content)
    return np.frombuffer(message.digest(), "<i8").astype(np.int64)


def server_seed(seed: int, purpose: str, *keys: int) -> np.ndarray:
    """Returns [2] int32, a seed for TensorFlow's stateless random functions at the server."""
    return generator(seed, purpose, *keys).integers(2**31, size=2).astype(np.int32)


def client_seeds(
    seed: int, purpose: str, client_ids: Sequence[int] | np.ndarray, *keys: int
) -> np.ndarray:
    """Returns [c, 2] int32, a seed for TensorFlow's stateless random functions for every client.

    It is a number derived from seed, purpose and keys, and the client's id, below 2**31.
    """
    base = integer(seed, purpose, *keys)
    return np.stack([np.full(len(client_ids), base), np.asarray(client_ids)], axis=1).astype(
        np.int32
    )
