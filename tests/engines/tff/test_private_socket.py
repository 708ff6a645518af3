"""Nobody but the program reaches its worker; where that cannot be had, a line says so."""

import contextlib
import ctypes
import errno
import os
import pathlib
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap

import pytest

from tf_pflego.engines.tff import launcher
from tf_pflego.engines.tff.private_socket import PrivateSocket

tff = pytest.importorskip("tensorflow_federated", reason="the TFF engine is optional")

NOBODY = 65534
PROXY = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "grpc_proxy")}
PROGRAM = """
import ctypes, struct, sys
from tf_pflego.engines.tff import launcher
from tf_pflego.engines.tff.worker import Worker
if __name__ == "__main__":
    {before}
    worker = Worker()
    print(worker.pid, flush=True)
    sys.stdin.read()
"""
# Root without capabilities, which it does not get back by exec either.
DROP_PRIVILEGES = """
    libc, set_securebits, no_root = ctypes.CDLL(None, use_errno=True), 28, 3
    assert libc.prctl(set_securebits, no_root, 0, 0, 0) == 0
    assert libc.capset(struct.pack("II", 0x20080522, 0), bytes(24)) == 0
"""
INSTALL = """
    launcher.install_filter({instructions}, 0)
"""
SYS_IOCTL, SYS_SECCOMP = 16, 317
RETURN_ERROR, ALLOW = 0x00050000, (0x06, 0, 0, 0x7FFF0000)
LISTENING = "0A"

# In the notation of `launcher`.
REFUSE_SECCOMP = (
    (0x20, 0, 0, 0),
    (0x15, 0, 1, SYS_SECCOMP),
    (0x06, 0, 0, RETURN_ERROR | errno.EPERM),
    ALLOW,
)
# A kernel before 5.9 does not know the request that gives a descriptor to the child.
REFUSE_ADDFD = (
    (0x20, 0, 0, 0),
    (0x15, 0, 3, SYS_IOCTL),
    (0x20, 0, 0, 24),
    (0x15, 0, 1, 0x40182103),
    (0x06, 0, 0, RETURN_ERROR | errno.EINVAL),
    ALLOW,
)


@contextlib.contextmanager
def program(before="pass", environment=None):
    """Runs PROGRAM; yields its worker's pid, and afterwards its standard error in a list."""
    source = textwrap.dedent(PROGRAM).format(before=textwrap.dedent(before).replace("\n", "\n    "))
    errors = []
    with subprocess.Popen(
        [sys.executable, "-c", source],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd(), **(environment or {})},
    ) as process:
        try:
            line = process.stdout.readline()
            assert line, process.communicate(timeout=60)[1]
            yield int(line), errors
        finally:
            errors += process.communicate(timeout=60)[1].splitlines()
    assert process.returncode == 0


def listening_ports(pid):
    """The TCP ports on which a process listens, on any interface."""
    inodes = set()
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            inodes.add(os.readlink(link))
    ports = []
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in inodes:
                ports.append(int(fields[1].rpartition(":")[2], 16))
    return ports


def own_lines(errors):
    return [line for line in errors if line.startswith("tf_pflego:")]


def connect_as_nobody(path):
    """Returns the error number with which another user's `connect` fails; 0 if it does not."""
    code = f"""
import os, socket, sys
tried = socket.socket(socket.AF_UNIX)
os.setgroups([])
os.setresgid(*[{NOBODY}] * 3)
os.setresuid(*[{NOBODY}] * 3)
sys.exit(tried.connect_ex({path!r}))
"""
    return subprocess.run([sys.executable, "-c", code], check=False).returncode


def knows_notifications():
    """Whether the kernel knows the action of a filter by which private sockets work."""
    action, get_action_available = ctypes.c_uint32(0x7FC00000), 2
    call = (SYS_SECCOMP, get_action_available, 0, ctypes.byref(action))
    return ctypes.CDLL(None).syscall(*call) == 0


pytestmark = pytest.mark.skipif(
    not knows_notifications(), reason="this kernel has no seccomp_unotify(2)"
)


@pytest.mark.thorough
def test_a_worker_without_privileges_listens_on_no_port_and_at_no_path(tmp_path):
    """Nor is a long path for temporary files, or a proxy for the Web, in the way of that.

    That root needs no more is shown by all tests in which a worker says nothing.
    """
    temporary = tmp_path / ("x" * 120)
    temporary.mkdir()
    environment = {"TMPDIR": str(temporary), **PROXY}
    with program(DROP_PRIVILEGES if os.geteuid() == 0 else "pass", environment) as (pid, errors):
        assert "CapEff:\t0000000000000000" in pathlib.Path(f"/proc/{pid}/status").read_text()
        assert listening_ports(pid) == []
        assert list(temporary.iterdir()) == []
    assert own_lines(errors) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused_while_the_worker_starts(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")  # which is open to all, and a short path
    private = PrivateSocket()
    path = private.address.removeprefix("unix:")
    directory = os.readlink(os.path.dirname(path))
    try:
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
        for tried in (f"{directory}/{path.split('/')[-1]}", path.replace("self", f"{os.getpid()}")):
            assert connect_as_nobody(tried) == errno.EACCES
            assert socket.socket(socket.AF_UNIX).connect_ex(tried) == 0
    finally:
        private.close()
    assert not os.path.exists(directory)


def test_a_child_listens_on_the_private_socket_and_on_nothing_else():
    child_source = """
import socket
first, second = socket.socket(), socket.socket()
first.listen()
print(int(socket.socket(fileno=first.detach()).family), flush=True)
try:
    input()
    second.listen()
except OSError as error:
    print(error.errno)
"""
    private = PrivateSocket()
    command = [sys.executable, "-c", child_source]
    try:
        child = subprocess.Popen(
            launcher.command_of(command, private.listener_to),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[private.listener_to],
        )
        while not private.answer(0.1):
            assert child.poll() is None
    finally:
        private.close()
    assert child.stdout.readline().strip() == str(int(socket.AF_UNIX))
    assert child.communicate("\n", timeout=60)[0].strip() == str(errno.ENOSYS)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("instructions", "reason"),
    [
        (REFUSE_SECCOMP, "seccomp: Operation not permitted"),
        (REFUSE_ADDFD, "seccomp_unotify: Invalid argument"),
    ],
    ids=["a strict container", "before Linux 5.9"],
)
def test_where_the_system_forbids_it_a_line_says_so(instructions, reason, tmp_path):
    before = INSTALL.format(instructions=instructions)
    with program(before, {"TMPDIR": str(tmp_path), **PROXY}) as (pid, errors):
        (port,) = listening_ports(pid)
        socket.create_connection(("localhost", port)).close()
        assert list(tmp_path.iterdir()) == []
    (line,) = own_lines(errors)
    assert f"listens on port {port} of all network interfaces" in line
    assert "whoever reaches it can run code as you" in line
    assert f"({reason})" in line
    assert "engine in_process needs no port" in line


def test_no_two_addresses_are_the_same():
    """GRPC would let the second worker's channel use the connection to the first worker."""
    addresses = []
    for _ in range(2):
        private = PrivateSocket()
        addresses.append(private.address)
        private.close()
    assert os.path.dirname(addresses[0]) == os.path.dirname(addresses[1])
    assert addresses[0] != addresses[1]


def test_a_channel_does_not_hang_up_when_it_is_idle():
    """It could not connect again; gRPC hangs up after 30 minutes, if it is not told otherwise."""
    from tf_pflego.engines.tff import worker

    # gRPC takes the largest integer as for ever.
    assert dict(worker._GRPC_OPTIONS)["grpc.client_idle_timeout_ms"] == 2**31 - 1
