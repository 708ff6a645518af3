"""Engines: where clients live and run. Those of TFF, Ray and devices are in rooms of their own."""

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
