"""A stored run as verbs ask it."""

import contextlib
from collections.abc import Callable, Iterator

from tf_pflego.data import ClientData
from tf_pflego.program.starting import start_tensorflow
from tf_pflego.runs import stored_run
from tf_pflego.simulation.simulation import Simulation
from tf_pflego.system import temporary, terminal

# The help text of the flag by which a verb is told the method of a run.
OWN_METHOD = "FILE.py:FUNCTION of the run's method, if it is one of your own; its code is loaded"


def stored(run: str, data_dir: str, algorithm: str) -> stored_run.StoredRun:
    """Returns a run that the program can load.

    Args:
      run: The run's output directory.
      data_dir: The TFDS data directory; empty for TFDS' own default.
      algorithm: FILE.py:FUNCTION, if the method is the user's own; otherwise empty.

    Raises:
      ValueError: The run is on a user's own arrays or model, or its method must be named.
    """
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

    Args:
      run: The run.
      check: Called with the run's clients, before the simulation is made, which takes longer.
    """
    start_tensorflow()
    terminal.doing(f"loading the run in {run.path}")
    with temporary.own_directory(), run:
        check(run.clients)
        with run.simulation("in_process") as simulation:
            yield simulation
