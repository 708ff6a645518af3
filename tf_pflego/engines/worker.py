"""The TFF worker process, which this package starts, owns, and never leaves behind.

TensorFlow Federated runs computations in a child process, `worker_binary`, that it reaches over
gRPC. The launcher that TFF has for it leaves the child behind when the program ends by an exception
or a signal, and even when it ends normally. Here the child

* dies with this process, whatever ends it: the kernel sends the child SIGKILL (`PR_SET_PDEATHSIG`),
  even after kill -9;
* is terminated and reaped at a normal exit;
* runs in its own session, so that Ctrl-C reaches only the program, which then ends the child in
  order;
* writes to a log of its own and not to the program's standard output, so that a pipeline never
  waits for it.

This module imports `tensorflow_federated`; only `engines.tff_engine` imports this module.
"""

import atexit
import ctypes
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence

import grpc
import portpicker
import tensorflow_federated as tff

_PR_SET_PDEATHSIG = 1
_GRPC_OPTIONS = (
    ("grpc.max_message_length", 2**31 - 1),
    ("grpc.max_receive_message_length", 2**31 - 1),
    ("grpc.max_send_message_length", 2**31 - 1),
)
_POLL_SECONDS = 0.01


class WorkerError(ChildProcessError):
    """The worker process did not start, or ended while it was needed."""


class Worker:
    """One `worker_binary` child and the gRPC stub that reaches it.

    Args:
      inherited_files: Descriptors of open files that the worker inherits; computations read them as
        `/proc/self/fd/N`.
      threads_per_operation: How many threads one TensorFlow operation may use; None for as many as
        there are cores.
      start_timeout: Seconds to wait until the worker answers.

    Raises:
      WorkerError: The worker ended, or did not answer within `start_timeout`.
    """

    def __init__(
        self,
        inherited_files: Sequence[int] = (),
        threads_per_operation: int | None = None,
        start_timeout: float = 60.0,
    ):
        if threading.current_thread() is not threading.main_thread():
            # PR_SET_PDEATHSIG fires when the *thread* that forked the child ends, not its process.
            raise WorkerError(
                "the TFF worker must be started from the main thread, so that it lives as long as "
                "the program"
            )
        self._log = tempfile.TemporaryFile(prefix="tf_pflego_worker_")
        port = portpicker.pick_unused_port()
        self._process = subprocess.Popen(
            [
                _binary_path(),
                f"--port={port}",
                f"--max_concurrent_computation_calls={os.cpu_count()}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=tuple(inherited_files),
            preexec_fn=_die_with_parent(os.getpid()),
            env=os.environ
            | (
                {"TF_NUM_INTRAOP_THREADS": str(threads_per_operation)}
                if threads_per_operation
                else {}
            ),
        )
        atexit.register(self.stop)
        # `stop` does not close the channel: a thread of gRPC that still polls a closed channel
        # aborts the interpreter at exit.
        self._channel = grpc.insecure_channel(f"localhost:{port}", _GRPC_OPTIONS)
        self.stub = tff.framework.RemoteExecutorGrpcStub(self._channel)
        deadline = time.monotonic() + start_timeout
        while not self.stub.is_ready:
            if self._process.poll() is not None or time.monotonic() > deadline:
                reason = (
                    f"exit code {self._process.poll()}"
                    if self._process.poll() is not None
                    else "no answer"
                )
                tail = self.log_tail()
                self.stop()
                raise WorkerError(
                    f"the TFF worker did not start ({reason}); its log ends with:\n{tail}"
                )
            time.sleep(_POLL_SECONDS)

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    def check_alive(self) -> None:
        """Raises `WorkerError`, with the end of the log, if the child has ended."""
        if self._process.poll() is not None:
            raise WorkerError(
                f"the TFF worker (process {self.pid}) ended with code {self._process.returncode}; "
                f"its log ends with:\n{self.log_tail()}"
            )

    def log_tail(self, num_bytes: int = 2000) -> str:
        """The end of what the child has written to standard output and error."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), num_bytes, max(0, size - num_bytes)).decode(
            errors="replace"
        )

    def stop(self, grace_seconds: float = 2.0) -> None:
        """Terminates the child and reaps it; may be called more than once."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(grace_seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        atexit.unregister(self.stop)


class ExecutorFactory(tff.framework.ExecutorFactory):
    """Holds one executor, and closes it as soon as another number of clients is needed.

    TFF's own factory keeps ten executors and drops them without closing them: if the size of the
    cohort varies, the worker's memory grows without bound.
    """

    def __init__(self, worker: Worker):
        self._worker = worker
        self._executor = None
        self._cardinalities = None

    def create_executor(self, cardinalities):
        """Returns an executor for `cardinalities`; raises `WorkerError` if the worker is gone."""
        self._worker.check_alive()
        if self._executor is None or cardinalities != self._cardinalities:
            self.clean_up_executor(cardinalities)
            self._executor = tff.framework.RemoteExecutor(self._worker.stub)
            # A computation without clients names no placement, but the worker needs one.
            self._executor.set_cardinalities({tff.CLIENTS: 0, **cardinalities})
            self._cardinalities = dict(cardinalities)
        return self._executor

    def clean_up_executor(self, cardinalities):
        """Closes the executor, if there is one."""
        del cardinalities
        if self._executor is not None:
            try:
                self._executor.close()
            finally:
                self._executor = None


def execution_context(worker: Worker) -> "tff.framework.SyncExecutionContext":
    """Returns a TFF context that executes in `worker`."""
    return tff.framework.SyncExecutionContext(
        executor_fn=ExecutorFactory(worker),
        compiler_fn=_compiled,
        transform_args=tff.tensorflow.transform_args,
        transform_result=tff.tensorflow.transform_result,
    )


def _compiled(computation):
    """Returns a computation in the form that the worker runs.

    TFF's own compiler also optimises the TensorFlow graphs. That would inline even functions that
    are marked as not to be inlined, and must not be: see `models.pooling`.
    """
    block, _ = tff.tensorflow.replace_intrinsics_with_bodies(computation.to_building_block())
    context_stack = tff.framework.get_context_stack()
    return tff.backends.native.transform_to_native_form(
        tff.framework.ConcreteComputation(
            computation_proto=block.proto, context_stack=context_stack
        )
    )


def _binary_path() -> str:
    path = os.path.join(os.path.dirname(tff.__file__), "data", "worker_binary")
    if not os.path.isfile(path):
        raise WorkerError(
            f"tensorflow_federated has no worker at {path}; install it again from requirements.txt"
        )
    return path


def _die_with_parent(parent_pid: int):
    libc = ctypes.CDLL(None, use_errno=True)

    def before_exec():
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:
            os._exit(1)  # The parent ended between fork and prctl: the signal will never come.

    return before_exec
