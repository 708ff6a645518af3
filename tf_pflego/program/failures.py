"""The message and the exit code when an exception ends the program.

2 is for errors that the user can correct. 3 is for a round that cannot end with finite numbers. 4
is for a claim of privacy that an audit has refuted. 1 is for everything else, a fault of this
package or its dependencies: then the traceback is in a file of the directory for temporary files.
"""

import sys
import tempfile
import traceback

import tensorflow as tf

from tf_pflego.algorithms import own_methods
from tf_pflego.simulation.not_finite import NotFiniteError
from tf_pflego.system import deferred, errors

CORRECTABLE, NOT_FINITE, REFUTED, FAULT = 2, 3, 4, 1
_SHOWN = 300


class RefutedError(Exception):
    """An audit has refuted a run's claim."""


def explained(error: Exception) -> tuple[int, str]:
    """Returns the exit code for an exception, and a message of one line, or one for each fault."""
    if isinstance(error, MemoryError) or _is_of_tensorflow_memory(error):
        return CORRECTABLE, (
            f"the run must fit the memory; it does not ({_reason(error)}). Lower "
            "`clients_per_round`, `num_clients`, `batch_size` or `activation_gigabytes`."
        )
    if isinstance(error, NotFiniteError):
        return NOT_FINITE, " ".join(str(error).split())
    if isinstance(error, RefutedError):
        return REFUTED, str(error)
    if _is_of_grpc(error):
        return CORRECTABLE, (
            f"the TFF worker must answer; it does not ({_reason(error)}). Run the same command "
            "again, with `resume=True` if it has an `output_dir`, or use `engine='in_process'`."
        )
    if isinstance(error, OSError):
        if error.errno is None:  # An error of our own, which says what to do.
            return CORRECTABLE, _reason(error)
        remedy = "Free or permit what it names, or name another place, and run the same command"
        return CORRECTABLE, f"{_reason(error)}. {remedy} again."
    if isinstance(error, ImportError) or (
        isinstance(error, ValueError | TypeError | RuntimeError) and errors.is_ours(error)
    ):
        lines = isinstance(error, errors.Faults)
        return CORRECTABLE, str(error) if lines else " ".join(str(error).split())
    in_own_method = own_methods.failed_when_traced(error)
    if in_own_method is not None:
        return CORRECTABLE, str(in_own_method)
    return FAULT, (
        f"the run must end without an unknown error; got {type(error).__name__} "
        f"({_reason(error)}). {_written(error)}"
    )


def _is_of_tensorflow_memory(error):
    # Before TensorFlow has been started, the error is none of its own.
    return deferred.is_started() and isinstance(error, tf.errors.ResourceExhaustedError)


def _is_of_grpc(error):
    # If nothing has imported it, the error is none of its own.
    grpc = sys.modules.get("grpc")
    return grpc is not None and isinstance(error, grpc.RpcError)


def _written(error):
    """Writes the traceback to a file and returns the line about it."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="tf_pflego_", suffix=".traceback.txt", delete=False, encoding="utf-8"
        ) as file:
            file.write("".join(traceback.format_exception(error)).encode(errors="replace").decode())
    except OSError as other:
        return f"Its traceback could not be written ({other}); free some space and try again."
    return (
        f"Its traceback is in {file.name}; report it with the command. Rounds that have a "
        "checkpoint are kept: `resume=True` goes on from there."
    )


def _reason(error):
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
