"""A stored run as verbs ask it."""

import contextlib
from collections.abc import Iterator

from tf_pflego import console, stored_run
from tf_pflego.core import temporary
from tf_pflego.training import Simulation
from tf_pflego.verbs.starting import start_tensorflow


@contextlib.contextmanager
def opened(run: str, data_dir: str) -> Iterator[Simulation]:
    """Gives the simulation of a run, in this process, at its newest checkpoint.

    Args:
      run: The run's output directory.
      data_dir: The TFDS data directory; empty for TFDS' own default.

    Raises:
      ValueError: The run is on a user's own arrays or model.
    """
    stored = stored_run.load_run(run, data_dir or None)
    if not stored.is_of_program:
        raise ValueError(
            f"`run` must be a run on a dataset and with a network that the program has; {run} is "
            "on arrays, or with a model, of your own, which it cannot load. Use Python: "
            f"`pfl.load_run({run!r}, clients=..., model=...).simulation()` with what the run was "
            "given, then `pfl.export_clients` or `pfl.NewClients`."
        )
    start_tensorflow()
    console.doing(f"loading the run in {run}")
    with (
        temporary.own_directory(),
        stored,
        stored.simulation() as simulation,
    ):
        yield simulation
