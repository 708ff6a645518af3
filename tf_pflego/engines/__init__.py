"""Engines, in which clients live and run; TFF, Ray and devices have their own rooms."""

from tf_pflego.engines.engine import (
    Cohort,
    Engine,
    Outcome,
    Place,
    ShardLostError,
    WorkerError,
)
from tf_pflego.engines.in_process import InProcessEngine
from tf_pflego.engines.local_clients import prepare_process

__all__ = [
    "Cohort",
    "Engine",
    "InProcessEngine",
    "Outcome",
    "Place",
    "ShardLostError",
    "WorkerError",
    "prepare_process",
]
