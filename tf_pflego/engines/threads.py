"""The threads that TensorFlow takes for an operation, and the loop of clients side by side."""

import contextlib
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_pflego.core.nests import Structure


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


def side_by_side(
    count: Any,
    step: Callable[[Any], tuple[Structure, Structure]],
    spec: Structure,
    start: Structure = (),
    join: str = "stack",
    size: int | None = None,
) -> tuple[Structure, Structure]:
    """Returns the sums and the outputs of a loop, with `clients_at_once` turns at a time.

    Args:
      count: The number of turns, a tensor or an int.
      step: The function of a turn, by its number, to what it adds to the sums, and its outputs.
      spec: The specs of the outputs. With `concat` only their dtypes count.
      start: The sums before the first turn.
      join: How the outputs of all turns become one tensor, `stack` or `concat`.
      size: The most turns, if outputs are stacked to this length; None for `count`.
    """

    def turn(k, total, arrays):
        added, outputs = step(k)
        total = tf.nest.map_structure(tf.add, total, added)
        pairs = zip(arrays, tf.nest.flatten(outputs), strict=True)
        return k + 1, total, [array.write(k, output) for array, output in pairs]

    arrays = []
    for one in tf.nest.flatten(spec):
        about: dict = {"element_shape": one.shape}
        if join == "concat":
            about = {"infer_shape": False}
        arrays.append(tf.TensorArray(one.dtype, count if size is None else size, **about))
    # Only the sums and the arrays pass from one turn to the next: turns run in parallel.
    _, total, arrays = tf.while_loop(
        lambda k, total, arrays: k < count,
        turn,
        (0, start, arrays),
        parallel_iterations=clients_at_once(),
    )
    return total, tf.nest.pack_sequence_as(spec, [getattr(array, join)() for array in arrays])


def prepare_process(clients_per_round: float) -> None:
    """Sets up TensorFlow in this process for rounds in process.

    Only a program should call this, since the setting applies to the whole process. It has an
    effect only before TensorFlow has run its first operation.
    """
    if threads := threads_per_operation(clients_per_round):
        # TensorFlow may be running already; then rounds are slower, and sums have other last bits.
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(threads)
