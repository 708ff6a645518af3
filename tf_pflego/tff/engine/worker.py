"""The TFF worker process, which this package starts, owns, and never leaves behind.

TensorFlow Federated runs computations in a child process, `worker_binary`, that it reaches over
gRPC. The launcher that TFF has for it leaves the child behind when the program ends by an exception
or a signal, and even when it ends normally. Here the child

* dies with this process in all cases: the kernel sends the child SIGKILL (`PR_SET_PDEATHSIG`), even
  after kill -9;
* is terminated and reaped at a normal exit;
* runs in its own session: Ctrl-C reaches only the program, which then ends the child in order;
* writes to its own log and not to the program's standard output: a pipeline never waits for it;
* is reached through a private socket, because its own port would be open to everybody: see
  `tff.engine.private_socket`. If the system forbids that, a line on standard error reports it.
* is watched while an answer of it is awaited: if it ends, is stopped or falls silent, the request
  fails with `WorkerError` within about a second, or a minute if it is silent. TFF's own client
  would ask a worker that has ended again and again, and wait for a stopped one for ever.
"""

import atexit
import contextlib
import functools
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

from tf_pflego.engines.engine import WorkerError
from tf_pflego.system import log
from tf_pflego.tff.engine import launcher
from tf_pflego.tff.engine.private_socket import NotPrivateError, PrivateSocket
from tf_pflego.tff.engine.watch import Watch

# At its import TFF makes a context whose finalizer fails when Python has taken modules apart.
atexit.register(tff.test.set_no_default_context)

_GRPC_OPTIONS = (
    ("grpc.max_message_length", 2**31 - 1),
    ("grpc.max_receive_message_length", 2**31 - 1),
    ("grpc.max_send_message_length", 2**31 - 1),
    # A proxy for the Web, if the environment names one, does not reach the worker.
    ("grpc.enable_http_proxy", 0),
    # A worker that does not listen yet is asked again after this many milliseconds.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # A private socket can be connected to only once: the channel must not hang up when it is idle.
    ("grpc.client_idle_timeout_ms", 2**31 - 1),
)
_POLL_SECONDS = 0.1
# A worker closes its connection when it ends; the kernel may need this long to say how it ended.
_ENDING_SECONDS = 5.0
_DISPOSAL_SECONDS = 5.0
_START_SECONDS = 60.0  # to answer for the first time
_GRACE_SECONDS = 2.0  # to end when it is asked to
_TAIL_BYTES = 2000  # of its log, in a message


class Worker:
    """One `worker_binary` child, and `stub`, which sends TFF's requests to it.

    The child inherits open files, and computations read them as `/proc/self/fd/N`. One TensorFlow
    operation may use `threads_per_operation` threads; None for the number of cores. A worker that
    ends, or does not answer within a minute, is a `WorkerError`, as are requests to a worker that
    is gone.
    """

    def __init__(
        self, inherited_files: Sequence[int] = (), threads_per_operation: int | None = None
    ):
        if threading.current_thread() is not threading.main_thread():
            # PR_SET_PDEATHSIG fires when the *thread* that started the child ends, not its process.
            raise WorkerError(
                "the TFF worker must be started from the main thread, so that it lives as long as "
                "the program"
            )
        self._environment = os.environ | (
            {"TF_NUM_INTRAOP_THREADS": str(threads_per_operation)} if threads_per_operation else {}
        )
        self._inherited_files = tuple(inherited_files)
        self._owner = os.getpid()
        self._log = tempfile.TemporaryFile(prefix="tf_pflego_worker_")
        self._fault: str | None = None
        atexit.register(self.stop)
        deadline = time.monotonic() + _START_SECONDS
        try:
            try:
                self._start_on_private_socket(deadline)
            except NotPrivateError as reason:
                self.stop()
                self._start_on_port(deadline, reason)
        except BaseException:
            self.close()
            raise
        self._watch = Watch(self.pid)
        self._requests = _Requests(self._channel, self)
        self.stub = tff.framework.RemoteExecutorGrpcStub(self._requests)

    def _start_on_private_socket(self, deadline):
        private = PrivateSocket()
        try:
            # The worker takes some port that is free, but never listens on it.
            self._process = self._started(0, private.listener_to)
            while not private.answer(_POLL_SECONDS):
                self._check_starting(deadline)
            self._connect(private.address, deadline)
        finally:
            private.close()

    def _start_on_port(self, deadline, reason):
        port = portpicker.pick_unused_port()
        log.warning(
            f"the TFF worker listens on port {port} of all network interfaces, and any program "
            "that reaches it can run code as you, because this system does not let the program "
            f"replace the port by a private socket ({reason}); the engine in_process needs no port"
        )
        self._process = self._started(port)
        self._connect(f"localhost:{port}", deadline)

    def _started(self, port, *listener_to) -> subprocess.Popen[bytes]:
        command = [
            _binary_path(),
            f"--port={port}",
            f"--max_concurrent_computation_calls={os.cpu_count()}",
        ]
        try:
            return subprocess.Popen(
                launcher.command_of(command, *listener_to),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(*self._inherited_files, *listener_to),
                env=self._environment,
            )
        except OSError as error:
            raise WorkerError(f"the TFF worker did not start ({error})") from error

    def _connect(self, address, deadline):
        """Makes the channel, and waits until the worker answers."""
        _keep_grpc_running()
        self._channel = grpc.insecure_channel(address, _GRPC_OPTIONS)
        anything = self._channel.unary_unary("/tf_pflego/anything")
        while True:
            try:
                anything(b"", timeout=_POLL_SECONDS, wait_for_ready=True)
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                    return  # It serves, and has told us that it does not know the method.
            self._check_starting(deadline)

    def _check_starting(self, deadline):
        code = self._process.poll()
        if code is not None or time.monotonic() > deadline:
            reason = "no answer" if code is None else _how_it_ended(code)
            raise WorkerError(f"the TFF worker did not start ({reason})", self.log_tail())

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    def check_alive(self) -> None:
        """Raises `WorkerError`, with the end of the log, if the child has ended or was given up."""
        if self._fault is not None or self._process.poll() is not None:
            fault = self._fault or _how_it_ended(self._process.returncode)
            raise WorkerError(f"the TFF worker (process {self.pid}) {fault}", self.log_tail())

    def check_connected(self, error: Exception) -> None:
        """Raises `WorkerError` if a request has raised this since the child is gone."""
        lost = isinstance(error, grpc.RpcError) and error.code() == grpc.StatusCode.UNAVAILABLE
        if lost and self._fault is None:
            # A private socket can be connected to only once: what is lost stays lost.
            try:
                self._process.wait(_ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                self._give_up("closed its connection")
        self.check_alive()

    def look(self) -> None:
        """Looks at a computing worker every `LOOK_SECONDS`, and gives up a worker without answers.

        The requests that wait for it then raise `WorkerError`.
        """
        if self._process.poll() is not None:
            self._give_up(None)
        elif fault := self._watch.look(self._requests.awaited):
            self._give_up(fault)

    def _give_up(self, fault):
        """Kills the child, as it has ended or for a fault, and ends the requests that wait."""
        self._fault = self._fault or fault
        self._process.kill()
        self._channel.close()

    def log_tail(self) -> str:
        """Returns the end of the child's standard output and error."""
        size = os.fstat(self._log.fileno()).st_size
        tail = os.pread(self._log.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        return tail.decode(errors="replace")

    def stop(self) -> None:
        """Terminates the child and reaps it; may be called more than once.

        In a forked process it has no effect: the child belongs to the parent.
        """
        if os.getpid() != self._owner:
            return
        if hasattr(self, "_process") and self._process.poll() is None:  # It may not have started.
            self._process.terminate()
            try:
                self._process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def close(self) -> None:
        """Stops the child and frees its connections; may be called more than once."""
        self.stop()
        atexit.unregister(self.stop)
        if hasattr(self, "_channel"):
            self._channel.close()
        self._log.close()


class _Requests:
    """A worker's channel as `RemoteExecutorGrpcStub` uses it.

    It has no thread that watches the channel's state: the thread would poll the connection five
    times a second, and abort the interpreter at exit if the channel were closed. `Worker` itself
    has waited until the channel is connected. `awaited` is the request without an answer, or None.
    """

    def __init__(self, channel: grpc.Channel, worker: Worker):
        self._channel = channel
        self._worker = worker
        self.awaited: object = None

    def unary_unary(self, method: str, **serializers):
        """Returns the function that sends one kind of request and returns its answer."""
        send = self._channel.unary_unary(method, **serializers)
        if method.rsplit("/")[-1] in ("Dispose", "DisposeExecutor"):
            return functools.partial(self._dispose, send)
        return functools.partial(self._request, send)

    def _request(self, send, message):
        self.awaited = object()
        try:
            return send(message)
        except (grpc.RpcError, ValueError) as error:  # ValueError if the channel is closed
            self._worker.check_connected(error)
            raise
        finally:
            self.awaited = None

    def _dispose(self, send, message):
        # Finalizers of values ask for it, in any thread, and no error may leave a finalizer. A
        # worker that is gone has disposed of everything, and the next request finds it gone.
        with contextlib.suppress(grpc.RpcError, ValueError):
            return send(message, timeout=_DISPOSAL_SECONDS)

    def subscribe(self, callback, try_to_connect=False):
        """Does not subscribe."""


@functools.cache
def _keep_grpc_running():
    """Makes a channel that connects to nothing and is never closed.

    With its last channel gRPC ends its threads, and with gRPC 1.74 some programs that closed
    simulations on a busy machine crashed then; grpc/grpc#41264 may be the cause.
    """
    return grpc.insecure_channel("unix:/nothing")


def _how_it_ended(code):
    """Returns the end of a sentence for the return code of a `subprocess.Popen`."""
    if code >= 0:
        return f"ended with code {code}"
    name = signal.Signals(-code).name
    return f"was killed by {name}" + (", as when memory runs out" if name == "SIGKILL" else "")


def _binary_path() -> str:
    path = os.path.join(os.path.dirname(tff.__file__), "data", "worker_binary")
    if not os.path.isfile(path):
        raise WorkerError(
            f"tensorflow_federated has no worker at {path}; install it again from requirements.txt"
        )
    return path
