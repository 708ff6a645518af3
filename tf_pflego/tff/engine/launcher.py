"""Starts a command that ends with this program, with an optional seccomp filter.

Python would have to fork the program for that (`preexec_fn`). But a forked child has none of the
program's threads, and gRPC, if anything has used it, may wait for its own threads for ever. This
file is therefore also a small program, which prepares itself and then becomes the command. It
imports only necessary modules, and starts within some hundredths of a second.
"""

import ctypes
import os
import signal
import socket
import struct
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
# The numbers of Linux on x86-64.
_SYS_SECCOMP = 317
_SECCOMP_SET_MODE_FILTER = 1
# Without it, some kernels would slow down all that the command computes, to protect it against what
# it itself speculates on.
_FILTER_FLAG_SPEC_ALLOW = 1 << 2
_FILTER_FLAG_NEW_LISTENER = 1 << 3
_NO_SOCKET = -1
# The filter of the command, (code, offsets of a jump if true and if false, operand) of classic BPF:
# at `listen`, whoever has the filter's listener is asked (SECCOMP_RET_USER_NOTIF).
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ASK_AT_LISTEN = (
    (_LOAD, 0, 0, 0),  # the number of the system call
    (_JUMP_IF_EQUAL, 0, 1, 50),
    (_RETURN, 0, 0, 0x7FC00000),
    (_RETURN, 0, 0, 0x7FFF0000),
)


def command_of(command: Sequence[str], listener_to: int = _NO_SOCKET) -> list[str]:
    """Returns what to start in place of a command, from the main thread.

    The kernel then ends the command by SIGKILL when the thread that started it ends. `listener_to`
    is the descriptor of a Unix socket, inherited by the command, that gets one message: a byte with
    the listener of the filter, or the error number of the kernel's rejection of the filter. Without
    it there is no filter.
    """
    launcher = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
    return [*launcher, str(os.getpid()), str(listener_to), *command]


def install_filter(instructions: Sequence[tuple[int, int, int, int]], flags: int = 0) -> int:
    """Installs a seccomp filter in the calling thread, which keeps it for good.

    Returns what seccomp(2) does: the filter's listener, if the flags ask for it. If the kernel
    refuses, this raises OSError.
    """
    packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
    code = ctypes.create_string_buffer(packed, len(packed))
    # struct sock_fprog, with the padding before its pointer.
    program = struct.pack("@HP", len(instructions), ctypes.addressof(code))
    # Without this promise only a privileged process may install a filter.
    _checked("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return _checked(
        "syscall", _SYS_SECCOMP, _SECCOMP_SET_MODE_FILTER, flags | _FILTER_FLAG_SPEC_ALLOW, program
    )


def _checked(name, *arguments):
    """Returns the result of a function of the C library, if it is no error."""
    result = getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _main(arguments):
    parent, listener_to, command = int(arguments[0]), int(arguments[1]), arguments[2:]
    _checked("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the program that wanted this process has ended")  # The signal will never come.
    if listener_to != _NO_SOCKET:
        with socket.socket(fileno=listener_to) as answer:
            try:
                listener = install_filter(_ASK_AT_LISTEN, _FILTER_FLAG_NEW_LISTENER)
            except OSError as error:
                answer.send(bytes([error.errno or 0]))
                answer.recv(1)  # It ends when that has been read, and the other end is closed.
                sys.exit(f"seccomp: {error.strerror}")
            socket.send_fds(answer, [b"\0"], [listener])  # The kernel closes it here at exec.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # What Python ignores, and exec would keep so.
        signal.signal(number, signal.SIG_DFL)
    os.execv(command[0], command)


if __name__ == "__main__":
    _main(sys.argv[1:])
