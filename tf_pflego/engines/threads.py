"""How many threads a TensorFlow operation should use while clients run side by side."""

import os

import tensorflow as tf


def threads_per_operation(clients_per_round: float) -> int | None:
    """Returns 1 if the participants of a round keep every core busy, each with its own work, else None, TensorFlow's choice.

    Operations that are split among cores which are busy already wait for each other: with 20 clients on two cores a round
    takes up to twice as long.
    """
    return 1 if clients_per_round >= os.cpu_count() else None


def prepare_process(clients_per_round: float) -> None:
    """Sets this process' TensorFlow up for rounds in process; for programs, which own their process.

    It has an effect only before TensorFlow has run its first operation.
    """
    threads = threads_per_operation(clients_per_round)
    if threads is not None:
        try:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
        except (
            RuntimeError
        ):  # TensorFlow is running already; rounds are slower and nothing else changes.
            pass
