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

import ctypes
import errno
import fcntl
import os
import platform
import select
import shutil
import socket
import struct
from collections.abc import Sequence

from tf_pflego.core.temporary import make_directory

# The numbers of Linux on x86-64, the only machine for which there is a TFF worker on Linux.
_MACHINE = "x86_64"
_SYS_LISTEN = 50
_SYS_SECCOMP = 317
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_SET_MODE_FILTER = 1
# Without the first, some kernels would slow down all that the child computes, to protect it against
# what it itself speculates on.
_FILTER_FLAG_SPEC_ALLOW = 1 << 2
_FILTER_FLAG_NEW_LISTENER = 1 << 3
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

# (code, offsets of a jump if true and if false, operand)
_ASK_AT_LISTEN = (
    (_LOAD, 0, 0, 0),  # the number of the system call
    (_JUMP_IF_EQUAL, 0, 1, _SYS_LISTEN),
    (_RETURN, 0, 0, _RET_USER_NOTIF),
    (_RETURN, 0, 0, _RET_ALLOW),
)


class NotPrivateError(Exception):
    """The system does not let this process put a private socket in the place of a child's port."""


class PrivateSocket:
    """A listening Unix socket for one child process; close it when the child has been reached.

    Pass `before_exec` to the `subprocess.Popen` that starts the child, call `after_start` when it
    has returned, and then `answer` until the child can be reached at `address`.

    Attributes:
      address: The address in the form that gRPC takes; it holds in this process only.

    Raises:
      NotPrivateError: The machine is another than x86-64, or the directory for temporary files
        takes no sockets.
    """

    def __init__(self):
        if platform.machine() != _MACHINE:
            raise NotPrivateError(f"it is a {platform.machine()}, not an {_MACHINE}")
        self._install = FilterInstaller(_ASK_AT_LISTEN, _FILTER_FLAG_NEW_LISTENER)
        self._requests = None
        self._directory = make_directory()
        self._directory_descriptor = os.open(self._directory, os.O_PATH | os.O_DIRECTORY)
        self._ours, self._childs = socket.socketpair()
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

    def before_exec(self) -> None:
        """Runs in the child: installs the filter, and hands its listener to the parent."""
        try:
            socket.send_fds(self._childs, [b"\0"], [self._install()])
        except OSError as error:
            self._childs.send(bytes([error.errno]))
            os._exit(1)

    def after_start(self) -> None:
        """Takes the filter's listener from the child.

        Raises:
          NotPrivateError: The child could not install the filter, and has ended.
        """
        self._childs.close()
        message, descriptors, _, _ = socket.recv_fds(self._ours, 1, 1)
        self._ours.close()
        if descriptors:
            (self._requests,) = descriptors
        elif message:
            raise NotPrivateError(f"seccomp: {os.strerror(message[0])}")

    def answer(self, timeout: float) -> bool:
        """Waits for the child's `listen`, and puts the private socket in the place of its own.

        Args:
          timeout: Seconds to wait.

        Returns:
          Whether the child listens now; else it has not asked in time, or has ended.

        Raises:
          NotPrivateError: The kernel cannot replace the child's socket; the child waits in vain.
        """
        if self._requests is None:
            return False
        poll = select.poll()
        poll.register(self._requests, select.POLLIN)
        if not any(event & select.POLLIN for _, event in poll.poll(1000 * timeout)):
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
        shutil.rmtree(self._directory, ignore_errors=True)


class FilterInstaller:
    """Installs a seccomp filter in the calling thread, which keeps it for good.

    Everything that needs memory is made beforehand, for a child between fork and exec.

    Args:
      instructions: The instructions of the filter.
      flags: Flags of seccomp(2).
    """

    def __init__(self, instructions: Sequence[tuple[int, int, int, int]], flags: int = 0):
        code = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
        self._code = ctypes.create_string_buffer(code, len(code))
        # struct sock_fprog, with the padding before its pointer.
        self._program = ctypes.create_string_buffer(
            struct.pack("@HP", len(instructions), ctypes.addressof(self._code))
        )
        self._flags = flags | _FILTER_FLAG_SPEC_ALLOW
        self._libc = ctypes.CDLL(None, use_errno=True)

    def __call__(self) -> int:
        """Returns what seccomp(2) returns: the filter's listener, if that was asked for.

        Raises:
          OSError: The kernel refuses.
        """
        # Without this promise only a privileged process may install a filter.
        self._check(self._libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        return self._check(
            self._libc.syscall(_SYS_SECCOMP, _SECCOMP_SET_MODE_FILTER, self._flags, self._program)
        )

    def _check(self, result):
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result
