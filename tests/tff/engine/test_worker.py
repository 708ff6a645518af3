"""No worker outlives its program, whatever ends the program; nothing that it uses accumulates."""

import contextlib
import ctypes
import gc
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import built, make_clients
from tests.resources import is_running, wait_until_gone
from tf_pflego import models
from tf_pflego.core.participation import Participation
from tf_pflego.simulation.simulation import Simulation
from tf_pflego.tff.engine import launcher

tff = pytest.importorskip("tensorflow_federated", reason="the TFF engine is optional")
from tf_pflego.tff.engine import context  # noqa: E402 (It needs TFF.)

PROGRAM = """
import ctypes, os, struct, sys
from tf_pflego.tff.engine import launcher
{before}
from tf_pflego.tff.engine.worker import Worker
workers = []
{start}
print(*(worker.pid for worker in workers), flush=True)
sys.stdin.read()
"""
# Root without capabilities, which it does not get back by exec either.
DROP_PRIVILEGES = """
libc, set_securebits, no_root = ctypes.CDLL(None, use_errno=True), 28, 3
assert libc.prctl(set_securebits, no_root, 0, 0, 0) == 0
assert libc.capset(struct.pack("II", 0x20080522, 0), bytes(24)) == 0
"""
PROXY = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "grpc_proxy")}
LISTENING = "0A"
DEADLINE_SECONDS = 300


class Program:
    """A program with workers, and in the end what it has said."""

    def __init__(self, process):
        self.process, self.errors = process, ""
        line = process.stdout.readline()
        assert line, process.communicate(timeout=DEADLINE_SECONDS)[1]
        self.workers = [int(number) for number in line.split()]

    def own_lines(self):
        """The lines on standard error that say that a port is open to others."""
        return [line for line in self.errors.splitlines() if "listens on port" in line]


@contextlib.contextmanager
def program(temporary, before="", start="workers.append(Worker())"):
    """Runs PROGRAM with a directory for temporary files, and waits for its end.

    It ends by itself after the block. Its workers must be gone then, and the directory empty.
    """
    environment = {name: value for name, value in os.environ.items() if "GRPC" not in name}
    environment |= {"PYTHONPATH": os.getcwd(), "TMPDIR": str(temporary), **PROXY}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    code = PROGRAM.format(before=before, start=start)
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:
        try:
            running = Program(process)
            yield running
            # Returns only when nobody holds the pipes any more.
            running.errors = process.communicate(timeout=DEADLINE_SECONDS)[1]
        finally:
            process.kill()
    for worker in running.workers:
        wait_until_gone(worker)
    assert list(temporary.iterdir()) == []


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


def wait_until(holds):
    """Waits until a function returns what is true."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def knows_notifications():
    """Whether the kernel knows the action of a filter by which private sockets work."""
    action, seccomp, get_action_available = ctypes.c_uint32(0x7FC00000), 317, 2
    call = (seccomp, get_action_available, 0, ctypes.byref(action))
    return ctypes.CDLL(None).syscall(*call) == 0


@pytest.mark.thorough
def test_a_worker_listens_on_no_port_and_at_no_path_and_kill_9_leaves_nothing(tmp_path):
    """A program without privileges can have that, and no long path or proxy is in its way.

    That root needs no more is shown by all tests in which a worker says nothing.
    """
    temporary = tmp_path / ("x" * 120)
    temporary.mkdir()
    with program(temporary, DROP_PRIVILEGES if os.geteuid() == 0 else "") as running:
        (worker,) = running.workers
        assert "CapEff:\t0000000000000000" in pathlib.Path(f"/proc/{worker}/status").read_text()
        assert (listening_ports(worker) == []) == knows_notifications()
        assert list(temporary.iterdir()) == []
        running.process.kill()
    assert running.process.returncode == -signal.SIGKILL
    assert (running.own_lines() == []) == knows_notifications()


GRPC_FIRST = """
import concurrent.futures
import grpc

class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request)

server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
server.add_generic_rpc_handlers([Echo()])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
options = [("grpc.enable_http_proxy", 0)]
ask = grpc.insecure_channel(f"127.0.0.1:{port}", options).unary_unary("/echo")
assert ask(b"1", wait_for_ready=True) == b"1"
"""
TWO_WORKERS = """
forks = []
os.register_at_fork(before=lambda: forks.append(1))
for _ in range(2):
    workers.append(Worker())
    assert ask(b"1") == b"1"
workers[0].close()
assert not forks
"""


@pytest.mark.thorough
def test_a_start_does_not_fork_the_program_and_its_end_leaves_nothing(tmp_path):
    """Where gRPC was used before, as by Ray, it may wait for ever at a fork for its threads."""
    with program(tmp_path, GRPC_FIRST, TWO_WORKERS) as running:
        first, second = running.workers
        assert (is_running(first), is_running(second)) == (False, True)
    assert running.process.returncode == 0, running.errors
    # Nor do finalizers fail when Python ends.
    assert "Exception ignored" not in running.errors


def test_a_worker_whose_program_has_ended_already_does_not_start(tmp_path):
    """The signal for that would never come; here the launcher has another parent."""
    made = tmp_path / "made"
    command = launcher.command_of([shutil.which("touch"), str(made)])
    assert subprocess.run(command, check=False).returncode == 0
    assert made.exists()
    made.unlink()
    by_a_shell = ["sh", "-c", '"$@"; exit $?', "sh", *command]
    result = subprocess.run(by_a_shell, capture_output=True, text=True, check=False)
    assert (result.returncode, made.exists()) == (1, False)
    assert result.stderr == "the program that wanted this process has ended\n"


def test_functions_reach_the_worker_as_they_are():
    @tf.function(experimental_attributes={"_noinline": True})
    def twice(x):
        return 2.0 * x

    @tff.tensorflow.computation(np.float32)
    def computation(x):
        return twice(x)

    proto = tff.framework.ConcreteComputation.get_proto(context._compiled(computation))
    graph_def = tf.compat.v1.GraphDef()
    proto.tensorflow.graph_def.Unpack(graph_def)
    assert any(function.attr["_noinline"].b for function in graph_def.library.function)


@pytest.mark.thorough
def test_worker_memory_stays_flat_when_the_cohort_varies(tiny_model):
    data = make_clients((4,) * 30, (2,) * 30, (2,) * 30)
    algorithm = built("pflego", tiny_model, local_steps=2)

    def resident_megabytes(pid):
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        return int(re.search(r"VmRSS:\s*(\d+) kB", status)[1]) / 1024

    with Simulation(algorithm, data, Participation(30, 12, "binomial"), "tff") as simulation:
        sizes, memory = set(), []
        for number in range(1, 81):
            sizes.add(simulation.run_round()["participants"])
            if number in (40, 80):
                memory.append(resident_megabytes(simulation._engine.worker.pid))
    assert len(sizes) > 5
    # With a factory that does not close its executors, memory grows by more than twice as much.
    assert memory[1] - memory[0] < 8


@pytest.mark.thorough
def test_closed_simulations_leave_nothing(tiny_model, tiny_clients):
    """Neither descriptors nor threads, even if a worker fails and no garbage is collected.

    The second algorithm's messages go through files. gRPC's threads are kept: see `worker`.
    """
    large = models.SplitModel(models.mlp((4,), seed=3, units=20_000), num_outputs=3, seed=3)
    kinds = built("pflego", tiny_model, local_steps=2), built("ditto", large, batch_size=0)

    def used():
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    def grpc_engine():
        threads = []
        for name in pathlib.Path("/proc/self/task").glob("*/comm"):
            with contextlib.suppress(OSError):  # A thread may end meanwhile.
                threads += [name] if name.read_text() == "lifeguard\n" else []
        return threads

    def simulate():
        for algorithm in kinds:
            with Simulation(algorithm, tiny_clients, Participation(3, 2), "tff") as simulation:
                simulation.run_round()
                os.kill(simulation._engine.worker.pid, signal.SIGKILL)
                simulation.run_round()

    gc.disable()
    try:
        simulate()
        before, engine = used(), grpc_engine()
        simulate()
        # gRPC closes its descriptors in a thread of its own.
        wait_until(lambda: all(now <= then for now, then in zip(used(), before, strict=True)))
        assert len(engine) == 1 and grpc_engine() == engine
    finally:
        gc.enable()
