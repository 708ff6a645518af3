"""Nobody but the program reaches its worker; where that cannot be had, a line says so."""

import contextlib
import errno
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile

import pytest

from tests.tff.engine.test_worker import (
    DEADLINE_SECONDS,
    knows_notifications,
    listening_ports,
    program,
)
from tf_pflego.tff.engine import launcher
from tf_pflego.tff.engine.private_socket import PrivateSocket

tff = pytest.importorskip("tensorflow_federated", reason="the TFF engine is optional")

NOBODY = 65534
SYS_IOCTL, SYS_SECCOMP = 16, 317
RETURN_ERROR, ALLOW = 0x00050000, (0x06, 0, 0, 0x7FFF0000)

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


pytestmark = pytest.mark.skipif(
    not knows_notifications(), reason="this kernel has no seccomp_unotify(2)"
)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused_while_the_worker_starts(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")  # which is open to all, and a short path
    with contextlib.closing(PrivateSocket()) as private:
        path = private.address.removeprefix("unix:")
        directory = os.readlink(os.path.dirname(path))
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
        for tried in (f"{directory}/{path.split('/')[-1]}", path.replace("self", f"{os.getpid()}")):
            assert connect_as_nobody(tried) == errno.EACCES
            assert socket.socket(socket.AF_UNIX).connect_ex(tried) == 0
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
    command = [sys.executable, "-c", child_source]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with contextlib.closing(PrivateSocket()) as private:
        started = launcher.command_of(command, private.listener_to)
        child = subprocess.Popen(started, pass_fds=[private.listener_to], **pipes)
        while not private.answer(0.1):
            assert child.poll() is None
    assert child.stdout.readline().strip() == str(int(socket.AF_UNIX))
    assert child.communicate("\n", timeout=DEADLINE_SECONDS)[0].strip() == str(errno.ENOSYS)


@pytest.mark.thorough
def test_where_the_system_forbids_it_a_line_says_so_and_ctrl_c_leaves_nothing(tmp_path):
    """A kernel before Linux 5.9, and then a strict container beside."""
    reasons = {
        "seccomp_unotify: Invalid argument": REFUSE_ADDFD,
        "seccomp: Operation not permitted": REFUSE_SECCOMP,
    }
    start = "\n".join(
        f"launcher.install_filter({instructions})\nworkers.append(Worker())"
        for instructions in reasons.values()
    )
    with program(tmp_path, start=start) as running:
        ports = [port for worker in running.workers for port in listening_ports(worker)]
        assert len(ports) == len(running.workers) == 2
        for port in ports:
            socket.create_connection(("localhost", port)).close()
        assert list(tmp_path.iterdir()) == []
        running.process.send_signal(signal.SIGINT)
    assert running.process.returncode not in (0, None)
    for line, port, reason in zip(running.own_lines(), ports, reasons, strict=True):
        assert f"listens on port {port} of all network interfaces" in line
        assert "any program that reaches it can run code as you" in line
        assert f"({reason})" in line
        assert "engine in_process needs no port" in line


def test_no_two_addresses_are_the_same():
    """GRPC would let the second worker's channel use the connection to the first worker."""
    addresses = []
    for _ in range(2):
        with contextlib.closing(PrivateSocket()) as private:
            addresses.append(private.address)
    assert os.path.dirname(addresses[0]) == os.path.dirname(addresses[1])
    assert addresses[0] != addresses[1]


def test_a_channel_does_not_hang_up_when_it_is_idle():
    """It could not connect again; gRPC hangs up after 30 minutes, if it is not told otherwise."""
    from tf_pflego.tff.engine import worker

    # gRPC takes the largest integer as for ever.
    assert dict(worker._GRPC_OPTIONS)["grpc.client_idle_timeout_ms"] == 2**31 - 1
