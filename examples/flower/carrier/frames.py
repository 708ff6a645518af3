"""Frames on Unix sockets: the length of a body, 8 bytes big-endian, and then the body."""

import contextlib
import os
import pathlib
import socket
import struct
from collections.abc import Iterator
from typing import BinaryIO

LENGTH = struct.Struct(">Q")
MOST_BYTES = 2**31


def received(stream: BinaryIO) -> bytes:
    """Returns the body of the next frame."""
    head = stream.read(LENGTH.size)
    size = LENGTH.unpack(head)[0] if len(head) == LENGTH.size else MOST_BYTES + 1
    body = stream.read(size) if size <= MOST_BYTES else b""
    if len(body) != size:
        raise ConnectionError("the other side has ended, or sends something else than frames")
    return body


def reply_of(path: pathlib.Path, body: bytes) -> bytes:
    """Returns the reply of the resident client whose socket is at a path."""
    with socket.socket(socket.AF_UNIX) as link, link.makefile("rb") as replies:
        with short(path) as name:
            link.connect(name)
        link.sendall(LENGTH.pack(len(body)))
        link.sendall(body)
        return received(replies)


@contextlib.contextmanager
def short(path: pathlib.Path) -> Iterator[str]:
    """Gives a short name of a path, since a socket's may have 107 bytes only."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
