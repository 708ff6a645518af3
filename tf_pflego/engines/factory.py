"""Makes the engine that a run names. Those of TFF and Ray are imported only when chosen."""

import importlib.util
from typing import NamedTuple

from tf_pflego.engines.engine import Engine
from tf_pflego.engines.in_process import InProcessEngine
from tf_pflego.engines.ray import ray_options
from tf_pflego.engines.ray.ray_options import RayOptions
from tf_pflego.system import values

NAMES = ("tff", "in_process", "ray")
# The engine of a run that names none. To import TensorFlow Federated would take seconds.
DEFAULT = "tff" if importlib.util.find_spec("tensorflow_federated") else "in_process"


def build(
    name, algorithm, clients, server_state, federation, seed, max_restarts, beside=None
) -> Engine:
    """Returns an engine with the clients of a federation.

    Args:
      name: One of `NAMES`, or `RayOptions`, or a `RayCluster` that stays open afterwards.
      algorithm: The algorithm.
      clients: The clients' data.
      server_state: The server's first state.
      federation: The federation.
      seed: The seed of the run.
      max_restarts: How often one exchange is run again because a worker process failed.
      beside: An engine of this name that is open. On Ray the new one has its hosts, since the
        cluster may have no place for more; whichever is closed last closes them.

    Raises:
      ValueError: There is no such engine.
      ImportError: `tff` was chosen, and TensorFlow Federated cannot be imported.
    """
    if name == "ray":
        name = RayOptions(min(RayOptions.num_shards, clients.num_clients))
    if not isinstance(name, str):
        return _on_cluster(name, algorithm, clients, server_state, seed, beside)
    name = values.one_of("engine", name, NAMES)
    if name == "in_process":
        return InProcessEngine(algorithm, clients, server_state, seed)
    try:
        from tf_pflego.engines.tff.engine import TffEngine
    except ImportError as error:
        raise _absent("tff", error) from error
    return TffEngine(algorithm, clients, server_state, seed, federation, max_restarts)


def _on_cluster(place, algorithm, clients, server_state, seed, beside):
    """Returns an engine on a `RayCluster`, or on one of its own with these `RayOptions`."""
    try:
        from tf_pflego.engines.ray.engine import RayEngine
        from tf_pflego.engines.ray.ray_cluster import RayCluster
    except ImportError as error:
        raise _absent("ray", error) from error
    values.instance(
        "engine", place, (RayOptions, RayCluster), "Name an engine, or make `RayOptions`."
    )
    shards = place.num_shards if beside is None else beside.num_shards
    ray_options.refuse_empty_shards(shards, clients.num_clients)
    if beside is not None:
        return RayEngine(
            algorithm, clients, server_state, seed, beside.cluster, beside.owns_cluster
        )
    if isinstance(place, RayCluster):
        return RayEngine(algorithm, clients, server_state, seed, place, owns_cluster=False)
    cluster = RayCluster(place)
    try:
        return RayEngine(algorithm, clients, server_state, seed, cluster, owns_cluster=True)
    except BaseException:
        cluster.close()
        raise


def place_beside(engine, name, num_clients):
    """Returns what to name as the engine of another simulation while one is open.

    On Ray these are the hosts that there are, since the cluster may have no place for more; for
    fewer clients than shards it is this process.
    """
    if name == "ray" or not isinstance(name, str):
        return engine.cluster if engine.num_shards <= num_clients else "in_process"
    return name


class _Need(NamedTuple):
    """A package that an engine needs beside those that all need."""

    module: str
    title: str
    remedy: str


_NEEDS = {
    "tff": _Need(
        "tensorflow_federated",
        "TensorFlow Federated",
        "Use `engine='in_process'`, which gives the same weights; or, on Python 3.10 or 3.11, "
        "install it: `pip install --no-deps -r requirements.txt`, see docs/installing.md.",
    ),
    "ray": _Need(
        "ray",
        "Ray",
        "Install it: `pip install '.[ray]'`, or beside TensorFlow Federated `pip install --no-deps "
        "-r requirements-ray.txt`, see docs/cluster.md.",
    ),
}


def refuse_absent(name: str) -> None:
    """Raises ImportError if an engine needs a package that is not installed; imports nothing."""
    if name in _NEEDS and not importlib.util.find_spec(_NEEDS[name].module):
        raise _absent(name, "it is not installed")


def _absent(name, reason):
    need = _NEEDS[name]
    return ImportError(
        f"`engine` {name} needs {need.title}, which cannot be imported ({reason}). {need.remedy}"
    )
