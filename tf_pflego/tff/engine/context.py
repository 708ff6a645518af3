"""How TFF executes computations in a worker: its executor, and the thread of its event loop."""

import asyncio
import concurrent.futures
import threading

import tensorflow_federated as tff

from tf_pflego.tff.engine.watch import LOOK_SECONDS
from tf_pflego.tff.engine.worker import Worker


class ExecutorFactory(tff.framework.ExecutorFactory):
    """Holds one executor, and closes it when another number of clients is needed.

    TFF's own factory keeps ten executors and drops them without closing them: if the size of the
    cohort varies, the worker's memory grows without bound.
    """

    def __init__(self, worker: Worker):
        self._worker = worker
        self._executor: tff.framework.RemoteExecutor | None = None
        self._cardinalities: dict | None = None

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


class ExecutionContext(tff.framework.SyncContext):
    """A TFF context that executes in a worker; close it to end both.

    TFF's own `SyncExecutionContext` never ends its thread and its event loop. Nothing else closes
    the worker.
    """

    def __init__(self, worker: Worker):
        self._worker = worker
        self._executors = ExecutorFactory(worker)
        self._context = tff.framework.AsyncExecutionContext(
            executor_fn=self._executors,
            compiler_fn=_compiled,
            transform_args=tff.tensorflow.transform_args,
            transform_result=tff.tensorflow.transform_result,
        )
        started: concurrent.futures.Future = concurrent.futures.Future()
        # The program's own thread may run an event loop already, as in a notebook.
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._keep_loop(started)), daemon=True
        )
        self._thread.start()
        self._loop = started.result()

    async def _keep_loop(self, started):
        self._ended = asyncio.Event()
        started.set_result(asyncio.get_running_loop())
        await self._ended.wait()

    def invoke(self, comp, arg):
        """Returns the result of a computation; `WorkerError` if the worker will not answer."""
        running = asyncio.run_coroutine_threadsafe(self._context.invoke(comp, arg), self._loop)
        while True:
            try:
                return running.result(LOOK_SECONDS)
            except concurrent.futures.TimeoutError:
                if running.done():  # The computation itself has raised it, or is done by now.
                    return running.result()
            self._worker.look()

    def close(self) -> None:
        """Ends the worker and the thread; may be called more than once."""
        # First the worker: the thread may wait for it, in a round that was interrupted.
        self._worker.stop()
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join()
        # Else values that are forgotten later would ask the worker to free them.
        self._executors.clean_up_executor({})
        self._worker.close()


def _compiled(computation):
    """Returns a computation in the form that the worker runs.

    TFF's own compiler also optimises the TensorFlow graphs. That would inline even functions that
    are marked as not to be inlined, and must not be: see `models.body.pooling`.
    """
    block, _ = tff.tensorflow.replace_intrinsics_with_bodies(computation.to_building_block())
    context_stack = tff.framework.get_context_stack()
    return tff.backends.native.transform_to_native_form(
        tff.framework.ConcreteComputation(
            computation_proto=block.proto, context_stack=context_stack
        )
    )
