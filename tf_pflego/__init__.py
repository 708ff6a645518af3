"""Personalised federated learning on TensorFlow Federated: PFLEGO and methods compared with it.

These are the public names. Each is imported when it is first used. Where this imports TensorFlow,
the lines that TensorFlow logs at its import are left out.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING

import tf_pflego.system.forked  # noqa: F401 (It has to know of each fork from now on.)
from tf_pflego.version import __version__

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow reads it at its import.

_HOME = {
    "Callback": "tf_pflego.runs.callbacks",
    "ClientData": "tf_pflego.data",
    "Dataset": "tf_pflego.data",
    "EarlyStopping": "tf_pflego.runs.callbacks",
    "Examples": "tf_pflego.data",
    "Experiment": "tf_pflego.sweeps.definition",
    "NewClients": "tf_pflego.serving.new_clients",
    "Participation": "tf_pflego.core.participation",
    "Partition": "tf_pflego.data",
    "Range": "tf_pflego.sweeps.definition",
    "RayOptions": "tf_pflego.ray.options",
    "RunConfig": "tf_pflego.runs.config",
    "Simulation": "tf_pflego.simulation.simulation",
    "SplitModel": "tf_pflego.models",
    "Statistic": "tf_pflego.core.statistics",
    "StoredRun": "tf_pflego.runs.stored_run",
    "Sweep": "tf_pflego.sweeps.results",
    "Task": "tf_pflego.core.tasks",
    "attacked": "tf_pflego.aggregation.attacks",
    "build_algorithm": "tf_pflego.algorithms:build",
    "build_simulation": "tf_pflego.runs.build",
    "compressed": "tf_pflego.aggregation.compression",
    "dirichlet": "tf_pflego.data.partitions.dirichlet",
    "export_clients": "tf_pflego.serving.export",
    "export_shared_body": "tf_pflego.serving.shared_body",
    "federate": "tf_pflego.data",
    "from_arrays": "tf_pflego.data",
    "from_table": "tf_pflego.data.tables.dealing",
    "from_tff": "tf_pflego.tff",
    "grid": "tf_pflego.sweeps.definition",
    "load_dataset": "tf_pflego.data:load",
    "load_run": "tf_pflego.runs.stored_run",
    "load_sweep": "tf_pflego.sweeps.results:load",
    "merged": "tf_pflego.data",
    "mlp": "tf_pflego.models",
    "private": "tf_pflego.aggregation.private",
    "regression": "tf_pflego.core.tasks",
    "report": "tf_pflego.reports:write",
    "robust": "tf_pflego.aggregation.robust",
    "round_robin": "tf_pflego.data",
    "run": "tf_pflego.runs.training",
    "secure": "tf_pflego.aggregation.secure",
    "sweep": "tf_pflego.sweeps.runner",
    "with_frozen_features": "tf_pflego.simulation.frozen_features",
}

# Type checkers read no other form. A test compares the three lists.
__all__ = [
    "Callback",
    "ClientData",
    "Dataset",
    "EarlyStopping",
    "Examples",
    "Experiment",
    "NewClients",
    "Participation",
    "Partition",
    "Range",
    "RayOptions",
    "RunConfig",
    "Simulation",
    "SplitModel",
    "Statistic",
    "StoredRun",
    "Sweep",
    "Task",
    "__version__",
    "attacked",
    "build_algorithm",
    "build_simulation",
    "compressed",
    "dirichlet",
    "export_clients",
    "export_shared_body",
    "federate",
    "from_arrays",
    "from_table",
    "from_tff",
    "grid",
    "load_dataset",
    "load_run",
    "load_sweep",
    "merged",
    "mlp",
    "private",
    "regression",
    "report",
    "robust",
    "round_robin",
    "run",
    "secure",
    "sweep",
    "with_frozen_features",
]

# Type checkers and editors read this in place of `_HOME`.
if TYPE_CHECKING:
    from tf_pflego.aggregation.attacks import attacked
    from tf_pflego.aggregation.compression import compressed
    from tf_pflego.aggregation.private import private
    from tf_pflego.aggregation.robust import robust
    from tf_pflego.aggregation.secure import secure
    from tf_pflego.algorithms import build as build_algorithm
    from tf_pflego.core.participation import Participation
    from tf_pflego.core.statistics import Statistic
    from tf_pflego.core.tasks import Task, regression
    from tf_pflego.data import (
        ClientData,
        Dataset,
        Examples,
        Partition,
        federate,
        from_arrays,
        merged,
        round_robin,
    )
    from tf_pflego.data import load as load_dataset
    from tf_pflego.data.partitions.dirichlet import dirichlet
    from tf_pflego.data.tables.dealing import from_table
    from tf_pflego.models import SplitModel, mlp
    from tf_pflego.ray.options import RayOptions
    from tf_pflego.reports import write as report
    from tf_pflego.runs.build import build_simulation
    from tf_pflego.runs.callbacks import Callback, EarlyStopping
    from tf_pflego.runs.config import RunConfig
    from tf_pflego.runs.stored_run import StoredRun, load_run
    from tf_pflego.runs.training import run
    from tf_pflego.serving.export import export_clients
    from tf_pflego.serving.new_clients import NewClients
    from tf_pflego.serving.shared_body import export_shared_body
    from tf_pflego.simulation.frozen_features import with_frozen_features
    from tf_pflego.simulation.simulation import Simulation
    from tf_pflego.sweeps.definition import Experiment, Range, grid
    from tf_pflego.sweeps.results import Sweep
    from tf_pflego.sweeps.results import load as load_sweep
    from tf_pflego.sweeps.runner import sweep
    from tf_pflego.tff import from_tff
else:

    def __getattr__(name):
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, attribute = _HOME[name].partition(":")
        if "tensorflow" not in sys.modules:
            with importlib.import_module("tf_pflego.system.deferred").without_native_messages():
                importlib.import_module(module)
        return getattr(importlib.import_module(module), attribute or name)

    def __dir__():
        return __all__
