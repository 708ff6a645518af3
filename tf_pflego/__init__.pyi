"""The public names and where each is from, as `__init__.py` and type checkers read them."""

from tf_pflego.aggregation.attacks import with_attackers
from tf_pflego.aggregation.compression import with_compression
from tf_pflego.aggregation.private import with_dp
from tf_pflego.aggregation.robust import with_robust_aggregation
from tf_pflego.aggregation.secure import with_secure_aggregation
from tf_pflego.algorithms import build as build_algorithm
from tf_pflego.core.participation import Participation
from tf_pflego.core.statistics import Statistic
from tf_pflego.core.tasks import Task, regression
from tf_pflego.data import (
    ClientData,
    Dataset,
    Examples,
    Partition,
    assign_clients,
    from_arrays,
    merge_splits,
    round_robin,
)
from tf_pflego.data import load as load_dataset
from tf_pflego.data.partitions.dirichlet import dirichlet
from tf_pflego.data.tables.rows_to_clients import from_table
from tf_pflego.engines import InProcess
from tf_pflego.models import SplitModel, mlp
from tf_pflego.ray.options import RayOptions
from tf_pflego.reports import write as report
from tf_pflego.runs.build import build_simulation
from tf_pflego.runs.callbacks import Callback, EarlyStopping
from tf_pflego.runs.config import RunConfig
from tf_pflego.runs.stored_run import StoredRun, load_run
from tf_pflego.runs.training import run
from tf_pflego.serving.bundle import export_bundle
from tf_pflego.serving.exporting import export_clients
from tf_pflego.serving.new_clients import NewClients
from tf_pflego.serving.personal_models import PersonalModels
from tf_pflego.simulation.frozen_features import with_frozen_features
from tf_pflego.simulation.simulation import Simulation
from tf_pflego.sweeps.experiments import Experiment, Range, grid
from tf_pflego.sweeps.results import Sweep
from tf_pflego.sweeps.results import load as load_sweep
from tf_pflego.sweeps.runner import sweep
from tf_pflego.tff import from_tff
from tf_pflego.version import __version__

__all__ = [
    "Callback",
    "ClientData",
    "Dataset",
    "EarlyStopping",
    "Examples",
    "Experiment",
    "InProcess",
    "NewClients",
    "Participation",
    "Partition",
    "PersonalModels",
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
    "assign_clients",
    "build_algorithm",
    "build_simulation",
    "dirichlet",
    "export_bundle",
    "export_clients",
    "from_arrays",
    "from_table",
    "from_tff",
    "grid",
    "load_dataset",
    "load_run",
    "load_sweep",
    "merge_splits",
    "mlp",
    "regression",
    "report",
    "round_robin",
    "run",
    "sweep",
    "with_attackers",
    "with_compression",
    "with_dp",
    "with_frozen_features",
    "with_robust_aggregation",
    "with_secure_aggregation",
]
