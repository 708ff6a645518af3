"""A run as a value: its settings, its method, and what only Python or a file can give it.

A `Plan` is checked when it is made. The simulation of a run, its directory, the definition of its
federation and the cell of a sweep are made from it.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from tf_pflego import algorithms
from tf_pflego.algorithms import Method, Named
from tf_pflego.core import statistic_names
from tf_pflego.core.optimizers import CONSTANT
from tf_pflego.core.settings import FORMER_NAMES, Role, names_with
from tf_pflego.data.clients import ClientData
from tf_pflego.data.datasets import catalogue
from tf_pflego.engines.engine import Place
from tf_pflego.models import networks
from tf_pflego.models.split_model import SplitModel
from tf_pflego.runs import loading
from tf_pflego.runs.config import COMPILED_FROM, COMPILING, UNIFORM, RunConfig
from tf_pflego.runs.reader import OWN_CLIENTS, OWN_STATISTICS, places
from tf_pflego.runs.settings_read import changed, refuse_others
from tf_pflego.system import values

# The network in the directory of a run whose model the user gave.
OWN_NETWORK = "own"
# The keys of config.json with `Method.checksum`, and `networks.digest` of a network in a file.
SOURCE, NETWORK_DIGEST = "algorithm_source", "network_digest"
# In a row of a sweep the CRC-32 of the table, whose path does not identify its rows.
TABLE_CHECKSUM = "table_checksum"
# Names that hyper-parameters may not have: settings and arguments of a run, other keys of its
# config.json, flags of the program, and former names, under which a stored run would be misread.
_TAKEN = {
    *(field.name for field in dataclasses.fields(RunConfig)),
    *FORMER_NAMES,
    *("run_config", "on_round", "clients", "model", "metrics", "callbacks", "directory"),
    *("elsewhere", OWN_STATISTICS),
    *("name", "versions", "help", "helpfull", "helpshort", "flagfile", "version"),
    *(SOURCE, NETWORK_DIGEST),
}


class ModelFacts(NamedTuple):
    """The facts about clients that a run's model depends on, also for remote clients."""

    example_shape: tuple[int, ...]
    num_classes: int  # K, the most that a client has
    num_global_classes: int  # C
    task: str
    class_mask: bool
    most_examples: int  # training examples of the largest client
    mean: tuple[float, ...] = ()  # [K] and the deviation, by which quantities are standardised
    deviation: tuple[float, ...] = ()


class Elsewhere(NamedTuple):
    """Clients that are programs on other machines."""

    facts: ModelFacts  # what is known of their data
    place: Place  # how they are reached


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """The complete description of a run. `of` makes a plan from the names of settings.

    Attributes:
      settings: The settings of the run.
      method: The method that it trains, of the package or the user's own.
      hyper_parameters: The method's own, as its dataclass.
      clients: The user's clients; None for clients from the settings.
      model: The user's model; None for the network of the settings.
      elsewhere: The clients' place, if they are programs on other machines. `clients` then has no
        examples.

    Raises:
      TypeError: An argument has another class.
      ValueError: Two of them do not go together.
    """

    settings: RunConfig
    method: Method
    hyper_parameters: Any
    clients: ClientData | None = None
    model: SplitModel | None = None
    elsewhere: Elsewhere | None = None

    @classmethod
    def of(
        cls,
        settings: RunConfig,
        /,
        algorithm: Named | None = None,
        clients: ClientData | None = None,
        model: SplitModel | None = None,
        elsewhere: Elsewhere | None = None,
        **hyper_parameters: Any,
    ) -> "Plan":
        """Returns the plan of a run. The remaining hyper-parameters keep their defaults.

        `algorithm` is the user's own method, its builder or FILE.py:FUNCTION, or None for the
        method of the settings.
        """
        values.instance("run_config", settings, RunConfig, "Make one: `RunConfig(...)`.")
        method = _method_of(settings, algorithm)
        checked = algorithms.check(method, hyper_parameters)
        plan = cls(settings, method, checked, clients, model, elsewhere)
        ends = getattr(checked, "schedule_rounds", 0)
        if plan._falls and 0 < ends < settings.num_rounds:
            raise ValueError(
                f"`schedule_rounds` must be 0 or at least the {settings.num_rounds} rounds of the "
                f"run, since the learning rate is 0 after them; got {ends}. Raise "
                "`schedule_rounds`, or leave it out."
            )
        return plan

    def __post_init__(self):
        settings, clients, model = self.settings, self.clients, self.model
        if clients is not None:
            values.instance("clients", clients, ClientData, "Make them with `from_arrays`.")
        if self.elsewhere is not None:
            remedy = "Leave it out; `serve` makes one."
            values.instance("elsewhere", self.elsewhere, Elsewhere, remedy)
        if model is not None:
            remedy = "Make one: `SplitModel(body, num_outputs)`."
            values.instance("model", model, SplitModel, remedy)
            for name, default in (("network", "auto"), ("personal", "")):
                if (got := getattr(settings, name)) != default:
                    raise ValueError(
                        f"`{name}` must not be given where `model` is given; got {got}. Give one "
                        "of them."
                    )
        statistic_names.learn(self.own_statistics)

    def but(self, **settings: Any) -> "Plan":
        """Returns a changed plan, with the defaults of settings that it no longer reads."""
        return dataclasses.replace(self, settings=changed(self.settings, **settings))

    @property
    def _falls(self):
        return getattr(self.hyper_parameters, "server_schedule", CONSTANT) != CONSTANT

    @property
    def of_method(self) -> dict[str, Any]:
        """The hyper-parameters by name. A schedule without rounds has the run's."""
        named = dataclasses.asdict(self.hyper_parameters)
        if self._falls and not named["schedule_rounds"]:
            named["schedule_rounds"] = self.settings.num_rounds
        return named

    @property
    def compile(self) -> str:
        """Whether XLA compiles clients, "on" or "off", in an engine that can."""
        settings = self.settings
        if settings.compile != "auto" or settings.engine not in COMPILING:
            return settings.compile
        participations = settings.num_rounds * settings.most_per_round()
        # XLA may end the process on a user's own method.
        return "on" if participations >= COMPILED_FROM and not self.method.is_own else "off"

    @property
    def num_clients(self) -> int:
        """The number of clients, or 0 if these are groups of data that are not loaded yet."""
        new = self.settings.num_new_clients
        if self.clients is not None:
            return self.clients.num_clients - new
        if self.settings.chosen("partition") == "groups":
            return 0
        return self.settings.chosen("num_clients") - new

    @property
    def own_statistics(self) -> dict[str, Any]:
        """The titles and formats of the user's own statistics of the model's task."""
        task = getattr(self.model, "task", None)
        shown = [one.shown._asdict() for one in task.statistics] if task is not None else []
        return {
            one.pop("name"): one for one in shown if one["name"] not in statistic_names.CATALOGUE
        }

    @functools.cached_property
    def configuration(self) -> Mapping[str, Any]:
        """The content of config.json: every setting and hyper-parameter, and digests."""
        settings = self.settings
        configuration = dataclasses.asdict(settings)
        configuration |= {"algorithm": self.method.name, "compile": self.compile}
        if self.method.is_own:
            configuration[SOURCE] = self.method.checksum()
        configuration |= dict(sorted(dataclasses.asdict(self.hyper_parameters).items()))
        if self.clients is not None:
            configuration |= self._of_clients(self.clients)
        if self.num_clients > 0:  # Else it follows from the clients.
            configuration["clients_per_round"] = settings.most_per_round(self.num_clients)
        if self.model is not None:
            configuration["network"] = OWN_NETWORK
        elif digest := networks.digest(settings.network):
            configuration[NETWORK_DIGEST] = digest
        if own := self.own_statistics:
            configuration[OWN_STATISTICS] = own
        return configuration

    def _of_clients(self, clients):
        """Returns the settings that follow from clients that were given.

        If the run would have loaded the same clients, its settings have them already.
        """
        if (loaded := loading.settings_of(clients)) is not None:
            names = *names_with(Role.DATA | Role.DEALING | Role.CLIENTS, RunConfig), "seed"
            if all(getattr(loaded, name) == getattr(self.settings, name) for name in names):
                return {}
        known = {"dataset": clients.dataset, "num_clients": clients.num_clients}
        if clients.validation is not None:  # It was not drawn as the run would.
            known["validation_fraction"] = None
        known = {
            **dict.fromkeys(names_with(Role.DEALING, RunConfig)),
            **known,
            "partition": OWN_CLIENTS,
            "network": self.settings.chosen("network"),
            "label_space": clients.label_space,
            "class_mask": clients.class_mask,
            "client_weights": UNIFORM if clients.uniform_weights else "examples",
            "task": clients.task,
        }
        refuse_others(self.settings, known)
        return known


def is_own(configuration: Mapping[str, Any]) -> bool:
    """Returns whether a run's stored configuration names a user's own method."""
    return ":" in str(configuration.get("algorithm"))


def parts_of(configuration: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the settings of a run, and the hyper-parameters of its method, from its config.json.

    Places of a machine are not among them, and neither are settings that the user's own clients,
    model or method replaced, which a `RunConfig` cannot contain.
    """
    names = {field.name for field in dataclasses.fields(RunConfig)}
    left = {*places(), *["algorithm"] * is_own(configuration)}
    if configuration.get("network") == OWN_NETWORK:
        left.add("network")
    known = configuration.get("dataset") in catalogue.NAMES or configuration.get("client_column")
    if (are_own := configuration.get("partition") == OWN_CLIENTS) or not known:
        left.add("dataset")
    if are_own:
        left |= {"partition", *(name for name in names if configuration.get(name) is None)}
    of_run = {name: configuration[name] for name in names - left if name in configuration}
    names |= {"versions", SOURCE, NETWORK_DIGEST, TABLE_CHECKSUM, OWN_STATISTICS}
    return of_run, {name: value for name, value in configuration.items() if name not in names}


def _method_of(settings, algorithm):
    """Returns the method that is given or, if none is, the one that the settings name."""
    if isinstance(algorithm, Method):  # It has been looked up already.
        return algorithm
    if algorithm is not None and settings.algorithm != RunConfig.algorithm:
        raise ValueError(
            "`algorithm` of `RunConfig` must not be given where `algorithm` is given too; got "
            f"{settings.algorithm}. Give one of them."
        )
    method = algorithms.method_of(settings.algorithm if algorithm is None else algorithm)
    for field in dataclasses.fields(method.settings):
        if field.name in _TAKEN:
            raise ValueError(
                f"`{field.name}` of {method.name} must not have a name that a run has, or had in "
                "an earlier version. Rename the hyper-parameter."
            )
    return method
