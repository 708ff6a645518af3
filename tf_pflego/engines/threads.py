"""How many threads TensorFlow takes for an operation, and how many clients run side by side."""

import contextlib
import os

import tensorflow as tf


def threads_per_operation(clients_per_round: float) -> int | None:
    """Returns the number of threads for one operation: 1, or None to leave it to TensorFlow.

    It is 1 if a round has at least as many participants as there are cores, since they keep every
    core busy then. An operation that is split among busy cores waits for them: with 20 clients on
    two cores, a round would take up to twice as long. The last bits of sums depend on this number,
    and a run has the same bits on machines with the same number.
    """
    return 1 if clients_per_round >= (os.cpu_count() or 1) else None


def clients_at_once() -> int:
    """Returns the number of clients that run side by side here, as many as operations do."""
    return tf.config.threading.get_inter_op_parallelism_threads() or os.cpu_count() or 1


def prepare_process(clients_per_round: float) -> None:
    """Sets up TensorFlow in this process for rounds in process.

    Only a program should call this, since the setting applies to the whole process. It has an
    effect only before TensorFlow has run its first operation.
    """
    if threads := threads_per_operation(clients_per_round):
        # TensorFlow may be running already; then rounds are slower, and sums have other last bits.
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(threads)
