"""Makes the clients, the model and the simulation that a configuration names."""

import contextlib
import contextvars
import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tf_pflego import algorithms, data, models
from tf_pflego.core import tasks
from tf_pflego.core.algorithm import Algorithm
from tf_pflego.core.optimizers import CONSTANT
from tf_pflego.core.participation import Participation
from tf_pflego.core.settings import Role, names_with
from tf_pflego.engines import tracing
from tf_pflego.engines.engine import Place
from tf_pflego.models import networks
from tf_pflego.runs import (
    aggregation_settings,
    config,
    device_settings,
    earlier_run,
    methods,
    table_settings,
)
from tf_pflego.runs.reader import OWN_CLIENTS
from tf_pflego.runs.settings_read import refuse_others, refuse_unread_of
from tf_pflego.simulation.frozen_features import with_frozen_features
from tf_pflego.simulation.simulation import Simulation
from tf_pflego.system import values


def load_clients(
    run_config: config.RunConfig, directory: pathlib.Path | None = None
) -> data.ClientData:
    """Loads a run's clients; `directory` is its own if it starts from another and has begun."""
    load = _clients_of_table if run_config.client_column else _clients_of_dataset
    uniform = run_config.client_weights == config.UNIFORM
    return dataclasses.replace(load(run_config, directory), uniform_weights=uniform)


def _clients_of_dataset(run_config, directory):
    splits = [split for split in run_config.omniglot_splits.split(",") if split]
    dataset = data.load(
        run_config.dataset, run_config.data_dir or None, run_config.download, splits
    )
    kind = run_config.chosen("partition")
    if kind == "dirichlet":
        dataset = data.merged(dataset)
    partition = _PARTITIONS[kind](run_config, dataset, run_config.chosen("num_clients"))
    seed = run_config.seed
    if run_config.validation_fraction:
        partition = partition.with_validation(
            dataset.train.labels, run_config.validation_fraction, seed
        )
    partition = data.permute_labels(
        partition, run_config.permuted_clients, dataset.num_classes, seed
    )
    partition = data.shift_images(partition, run_config.shifted_clients, run_config.shift, seed)
    load = functools.partial(load_clients, run_config, directory)
    class_mask = run_config.class_mask and run_config.label_space == "global"
    return data.federate(dataset, partition, run_config.label_space, load, class_mask)


def _clients_of_table(run_config, directory):
    preprocessing = earlier_run.Beginning.of(run_config, directory).preprocessing
    clients = table_settings.clients_of(run_config, preprocessing)
    if run_config.validation_fraction:
        clients = clients.with_validation(run_config.validation_fraction, run_config.seed)
    load = functools.partial(load_clients, run_config, directory)
    return dataclasses.replace(clients, origin=data.Origin(load, np.arange(clients.num_clients)))


def all_clients(
    run_config: config.RunConfig,
    clients: data.ClientData | None,
    directory: pathlib.Path | None = None,
) -> data.ClientData:
    """Returns all clients of a run, loaded or given, with validation examples if it wants some."""
    if clients is None:
        clients = load_clients(run_config, directory)
    earlier_run.Beginning.of(run_config, directory).refuse_others(clients)
    if run_config.validation_fraction and clients.validation is None:
        return clients.with_validation(run_config.validation_fraction, run_config.seed)
    return clients


def recorded_clients(run_config: config.RunConfig, clients: data.ClientData) -> dict[str, Any]:
    """Returns the settings of a run that follow from clients given to it.

    If the run would have loaded the same clients, its configuration has them already.
    """
    settings = {"dataset": clients.dataset, "num_clients": clients.num_clients}
    loader = clients.origin and clients.partition and clients.origin.load
    if isinstance(loader, functools.partial) and loader.func is load_clients:
        of_clients, *_ = loader.args
        names = *names_with(Role.DATA | Role.DEALING | Role.CLIENTS, config.RunConfig), "seed"
        if all(getattr(of_clients, name) == getattr(run_config, name) for name in names):
            return {}
    if clients.validation is not None:  # It was not drawn as the run would.
        settings["validation_fraction"] = None
    settings = {
        **dict.fromkeys(names_with(Role.DEALING, config.RunConfig)),
        **settings,
        "partition": OWN_CLIENTS,
        "network": run_config.chosen("network"),
        "label_space": clients.label_space,
        "class_mask": clients.class_mask,
        "client_weights": config.UNIFORM if clients.uniform_weights else "examples",
        "task": clients.task,
    }
    refuse_others(run_config, settings)
    return settings


class ModelFacts(NamedTuple):
    """The facts about clients that a run's model depends on; they may be on other machines."""

    example_shape: tuple[int, ...]
    num_classes: int  # K, the most that a client has
    num_global_classes: int  # C
    task: str
    class_mask: bool
    most_examples: int  # training examples of the largest client
    mean: tuple[float, ...] = ()  # [K] and the deviation, by which quantities are standardised
    deviation: tuple[float, ...] = ()

    @classmethod
    def of(
        cls,
        run_config: config.RunConfig,
        clients: data.ClientData,
        num_global_classes: int,
        model: models.SplitModel | None = None,
        directory: pathlib.Path | None = None,
    ) -> "ModelFacts":
        """Returns the facts of clients on this machine; a `model` may standardise by itself."""
        facts = cls(
            clients.example_shape,
            int(clients.num_classes.max()),
            num_global_classes,
            clients.task,
            clients.class_mask,
            int(clients.train.sizes.max()),
        )
        refuse_unread_of(run_config, clients.task, model is not None)
        wanted = clients.task == tasks.REGRESSION and run_config.standardize_labels
        if not wanted or (model is not None and model.task.mean):
            return facts
        if aggregation_settings.is_private(run_config):
            raise ValueError(
                "`standardize_labels` must be false for a private run, since sums over the labels "
                "of all clients are no part of what is noised; got true. Scale the labels by what "
                "is known of them."
            )
        earlier = earlier_run.Beginning.of(run_config, directory).moments
        mean, deviation = map(tuple, earlier or clients.moments())
        return facts._replace(mean=mean, deviation=deviation)


class Elsewhere(NamedTuple):
    """Clients that are programs on other machines."""

    facts: ModelFacts  # what is known of their data
    place: Place  # how they are reached


def _round_robin(run_config, dataset, num_clients):
    if dataset.test is None:
        raise ValueError(
            f"`partition` must be groups or dirichlet for {dataset.name}, which has no test "
            "examples of its own; got round_robin. Correct `partition`."
        )
    count = run_config.classes_per_client or data.classes_per_client(
        run_config.personalization, dataset.num_classes
    )
    labels = dataset.train.labels, dataset.test.labels
    return data.round_robin(*labels, num_clients, count, dataset.num_classes, run_config.seed)


def _dirichlet(run_config, dataset, num_clients):
    return data.dirichlet(
        dataset.train.labels,
        num_clients,
        dataset.num_classes,
        run_config.seed,
        run_config.dirichlet_alpha,
        run_config.min_examples,
        groups=dataset.train.groups,
    )


def _groups(run_config, dataset, num_clients):
    if dataset.train.groups is None or dataset.test is not None:
        raise ValueError(
            f"`partition` must be round_robin or dirichlet for {dataset.name}, which has no "
            "groups; got groups. Correct `partition`."
        )
    partition = data.by_group(dataset.train.groups, dataset.train.labels, run_config.seed)
    if run_config.num_clients not in (0, partition.num_clients):
        raise ValueError(
            f"`num_clients` must be {partition.num_clients}, the groups of {dataset.name}; got "
            f"{run_config.num_clients}. Leave `num_clients` out."
        )
    return partition


_PARTITIONS = {"round_robin": _round_robin, "dirichlet": _dirichlet, "groups": _groups}


def build_simulation(
    run_config: config.RunConfig,
    clients: data.ClientData | None = None,
    model: models.SplitModel | None = None,
    algorithm: algorithms.Named | None = None,
    elsewhere: Elsewhere | None = None,
    directory: pathlib.Path | None = None,
    **hyper_parameters: Any,
) -> Simulation:
    """Returns the simulation that a configuration describes.

    Close it after use, or use it in a `with` statement.

    Args:
      run_config: The configuration of the run.
      clients: All its clients, if they are loaded already. If they have no validation examples,
        and `validation_fraction` asks for some, these are drawn from them.
      model: The model that they train; None for the network of `run_config`.
      algorithm: As in `run`.
      elsewhere: If the clients are programs on other machines; `clients` then has no examples.
      directory: As in `load_clients`.
      **hyper_parameters: The algorithm's hyper-parameters; those left out keep their defaults.

    Raises:
      TypeError: `run_config`, `clients` or `model` has another class, or the algorithm has no such
        hyper-parameter.
      ValueError: The configuration cannot be run.
      ImportError: The engine needs a package that cannot be imported.
    """
    check_arguments(run_config, clients, model, elsewhere)
    method = methods.method_of(run_config, algorithm)
    hyper_parameters = all_hyper_parameters(run_config, method, hyper_parameters)
    clients = all_clients(run_config, clients, directory)
    if run_config.new_clients >= clients.num_clients:
        raise ValueError(
            f"`new_clients` must be fewer than the {clients.num_clients} clients; got "
            f"{run_config.new_clients}. Lower `new_clients`."
        )
    num_global_classes = clients.num_global_classes  # Those of new clients count too.
    if run_config.new_clients:
        clients = clients.part(0, clients.num_clients - run_config.new_clients)
    participation = run_config.participation_of(clients.num_clients)
    if elsewhere is None:
        facts = ModelFacts.of(run_config, clients, num_global_classes, model, directory)
        if model is None and networks.is_file(run_config.network):
            model = network_model(run_config, facts)
        model, clients = with_frozen_features(model, clients) if model else (None, clients)
    else:
        facts = elsewhere.facts
    built = algorithm_of(run_config, facts, participation, method, hyper_parameters, model)
    if elsewhere is not None and aggregation_settings.is_private(run_config):
        device_settings.refuse_exchanges(built)
    return Simulation(
        built,
        clients,
        participation,
        run_config.place() if elsewhere is None else elsewhere.place,
        run_config.seed,
        run_config.max_restarts,
        run_config.eval_clients,
    )


def algorithm_of(
    run_config: config.RunConfig,
    facts: ModelFacts,
    participation: Participation,
    method: algorithms.Method,
    hyper_parameters: Mapping[str, Any],
    model: models.SplitModel | None = None,
) -> Algorithm:
    """Returns the method of a run for the given model, or else for the run's network."""
    network: Any = model
    if model is None:
        network = run_config.chosen("network"), facts.example_shape
        model = network_model(run_config, facts)
    task = tasks.task_of(model.task, [name for name in run_config.statistics.split(",") if name])
    if facts.mean:
        task = dataclasses.replace(task, mean=facts.mean, deviation=facts.deviation)
    model = model.for_task(task)
    if facts.class_mask:
        model = model.with_class_mask()
    most = participation.federation.max_clients_per_round
    model = model.within(run_config.activation_gigabytes, facts.most_examples, most)
    return _algorithm(network, model, method, hyper_parameters, run_config, participation)


def network_model(run_config: config.RunConfig, facts: ModelFacts) -> models.SplitModel:
    """Returns the model of a run that is given none, with the network that its settings name."""
    model = models.SplitModel(
        networks.build(run_config.chosen("network"), facts.example_shape, run_config.seed),
        facts.num_classes,
        run_config.seed,
        num_global_classes=facts.num_global_classes,
        task=facts.task,
    )
    if facts.task == tasks.REGRESSION:
        return model.for_task(tasks.regression(run_config.huber_delta))
    return model


# In a block of `shared_traces`, the algorithms whose traces runs share, by what these have alike.
_shared: contextvars.ContextVar[dict[tuple, Any]] = contextvars.ContextVar("shared_traces")


@contextlib.contextmanager
def shared_traces() -> Iterator[None]:
    """Within it, runs of this thread that differ only in the seed trace once, with the same bits.

    A nested block shares with the outer one. Runs with a user's own model share if it is one
    object. Methods that may have constants of the seed are traced for each run: a user's own
    methods, and FedBABU with its fixed head.
    """
    token = _shared.set(_shared.get({}))
    try:
        yield
    finally:
        _shared.reset(token)


def _algorithm(network, model, method, hyper_parameters, run_config, participation):
    """Returns the method for a model, with the traces of earlier runs of a block if they fit."""

    def built(model):
        algorithm = algorithms.build(method, model, **hyper_parameters)
        return aggregation_settings.wrapped(algorithm, run_config, participation)

    algorithm, shared = built(model), _shared.get(None)
    if shared is None or method.is_own:
        return algorithm
    settings = repr(algorithms.check(method, hyper_parameters))  # 1 and 1.0 are not the same.
    how = aggregation_settings.of_uploads(run_config), participation
    key = network, model.form, method.name, settings, how
    if key not in shared:
        try:
            shared[key] = built(model.without_start())
        except AttributeError:  # It has asked for the seed.
            return algorithm
    return tracing.sharing(algorithm, shared[key])


def checked_hyper_parameters(run_config, method, hyper_parameters):
    """Returns the method's hyper-parameters; a schedule may not end before the run."""
    checked = algorithms.check(method, hyper_parameters)
    falls = getattr(checked, "server_schedule", CONSTANT) != CONSTANT
    if falls and 0 < checked.schedule_rounds < run_config.num_rounds:
        raise ValueError(
            f"`schedule_rounds` must be 0 or at least the {run_config.num_rounds} rounds of the "
            f"run, since the learning rate is 0 after them; got {checked.schedule_rounds}. Raise "
            "`schedule_rounds`, or leave it out."
        )
    return checked


def all_hyper_parameters(run_config, method, hyper_parameters):
    """Returns all hyper-parameters by name; a schedule without rounds has the run's."""
    checked = checked_hyper_parameters(run_config, method, hyper_parameters)
    if getattr(checked, "server_schedule", CONSTANT) != CONSTANT and not checked.schedule_rounds:
        checked = dataclasses.replace(checked, schedule_rounds=run_config.num_rounds)
    return dataclasses.asdict(checked)


def check_arguments(
    run_config: Any, clients: Any = None, model: Any = None, elsewhere: Any = None
) -> None:
    """Raises TypeError if one is of another class, ValueError if the run names another network."""
    values.instance("run_config", run_config, config.RunConfig, "Make one: `RunConfig(...)`.")
    if clients is not None:
        values.instance("clients", clients, data.ClientData, "Make them with `from_arrays`.")
    if elsewhere is not None:
        values.instance("elsewhere", elsewhere, Elsewhere, "Leave it out; `serve` makes one.")
    if model is None:
        return
    values.instance("model", model, models.SplitModel, "Make one: `SplitModel(body, num_outputs)`.")
    if run_config.network != "auto":
        raise ValueError(
            f"`network` must be left out where `model` is given; got {run_config.network}. Leave "
            "out one of them."
        )
