"""Engines: where clients live and run. `tff_engine` is imported only when it is chosen."""

import importlib.util

from tf_pflego.core import values
from tf_pflego.engines.engine import Cohort, Engine, Outcome, Statistics, WorkerError
from tf_pflego.engines.in_process import InProcessEngine
from tf_pflego.engines.threads import prepare_process

NAMES = ("tff", "in_process")
# The engine of a run that names none. To import TensorFlow Federated would take seconds.
DEFAULT = "tff" if importlib.util.find_spec("tensorflow_federated") else "in_process"

__all__ = [
    "DEFAULT",
    "NAMES",
    "Cohort",
    "Engine",
    "InProcessEngine",
    "Outcome",
    "Statistics",
    "WorkerError",
    "build",
    "prepare_process",
    "refuse_absent",
]


def build(name, algorithm, clients, server_state, federation, seed, max_restarts) -> Engine:
    """Returns an engine with the clients of a federation.

    Args:
      name: One of `NAMES`.
      algorithm: The algorithm.
      clients: The clients' data.
      server_state: The server's first state.
      federation: The federation.
      seed: The seed of the run.
      max_restarts: How often one exchange is run again because a worker process failed.

    Raises:
      ValueError: There is no such engine.
      ImportError: `tff` was chosen, and TensorFlow Federated cannot be imported.
    """
    name = values.one_of("engine", name, NAMES)
    if name == "in_process":
        return InProcessEngine(algorithm, clients, server_state, seed)
    try:
        from tf_pflego.engines.tff_engine import TffEngine
    except ImportError as error:
        raise _absent(error) from error
    return TffEngine(algorithm, clients, server_state, seed, federation, max_restarts)


def refuse_absent(name: str) -> None:
    """Raises ImportError if an engine needs a package that is not installed; imports nothing."""
    if name == "tff" and not importlib.util.find_spec("tensorflow_federated"):
        raise _absent("it is not installed")


def _absent(reason):
    return ImportError(
        f"`engine` tff needs TensorFlow Federated, which cannot be imported ({reason}). "
        "Use `engine='in_process'`, which gives the same weights; or, on Python 3.10 or 3.11, "
        "install it: `pip install --no-deps -r requirements.txt`, see docs/installing.md."
    )
