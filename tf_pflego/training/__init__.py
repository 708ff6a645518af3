"""The rounds of a run, and the evaluation of its clients."""

from tf_pflego.records import LAST_ROUNDS
from tf_pflego.training.checkpoint import CheckpointError, Checkpoints, DamagedError
from tf_pflego.training.evaluation import Evaluation
from tf_pflego.training.measuring import Metrics
from tf_pflego.training.not_finite import NotFiniteError
from tf_pflego.training.simulation import Simulation
from tf_pflego.training.summary import summarize

__all__ = [
    "LAST_ROUNDS",
    "CheckpointError",
    "Checkpoints",
    "DamagedError",
    "Evaluation",
    "Metrics",
    "NotFiniteError",
    "Simulation",
    "summarize",
]
