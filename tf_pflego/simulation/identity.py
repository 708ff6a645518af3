"""What simulations must agree on, to go on from one another's checkpoints."""

import dataclasses
import json
import zlib
from typing import Any

import numpy as np

from tf_pflego.core import nests
from tf_pflego.core.nests import Structure
from tf_pflego.core.participation import Participation
from tf_pflego.data.clients import ClientData


def identity(
    algorithm: str,
    seed: int,
    data: ClientData,
    participation: Participation,
    server_spec: Structure,
    client_spec: Structure,
) -> dict[str, Any]:
    """Returns what tells a simulation from others, as JSON can hold it.

    Args:
      algorithm: The name of its algorithm.
      seed: Its seed.
      data: Its clients' data.
      participation: How its participants are drawn.
      server_spec: The spec of the server's state.
      client_spec: The spec of a client's state.
    """
    drawn = dataclasses.asdict(participation)
    bounds = participation.clients_per_round_range
    drawn["clients_per_round_range"] = list(bounds) if bounds else None
    if not participation.dropout_rate:  # Checkpoints of earlier versions do not name it.
        del drawn["dropout_rate"]
    return {
        "algorithm": algorithm,
        "seed": int(seed),
        "num_clients": data.num_clients,
        "participation": drawn,
        "server_state": _shapes(server_spec),
        "client_state": _shapes(client_spec),
        "data_crc32": _crc32(data),
    }


def differences(expected: dict[str, Any], got: dict[str, Any]) -> str:
    """Returns in words how a simulation differs from the expected one; "" if it does not."""
    found = "; ".join(
        f"{key}: expected {_short(value, got.get(key))}, got {_short(got.get(key), value)}"
        for key, value in expected.items()
        # Of what compares as equal, such as 1, 1.0 and True, only the same is.
        if json.dumps(got.get(key), sort_keys=True) != json.dumps(value, sort_keys=True)
    )
    return "".join(letter if letter.isprintable() else "?" for letter in found)


def _shapes(spec):
    return {
        name: f"{leaf.dtype.name} {leaf.shape.as_list()}"
        for name, leaf in nests.named(spec).items()
    }


def _short(value, other):
    """Returns a value as text; of a dictionary, only what the other has not."""
    if isinstance(value, dict) and isinstance(other, dict):
        value = {name: own for name, own in value.items() if other.get(name) != own}
        return ", ".join(f"{name} {own}" for name, own in value.items()) or "nothing else"
    return value


def _crc32(clients):
    """Returns a checksum of the clients' examples, labels and classes that they predict among."""
    found = zlib.crc32(np.ascontiguousarray(clients.num_classes))
    if not np.array_equal(clients.identities, np.arange(clients.num_clients)):
        found = zlib.crc32(np.ascontiguousarray(clients.identities), found)
    if clients.class_mask:
        found = zlib.crc32(np.concatenate(clients.classes), zlib.crc32(b"class_mask", found))
    for split in clients.splits.values():
        for array in (split.offsets, split.labels, split.examples):
            found = zlib.crc32(np.ascontiguousarray(array), found)
    return found
