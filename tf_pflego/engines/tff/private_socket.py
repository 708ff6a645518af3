"""A Unix socket on which a child process listens, in place of the TCP port that it would open.

TFF's worker can only listen on a port of all interfaces, without a password. Whoever reaches that
port can run code as the user. Here the child never listens on it. A seccomp filter makes the kernel
stop the child at `listen` and ask this process, which puts a Unix socket in the place of the
child's socket (seccomp_unotify(2)). The two processes are then connected directly: nothing stands
between them that would copy messages. No privilege and no namespace is needed, but Linux 5.9.

The Unix socket lies in a directory of mode 0700. It is removed as soon as this process is
connected, so that afterwards nobody can connect, and nothing is left behind by a process that is
killed.
"""

import errno
import fcntl
import os
import platform
import select
import socket
import struct

from tf_pflego.system.temporary import make_directory, remove_directory

# The numbers of Linux on x86-64, the only machine for which there is a TFF worker on Linux.
_MACHINE = "x86_64"
_SYS_LISTEN = 50
_RET_USER_NOTIF = 0x7FC00000
_RET_ALLOW = 0x7FFF0000
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # of classic BPF
_NOTIF_RECV = 0xC0502100
_NOTIF_SEND = 0xC0182101
_NOTIF_ADDFD = 0x40182103
_ADDFD_FLAG_SETFD = 1
_NOTIF = struct.Struct("=QIIiIQ6Q")  # id, pid, flags, call, machine, instruction, six arguments
_RESPONSE = struct.Struct("=QqiI")  # id, result, error, flags
_ADDFD = struct.Struct("=QIIII")  # id, flags, our descriptor, the child's, its flags

# The filter of the child, for `engines.tff.launcher`.
ASK_AT_LISTEN = (
    (_LOAD, 0, 0, 0),  # the number of the system call
    (_JUMP_IF_EQUAL, 0, 1, _SYS_LISTEN),
    (_RETURN, 0, 0, _RET_USER_NOTIF),
    (_RETURN, 0, 0, _RET_ALLOW),
)


class NotPrivateError(Exception):
    """The system does not let this process put a private socket in the place of a child's port."""


class PrivateSocket:
    """A listening Unix socket for one child process; close it when the child has been reached.

    Start the child by `engines.tff.launcher` with the filter `ASK_AT_LISTEN`, let it inherit
    `listener_to`, and call `answer` until the child can be reached at `address`.

    Attributes:
      address: The address in the form that gRPC takes; it holds in this process only.
      listener_to: Descriptor of the socket to which the launcher sends the filter's listener.

    Raises:
      NotPrivateError: The machine is another than x86-64, or the directory for temporary files
        takes no sockets.
    """

    def __init__(self):
        if platform.machine() != _MACHINE:
            raise NotPrivateError(f"it is a {platform.machine()}, not an {_MACHINE}")
        self._requests = None
        self._directory = make_directory()
        flags = os.O_PATH | os.O_DIRECTORY
        self._directory_descriptor: int | None = os.open(self._directory, flags)
        self._ours, self._childs = socket.socketpair()
        self.listener_to = self._childs.fileno()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.setblocking(False)  # As the child has set its own, which this one replaces.
        # A socket's path may have 107 bytes, and this one is short whatever TMPDIR is. The name
        # makes the address unique, though the number of the descriptor may be used again: gRPC lets
        # channels to one address share a connection.
        name = os.path.basename(self._directory)
        path = f"/proc/self/fd/{self._directory_descriptor}/{name}"
        self.address = f"unix:{path}"
        try:
            self._socket.bind(path)
            self._socket.listen()
        except OSError as error:
            self.close()
            raise NotPrivateError(
                f"{self._directory} takes no sockets: {error.strerror}"
            ) from error

    def answer(self, timeout: float) -> bool:
        """Waits for the child's `listen`, and puts the private socket in the place of its own.

        Args:
          timeout: Seconds to wait.

        Returns:
          Whether the child listens now; else it has not asked in time, or has ended.

        Raises:
          NotPrivateError: The child may have no filter, or the kernel cannot replace its socket;
            the child waits in vain.
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
        return descriptors[0] if descriptors else None

    def close(self) -> None:
        """Closes the socket and removes it; the child keeps its own copy.

        From now on the child cannot listen on anything: the kernel refuses what nobody answers.
        """
        for one in (self._socket, self._ours, self._childs):
            one.close()
        if self._requests is not None:
            os.close(self._requests)
            self._requests = None
        if self._directory_descriptor is not None:
            os.close(self._directory_descriptor)
            self._directory_descriptor = None
        remove_directory(self._directory)


def _has_input(descriptor, timeout):
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return any(event & select.POLLIN for _, event in poll.poll(1000 * timeout))
