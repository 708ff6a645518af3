"""Messages as bytes: facts in JSON and arrays of numbers, without executable content.

4 bytes   the length of the header, big-endian
header    a JSON object in UTF-8; its `arrays` are [[name, dtype, shape], ...]
arrays    their numbers one after the other, little-endian, the last axis fastest
"""

import hashlib
import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tf_pflego.system import limited_files

DTYPES = ("float32", "float64", "int32", "int64", "uint8", "bool")
_LENGTH = struct.Struct(">I")
MOST_BYTES_OF_HEADER, _MOST_ARRAYS = 2**20, 10_000  # of a message, with its length
MOST_EXAMPLES = 10**7  # that a client may tell; the server keeps a number for each
_MOST_AXES = 8

# Why a client is left out from which nothing has come.
AWAY = UNREACHABLE, LATE = "it cannot be reached", "it has not answered in time"
NOT_NEEDED = "others were sooner"

Facts = dict[str, Any]
Arrays = dict[str, np.ndarray]


class Request(NamedTuple):
    """A request to one client."""

    facts: Facts
    arrays: Arrays


class Answers(NamedTuple):
    """The answers of clients, by number, and the reasons for excluding other clients."""

    replies: dict[int, Any]
    left_out: dict[int, str]


class MessageError(ValueError):
    """Bytes are no message, or not the expected message; the text gives the reason in one line."""


def packed(facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Returns a message. The same facts and arrays give the same bytes."""
    listed = {name: np.asarray(array) for name, array in arrays.items()}
    about = [[name, array.dtype.name, list(array.shape)] for name, array in listed.items()]
    header = json.dumps({**facts, "arrays": about}, sort_keys=True).encode()
    # The machines that TensorFlow runs on are little-endian.
    return b"".join(
        [_LENGTH.pack(len(header)), header, *(one.tobytes() for one in listed.values())]
    )


def unpacked(body: bytes) -> tuple[Facts, Arrays]:
    """Returns the facts and the arrays of a message, or raises `MessageError`."""
    try:
        (size,) = _LENGTH.unpack_from(body)
        start = _LENGTH.size + size
        if start > MOST_BYTES_OF_HEADER:
            raise MessageError(f"its header has {size} bytes, more than {MOST_BYTES_OF_HEADER}")
        facts = limited_files.object_of(body[_LENGTH.size : start])
        about = facts.pop("arrays")
        if not isinstance(about, list) or len(about) > _MOST_ARRAYS:
            raise MessageError("its arrays are not listed as they must be")
        arrays: Arrays = {}
        for name, dtype, shape in about:
            if not isinstance(name, str) or name in arrays or dtype not in DTYPES:
                raise MessageError(f"an array is called {name!r:.60} and of dtype {dtype!r:.20}")
            if not len(shape) <= _MOST_AXES or not all(type(n) is int and n >= 0 for n in shape):
                raise MessageError(f"{name:.60} has the shape {shape!r:.60}")
            count = math.prod(shape)
            stop = start + count * np.dtype(dtype).itemsize
            if stop > len(body):
                raise MessageError(f"{name:.60} must have {count} numbers; the message ends before")
            values = np.frombuffer(body, dtype, count, start)
            if dtype == "bool" and (values.view(np.uint8) > 1).any():
                raise MessageError(f"{name:.60} has numbers that are neither true nor false")
            arrays[name], start = values.reshape(shape), stop
    except MessageError:
        raise
    except (ValueError, TypeError, KeyError, struct.error) as error:
        raise MessageError(f"it is no message ({error!s:.80})") from None
    if start != len(body):
        raise MessageError(f"{len(body) - start} bytes come after its last array")
    return facts, arrays


def numbered(name: str, leaves: Sequence[Any]) -> Arrays:
    """Returns leaves in order as arrays `NAME/0`, `NAME/1` and so on."""
    return {f"{name}/{place}": np.asarray(leaf) for place, leaf in enumerate(leaves)}


def leaves(arrays: Mapping[str, np.ndarray], name: str, specs: Sequence[Any]) -> list[np.ndarray]:
    """Returns the arrays `NAME/0` and so on, which must match the specs in number and form.

    A size of a spec's shape may be None, for any. Numbers may be infinite or NaN.
    """
    prefix = f"{name}/"
    if sum(key.startswith(prefix) for key in arrays) != len(specs):
        raise MessageError(f"it must have {len(specs)} arrays called {name}")
    checked = []
    for place, spec in enumerate(specs):
        array = arrays.get(f"{prefix}{place}")
        if array is None:
            raise MessageError(f"{prefix}{place} is missing")
        shape = tuple(spec.shape)
        dtype = np.dtype(getattr(spec.dtype, "as_numpy_dtype", spec.dtype))
        fits = len(shape) == array.ndim and all(
            want in (None, got) for want, got in zip(shape, array.shape, strict=True)
        )
        if not fits or array.dtype != dtype:
            raise MessageError(
                f"{prefix}{place} must be {dtype.name} of shape {list(shape)}; got "
                f"{array.dtype.name} of shape {list(array.shape)}"
            )
        checked.append(array)
    return checked


def digest(array: np.ndarray) -> str:
    """Returns a text that identifies an array that has been sent before."""
    about = f"{array.dtype.name} {array.shape} ".encode()
    return hashlib.sha256(about + array.tobytes()).hexdigest()[:32]


def answer_to(request: bytes) -> str:
    """Returns the value of `to` in an answer, which links it to a request."""
    return hashlib.sha256(request).hexdigest()[:32]
