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
      data_dir: The TFDS data directory; empty for the one that the run had.
    """
    start_tensorflow()
    console.doing(f"loading the run in {run}")
    with (
        temporary.own_directory(),
        stored_run.load_run(run, data_dir or None) as stored,
        stored.simulation("in_process") as simulation,
    ):
        yield simulation
