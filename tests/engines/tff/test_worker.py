"""No worker outlives its program, whatever ends the program; nothing that it uses accumulates."""

import gc
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from tests.methods import thorough
from tests.resources import is_running, wait_until_gone
from tf_pflego.engines.tff import launcher

tff = pytest.importorskip("tensorflow_federated", reason="the TFF engine is optional")

PROGRAM = """
import sys, time
from tf_pflego.engines.tff.worker import Worker
if __name__ == "__main__":
    worker = Worker()
    print(worker.pid, flush=True)
    {ending}
"""
DEADLINE_SECONDS = 200


@pytest.mark.parametrize(
    ("ending", "sent", "code"),
    [
        ("pass", None, 0),
        thorough("time.sleep(600)", signal.SIGINT, None),
        ("time.sleep(600)", signal.SIGKILL, -signal.SIGKILL),
    ],
    ids=["normal exit", "Ctrl-C", "kill -9"],
)
def test_no_worker_and_no_file_is_left_behind(ending, sent, code, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM).format(ending=ending))
    program = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=os.getcwd(),
        env={**os.environ, "PYTHONPATH": os.getcwd(), "TMPDIR": str(temporary)},
    )
    try:
        worker_pid = int(program.stdout.readline())
        if sent is not None:
            assert is_running(worker_pid)
            program.send_signal(sent)
        program.communicate(
            timeout=DEADLINE_SECONDS
        )  # Returns only when nobody holds the pipes any more.
    finally:
        program.kill()
    if code is None:
        assert program.returncode not in (0, None)
    else:
        assert program.returncode == code
    wait_until_gone(worker_pid)
    assert list(temporary.iterdir()) == []


GRPC_FIRST = """
import concurrent.futures, os, sys
import grpc

class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request)

server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
server.add_generic_rpc_handlers([Echo()])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
ask = grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary("/echo")
assert ask(b"1", wait_for_ready=True) == b"1"

from tf_pflego.engines.tff.worker import Worker

forks = []
os.register_at_fork(before=lambda: forks.append(1))
for _ in range(int(sys.argv[1])):
    Worker().close()
    assert ask(b"1") == b"1"
print(len(forks))
"""


@pytest.mark.thorough
def test_a_start_does_not_fork_the_program():
    """Where gRPC was used before, as by Ray, it may wait for ever at a fork for its threads."""
    command = [sys.executable, "-c", GRPC_FIRST, "2"]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=variables,
        check=False,
        timeout=DEADLINE_SECONDS,
    )
    assert (result.returncode, result.stdout) == (0, "0\n"), result.stderr
    # Nor do finalizers fail when Python ends.
    assert "Exception ignored" not in result.stderr


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
    from tf_pflego.engines.tff import context

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
    from tests.conftest import make_clients
    from tf_pflego import algorithms
    from tf_pflego.core.participation import Participation
    from tf_pflego.simulation.simulation import Simulation

    data = make_clients((4,) * 30, (2,) * 30, (2,) * 30)
    algorithm = algorithms.build("pflego", tiny_model, local_steps=2)

    def resident_megabytes(pid):
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        return (
            next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
            / 1024
        )

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

    The second algorithm's messages go through files.
    """
    from tf_pflego import algorithms, models
    from tf_pflego.core.participation import Participation
    from tf_pflego.simulation.simulation import Simulation

    large = models.SplitModel(models.mlp((4,), seed=3, units=20_000), num_outputs=3, seed=3)
    kinds = [
        algorithms.build("pflego", tiny_model, local_steps=2),
        algorithms.build("ditto", large, batch_size=0),
    ]

    def used():
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    def simulate():
        for algorithm in kinds:
            with Simulation(algorithm, tiny_clients, Participation(3, 2), "tff") as simulation:
                simulation.run_round()
                os.kill(simulation._engine.worker.pid, signal.SIGKILL)
                simulation.run_round()

    gc.disable()
    try:
        simulate()
        before = used()
        simulate()
        simulate()
        deadline = (
            time.monotonic() + DEADLINE_SECONDS
        )  # gRPC closes its descriptors in a thread of its own.
        while any(now > then for now, then in zip(used(), before, strict=True)):
            assert time.monotonic() < deadline, (before, used())
            time.sleep(0.1)
    finally:
        gc.enable()
