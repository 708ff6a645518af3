"""A process that was forked from a process with TensorFlow cannot run TensorFlow.

TensorFlow's threads are not in the child: it would wait for them for ever.
"""

import os
import sys

_has_no_threads = False


def refuse(what: str) -> None:
    """Raises RuntimeError in such a process. The message begins with `what`."""
    if _has_no_threads:
        raise RuntimeError(
            f"{what} in a process that has TensorFlow's threads; process {os.getpid()} has none, "
            "since it was forked from one that had used TensorFlow. Start processes by "
            "`multiprocessing.get_context('spawn')`, or before anything is computed."
        )


def _note():
    global _has_no_threads
    _has_no_threads = _has_no_threads or _runs()


def _runs():
    """Returns whether TensorFlow has begun: only before, the number of its threads can be set."""
    if "tensorflow.python" not in sys.modules:  # What is deferred is not imported for that.
        return False
    threading = sys.modules["tensorflow"].config.threading
    number = threading.get_inter_op_parallelism_threads()
    try:
        threading.set_inter_op_parallelism_threads(number + 1)
    except RuntimeError:
        return True
    threading.set_inter_op_parallelism_threads(number)
    return False


os.register_at_fork(after_in_child=_note)
