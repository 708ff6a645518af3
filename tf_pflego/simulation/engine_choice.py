"""The engines that have names. Those of TFF and Ray are imported only when they are chosen."""

import importlib.util
from typing import TYPE_CHECKING, Any, TypeAlias

from tf_pflego.engines import Engine, InProcess, Place
from tf_pflego.system import values

if TYPE_CHECKING:
    from tf_pflego.ray.options import RayOptions

Choice: TypeAlias = "str | RayOptions | Place"

NAMES = ("tff", "in_process", "ray", "devices")
# The engine of a run that names none. To import TensorFlow Federated would take seconds.
DEFAULT = "tff" if importlib.util.find_spec("tensorflow_federated") else "in_process"
# What is started besides this process, as a run says it.
STARTED = {"tff": " and starting the TFF worker"}


def is_elsewhere(name: str) -> bool:
    """Returns whether the clients of an engine are programs on other machines."""
    return name == "devices"


def is_cluster(name: str) -> bool:
    """Returns whether the runs of an engine take places of a Ray cluster."""
    return name == "ray"


def place_of(settings: Any) -> Choice:
    """Returns the engine of a run's settings, checked: its name or options."""
    if not is_cluster(settings.engine):
        compiles = settings.engine == "in_process" and settings.compile == "on"
        return InProcess(compiles) if compiles else settings.engine
    from tf_pflego.ray.options import RayOptions

    return RayOptions.of(settings)


def refuse_unreachable(settings: Any) -> None:
    """Raises WorkerError if the address of a run's cluster does not answer."""
    if is_cluster(settings.engine):
        from tf_pflego.ray import options

        options.refuse_unreachable(settings.ray_address)


def refuse_few_clients(settings: Any, num_clients: int) -> None:
    """Raises ValueError if the engine of a run cannot distribute these few clients."""
    if is_cluster(settings.engine):
        from tf_pflego.ray import options

        options.refuse_empty_shards(settings.num_shards, num_clients)


def build(place, algorithm, clients, server_state, federation, seed, max_restarts) -> Engine:
    """Returns an engine with the clients of a federation. `place` is a `Choice`.

    A name of no engine is a ValueError, and a package that cannot be imported is an ImportError. On
    TFF, an exchange is run again up to `max_restarts` times because the worker failed.
    """
    name = values.one_of("engine", place, NAMES) if isinstance(place, str) else ""
    if name == "in_process":
        return InProcess().engine(algorithm, clients, server_state, seed)
    if name == "tff":
        try:
            from tf_pflego.tff.engine.tff_engine import TffEngine
        except ImportError as error:
            raise _absent("tff", error.__cause__ or error) from error
        return TffEngine(algorithm, clients, server_state, seed, federation, max_restarts)
    if is_elsewhere(name):
        raise ValueError(
            "`engine` devices must have the addresses of the clients; got only its name. Use "
            "`tf-pflego serve`, or `tf_pflego.devices.server.serve`."
        )
    if not hasattr(place, "engine"):
        place = _cluster(place, clients.num_clients)
    return place.engine(algorithm, clients, server_state, seed)


def _cluster(options, num_clients):
    """Returns a Ray cluster for one federation, with the default options for the name `ray`."""
    try:
        from tf_pflego.ray.options import RayOptions

        if values.is_word(options, "ray"):
            options = RayOptions(min(RayOptions.num_shards, num_clients))
        values.instance("engine", options, RayOptions, "Name an engine, or make `RayOptions`.")
        from tf_pflego.ray.cluster import RayCluster
    except ImportError as error:
        raise _absent("ray", error) from error
    return RayCluster(options, closes_when_idle=True)


# The module that an engine needs beside those that all need, what it is called, and the remedy.
_NEEDS = {
    "tff": (
        "tensorflow_federated",
        "TensorFlow Federated",
        "Use `engine='in_process'`, which gives the same weights; or, on Python 3.10 or 3.11, "
        "install it: `pip install --no-deps -r requirements.txt`, see docs/installing.md.",
    ),
    "ray": (
        "ray",
        "Ray",
        "Install it: `pip install '.[ray]'`, or beside TensorFlow Federated `pip install --no-deps "
        "-r requirements-ray.txt`, see docs/cluster.md.",
    ),
}


def refuse_absent(name: str) -> None:
    """Raises ImportError if an engine needs a package that is not installed, without an import."""
    if name in _NEEDS and not importlib.util.find_spec(_NEEDS[name][0]):
        raise _absent(name, "it is not installed")


def _absent(name, reason):
    _, title, remedy = _NEEDS[name]
    return ImportError(
        f"`engine` {name} needs {title}, which cannot be imported ({reason}). {remedy}"
    )
