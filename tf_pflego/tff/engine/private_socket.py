"""A Unix socket on which a child process listens, in place of the TCP port that it would open.

TFF's worker can only listen on a port of all interfaces, without a password. Everybody who reaches
that port can run code as the user. Here the child never listens on it. A seccomp filter makes the
kernel stop the child at `listen` and ask this process, which replaces the child's socket by a Unix
socket (seccomp_unotify(2)). The two processes are then connected directly, without a process
between them that copies messages. This needs no privilege and no namespace, but Linux 5.9.

The Unix socket is in a directory of mode 0700. It is removed as soon as this process is connected:
afterwards no further connection is possible, and a killed process leaves no socket.
"""

import contextlib
import errno
import fcntl
import os
import platform
import select
import socket
import struct

from tf_pflego.system.temporary import make_directory, remove_directory, short_path

# The numbers of Linux on x86-64, the only machine for which there is a TFF worker on Linux.
_MACHINE = "x86_64"
_NOTIF_RECV = 0xC0502100
_NOTIF_SEND = 0xC0182101
_NOTIF_ADDFD = 0x40182103
_ADDFD_FLAG_SETFD = 1
_NOTIF = struct.Struct("=QIIiIQ6Q")  # id, pid, flags, call, machine, instruction, six arguments
_RESPONSE = struct.Struct("=QqiI")  # id, result, error, flags
_ADDFD = struct.Struct("=QIIII")  # id, flags, our descriptor, the child's, its flags


class NotPrivateError(Exception):
    """The system does not let this process put a private socket in the place of a child's port."""


class PrivateSocket:
    """A listening Unix socket for one child process; close it when the child has been reached.

    Start the child by `tff.engine.launcher`, let it inherit `listener_to`, the descriptor of the
    launcher's socket for the filter's listener, and call `answer` until the child can be reached at
    `address`. The address has gRPC's format, and is valid only in this process.
    """

    def __init__(self):
        if platform.machine() != _MACHINE:
            raise NotPrivateError(f"it is a {platform.machine()}, not an {_MACHINE}")
        self._requests = None
        with contextlib.ExitStack() as resources:
            directory = make_directory()
            resources.callback(remove_directory, directory)
            short = resources.enter_context(short_path(directory))
            pair = socket.socketpair()
            self._ours, self._childs = map(resources.enter_context, pair)
            self.listener_to = self._childs.fileno()
            self._socket = resources.enter_context(socket.socket(socket.AF_UNIX))
            self._socket.setblocking(False)  # As the child has set its own, which this replaces.
            # A socket's path may have 107 bytes, and this one is short whatever TMPDIR is. The name
            # makes the address unique, though the number of the descriptor may be used again: gRPC
            # lets channels to one address share a connection.
            path = f"{short}/{os.path.basename(directory)}"
            self.address = f"unix:{path}"
            try:
                self._socket.bind(path)
                self._socket.listen()
            except OSError as error:
                reason = f"{directory} takes no sockets: {error.strerror}"
                raise NotPrivateError(reason) from error
            self._resources = resources.pop_all()

    def answer(self, timeout: float) -> bool:
        """Waits some seconds for the child's `listen`, and replaces the child's socket.

        Returns whether the child listens now. Otherwise it has not asked in time, or has ended. If
        the child may have no filter, or the kernel cannot replace its socket, this raises
        `NotPrivateError`, and the child waits in vain.
        """
        self._childs.close()  # Only the child has it now, and its end can be seen.
        if self._requests is None:
            self._requests = self._listener(timeout)
        if self._requests is None or not _has_input(self._requests, timeout):
            return False
        request = bytearray(_NOTIF.size)
        try:
            fcntl.ioctl(self._requests, _NOTIF_RECV, request)
            number, _, _, _, _, _, childs, *_ = _NOTIF.unpack(request)
            replacement = (number, _ADDFD_FLAG_SETFD, self._socket.fileno(), childs, os.O_CLOEXEC)
            fcntl.ioctl(self._requests, _NOTIF_ADDFD, _ADDFD.pack(*replacement))
            # The socket listens already, so that the kernel needs not run the call any more.
            fcntl.ioctl(self._requests, _NOTIF_SEND, _RESPONSE.pack(number, 0, 0, 0))
        except OSError as error:
            if error.errno == errno.ENOENT:
                return False  # The child has ended since.
            raise NotPrivateError(f"seccomp_unotify: {error.strerror}") from error
        return True

    def _listener(self, timeout):
        """Returns the filter's listener, if the child has sent it in time."""
        if not _has_input(self._ours, timeout):
            return None
        message, descriptors, _, _ = socket.recv_fds(self._ours, 1, 1)
        if message and not descriptors:
            raise NotPrivateError(f"seccomp: {os.strerror(message[0])}")
        for descriptor in descriptors:
            self._resources.callback(os.close, descriptor)
        return descriptors[0] if descriptors else None

    def close(self) -> None:
        """Closes the socket and removes it; the child keeps its own copy.

        From now on the child cannot listen at all: the kernel rejects unanswered requests.
        """
        self._resources.close()


def _has_input(descriptor, timeout):
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return any(event & select.POLLIN for _, event in poll.poll(1000 * timeout))
