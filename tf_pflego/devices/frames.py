"""Requests and replies over private Unix sockets, with any carrier between machines.

A frame is the length of its body, 8 bytes big-endian, and then the body. On a connection a request
and its reply follow each other in turn. A carrier that gets no reply closes the connection.
"""

import contextlib
import errno
import os
import pathlib
import socket
import stat
import struct

from tf_pflego.system import temporary

MOST_BYTES = 2**31
_LENGTH = struct.Struct(">Q")
_BLOCK_BYTES = 2**20


class LinkError(ConnectionError):
    """The other side has gone, or has sent something else than a frame."""


class TooLongError(LinkError):
    """A frame is longer than any that can come."""


def send(link: socket.socket, body: bytes) -> None:
    """Sends a frame. A timeout of the socket, or an end of the link, is a `LinkError`."""
    with _explaining():
        link.sendall(_LENGTH.pack(len(body)))
        link.sendall(body)


def receive(link: socket.socket, most_bytes: int = MOST_BYTES) -> bytes | None:
    """Returns the body of the next frame, or None if the other side has closed the link before it.

    No memory is taken for bytes that have not come. A body of more than `most_bytes` is refused.
    """
    with _explaining():
        head = _exactly(link, _LENGTH.size, may_end=True)
        if not head:
            return None
        (size,) = _LENGTH.unpack(head)
        if size > most_bytes:
            raise TooLongError(f"a message must have at most {most_bytes} bytes; got {size}")
        return _exactly(link, size)


def ask(link: socket.socket, body: bytes, most_bytes: int = MOST_BYTES) -> bytes:
    """Returns the reply to a request."""
    send(link, body)
    reply = receive(link, most_bytes)
    if reply is None:
        raise LinkError("the link was closed before a reply came")
    return reply


def has_more(link: socket.socket) -> bool:
    """Returns whether unrequested bytes have arrived. The link then no longer waits."""
    link.setblocking(False)
    with contextlib.suppress(BlockingIOError), _explaining():
        return bool(link.recv(1, socket.MSG_PEEK))
    return False


def connected(path: pathlib.Path, timeout: float | None) -> socket.socket:
    """Returns a link to the listener at a path, which may be longer than a socket's limit."""
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(timeout)
    try:
        with temporary.short_path(path.parent) as short, _explaining():
            link.connect(f"{short}/{path.name}")
    except BaseException:
        link.close()
        raise
    return link


def listening(path: pathlib.Path) -> socket.socket:
    """Returns a socket that listens at a path, and replaces a socket without a listener.

    Only this user may access its directory, since every connection is answered. The socket gets its
    name once it listens, and connections by name are never refused.
    """
    refuse_shared(path.parent)
    if path.exists() and not path.is_socket():
        raise FileExistsError(errno.EEXIST, "a socket must have its own name", str(path))
    unnamed = path.with_suffix(".new")  # Names of sockets must not be long.
    if unnamed.is_socket():
        unnamed.unlink()  # Of a program that was killed.
    listener = socket.socket(socket.AF_UNIX)
    try:
        with temporary.short_path(path.parent) as short:
            listener.bind(f"{short}/{unnamed.name}")
        listener.listen()
        # Whoever holds the lock on the directory listens there, and nobody else.
        unnamed.replace(path)
    except BaseException:
        listener.close()
        raise
    return listener


def refuse_shared(directory: pathlib.Path) -> None:
    """Raises PermissionError unless only this user can access a directory of sockets."""
    status = directory.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid() or mode & 0o077:
        raise PermissionError(
            f"a directory of sockets must be open to you only (mode 700); {directory} is of user "
            f"{status.st_uid} and has mode {mode:o}. Do `chmod 700 {directory}`, or make another."
        )


@contextlib.contextmanager
def _explaining():
    try:
        yield
    except (LinkError, BlockingIOError):
        raise
    except TimeoutError as error:
        raise LinkError("no answer in time") from error
    except OSError as error:
        raise LinkError(error.strerror or str(error)) from error


def _exactly(link, size, may_end=False):
    parts, missing = [], size
    while missing:
        part = link.recv(min(missing, _BLOCK_BYTES))
        if not part:
            if may_end and missing == size:
                return b""
            raise LinkError(f"the link was closed {missing} bytes before the end of a message")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
