"""TensorFlow and stored runs, as verbs open them when the command line is known to be right."""

import contextlib
import logging as python_logging
import warnings
from collections.abc import Callable, Iterator

import tensorflow as tf
from absl import logging

from tf_pflego.data import ClientData
from tf_pflego.runs import stored_run
from tf_pflego.simulation.simulation import Simulation
from tf_pflego.system import deferred, temporary, terminal

# The help text of the flag by which a verb is told the method of a run.
OWN_METHOD = "FILE.py:FUNCTION of the run's method, if it is one of your own; its code is loaded"


def start_tensorflow(plain: str = "") -> None:
    """Starts TensorFlow, and keeps the libraries' messages off the terminal.

    Errors that matter to the user are raised. A pipe or file is told what is to come by `plain`.
    """
    if not deferred.is_started():
        terminal.doing(f"starting TensorFlow{plain}", plain=bool(plain))
        deferred.start()
    warnings.filterwarnings("ignore")
    logging.set_verbosity(logging.ERROR)
    # It tells of each attempt of a download; the last error is raised.
    python_logging.getLogger("urllib3").setLevel(python_logging.ERROR)
    tf.get_logger().setLevel(python_logging.ERROR)


def stored(run: str, data_dir: str, algorithm: str) -> stored_run.StoredRun:
    """Returns a run that the program can load; what is empty is left to `load_run`."""
    loaded = stored_run.load_run(run, data_dir or None, algorithm=algorithm or None)
    if not loaded.is_of_program:
        raise ValueError(
            f"`run` must be a run on a dataset and with a network that the program has; {run} is "
            "on arrays, or with a model, of your own, which it cannot load. Use Python: "
            f"`pfl.load_run({run!r}, clients=..., model=...).simulation()` with what the run was "
            "given, then `pfl.export_clients` or `pfl.NewClients`."
        )
    return loaded


@contextlib.contextmanager
def opened(
    run: stored_run.StoredRun, check: Callable[[ClientData], None] = lambda clients: None
) -> Iterator[Simulation]:
    """Gives the simulation of a run, in this process, at its newest checkpoint.

    `check` is called with the run's clients before the simulation is made, which takes longer.
    """
    start_tensorflow()
    terminal.doing(f"loading the run in {run.path}")
    with temporary.own_directory(), run:
        check(run.clients)
        with run.simulation("in_process") as simulation:
            yield simulation
