"""Engines decide where the functions of an algorithm run. `tff_engine` is imported only when it is chosen."""

from tf_pflego.engines.exchange import Engine, Participants
from tf_pflego.engines.in_process import InProcessEngine
from tf_pflego.engines.threads import prepare_process, threads_per_operation

NAMES = ("tff", "in_process")

__all__ = ["NAMES", "Engine", "InProcessEngine", "Participants", "build", "prepare_process"]


def build(name, algorithm, data, clients_per_round) -> Engine:
    """Returns the engine `name`, one of `NAMES`, for an algorithm, the clients' `MappedData` and so many participants.

    Raises:
      ValueError: There is no such engine.
      ImportError: `tff` was chosen, and TensorFlow Federated cannot be imported.
    """
    if name == "in_process":
        return InProcessEngine(algorithm, data)
    if name != "tff":
        raise ValueError(f"`engine` must be one of {', '.join(NAMES)}; got {name!r}.")
    try:
        from tf_pflego.engines.tff_engine import TffEngine
    except ImportError as error:
        raise ImportError(
            f"`engine` tff needs TensorFlow Federated, which cannot be imported ({error}). Install it with "
            "`pip install --no-deps -r requirements.txt`, or use --engine=in_process."
        ) from error
    return TffEngine(algorithm, data, threads_per_operation(clients_per_round))
