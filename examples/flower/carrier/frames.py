"""Sockets of clients, and the frames on them: the length of a body, 8 bytes big-endian, and it."""

import contextlib
import functools
import os
import pathlib
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import BinaryIO

_LENGTH = struct.Struct(">Q")
_MOST_BYTES = 2**31
_TURN_SECONDS = 0.5


def carry(
    sockets: pathlib.Path,
    names: Callable[[], Collection[str]],
    ask: Callable[[str, bytes], bytes | None],
    is_aborted: Callable[[], bool] = lambda: False,
) -> None:
    """Shows a socket for each client until a file with the name `ended` appears beside them.

    Args:
      sockets: The directory of the sockets, which must be its owner's alone.
      names: Returns the names of the clients that are there now.
      ask: Returns a client's reply to a request; without one, the link is closed.
      is_aborted: Returns whether to end before.

    Raises:
      PermissionError: Others may read the directory.
    """
    if sockets.stat().st_mode & 0o077:
        raise PermissionError(f"{sockets} must be yours alone. Do `chmod 700 {sockets}`.")
    shown: dict[str, _Socket] = {}
    try:
        while not is_aborted() and not (sockets / "ended").exists():
            there = set(names())
            for name in shown.keys() - there:
                shown.pop(name).close()
            for name in there - shown.keys():
                path = sockets / f"{name}.socket"
                shown[name] = _Socket(path, functools.partial(ask, name))
            time.sleep(_TURN_SECONDS)
    finally:
        for one in shown.values():
            one.close()


class _Socket(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, path, ask):
        self.ask, self._path = ask, path
        path.unlink(missing_ok=True)
        with _short(path) as name:
            super().__init__(name, _Requests)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self):
        self.shutdown()
        self.server_close()
        self._path.unlink(missing_ok=True)


class _Requests(socketserver.StreamRequestHandler):
    def handle(self):
        with contextlib.suppress(OSError):
            while (reply := self.server.ask(_received(self.rfile))) is not None:
                self.wfile.write(_LENGTH.pack(len(reply)))
                self.wfile.write(reply)


def reply_of(path: pathlib.Path, body: bytes) -> bytes:
    """Returns the reply of the resident client whose socket is at a path."""
    with socket.socket(socket.AF_UNIX) as link, link.makefile("rb") as replies:
        with _short(path) as name:
            link.connect(name)
        link.sendall(_LENGTH.pack(len(body)))
        link.sendall(body)
        return _received(replies)


def _received(stream: BinaryIO) -> bytes:
    """Returns the body of the next frame."""
    head = stream.read(_LENGTH.size)
    size = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else _MOST_BYTES + 1
    body = stream.read(size) if size <= _MOST_BYTES else b""
    if len(body) != size:
        raise ConnectionError("the other side has ended, or sends something else than frames")
    return body


@contextlib.contextmanager
def _short(path: pathlib.Path) -> Iterator[str]:
    """Gives a short name of a path, since a socket's may have 107 bytes only."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
