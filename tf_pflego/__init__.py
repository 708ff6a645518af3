"""Personalised federated learning on TensorFlow Federated: PFLEGO and methods compared with it.

These are the public names. Each is imported when it is first used, so that the program can silence
TensorFlow's messages first.
"""

import importlib

__version__ = "0.1.0"

_HOME = {
    "ClientData": "tf_pflego.data",
    "Dataset": "tf_pflego.data",
    "Examples": "tf_pflego.data",
    "NewClients": "tf_pflego.serving.new_clients",
    "Partition": "tf_pflego.data",
    "Participation": "tf_pflego.core.participation",
    "RayOptions": "tf_pflego.engines",
    "RunConfig": "tf_pflego.config",
    "Simulation": "tf_pflego.training",
    "SplitModel": "tf_pflego.models",
    "StoredRun": "tf_pflego.stored_run",
    "build_algorithm": "tf_pflego.algorithms:build",
    "build_simulation": "tf_pflego.experiment",
    "dirichlet": "tf_pflego.data",
    "export_clients": "tf_pflego.serving.export",
    "export_shared_body": "tf_pflego.serving.shared_body",
    "federate": "tf_pflego.data",
    "fine_tune_new_clients": "tf_pflego.new_clients:fine_tune",
    "from_arrays": "tf_pflego.data",
    "load_clients": "tf_pflego.experiment",
    "load_dataset": "tf_pflego.data:load",
    "load_run": "tf_pflego.stored_run",
    "merged": "tf_pflego.data",
    "mlp": "tf_pflego.models",
    "report": "tf_pflego.reports:write",
    "round_robin": "tf_pflego.data",
    "run": "tf_pflego.experiment",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _HOME[name].partition(":")
    return getattr(importlib.import_module(module), attribute or name)


def __dir__():
    return __all__
