"""Makes the clients, the model and the simulation that a configuration names."""

import contextlib
import contextvars
import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

from tf_pflego import algorithms, data, models
from tf_pflego.core import tasks
from tf_pflego.core.algorithm import Algorithm
from tf_pflego.core.participation import Participation
from tf_pflego.engines import tracing
from tf_pflego.models import networks
from tf_pflego.runs import aggregation_settings, device_settings, earlier_run
from tf_pflego.runs.config import RunConfig
from tf_pflego.runs.loading import all_clients
from tf_pflego.runs.plan import ModelFacts, Plan
from tf_pflego.runs.settings_read import refuse_unread_of
from tf_pflego.simulation import engine_choice
from tf_pflego.simulation.fitting import refuse_words_of_clients
from tf_pflego.simulation.frozen_features import with_frozen_features
from tf_pflego.simulation.simulation import Simulation


def facts_of(
    plan: Plan,
    clients: data.ClientData,
    num_global_classes: int,
    directory: pathlib.Path | None = None,
) -> ModelFacts:
    """Returns the facts of clients on this machine. A given model may standardise itself."""
    settings, model = plan.settings, plan.model
    facts = ModelFacts(
        clients.example_shape,
        int(clients.num_classes.max()),
        num_global_classes,
        clients.task,
        clients.class_mask,
        int(clients.train.sizes.max()),
    )
    refuse_unread_of(settings, clients.task, model is not None)
    wanted = clients.task == tasks.REGRESSION and settings.standardize_labels
    if not wanted or (model is not None and model.task.mean):
        return facts
    if settings.is_private:
        raise ValueError(
            "`standardize_labels` must be false for a private run, since sums over the labels of "
            "all clients get no noise; got true. Scale the labels by known numbers."
        )
    earlier = earlier_run.Beginning.of(settings, directory).moments
    mean, deviation = map(tuple, earlier or clients.moments())
    return facts._replace(mean=mean, deviation=deviation)


def build_simulation(
    run_config: RunConfig,
    clients: data.ClientData | None = None,
    model: models.SplitModel | None = None,
    algorithm: algorithms.Named | None = None,
    directory: pathlib.Path | None = None,
    **hyper_parameters: Any,
) -> Simulation:
    """Returns the simulation that a configuration describes.

    Close it after use, or use it in a `with` statement.

    Args:
      run_config: The configuration of the run.
      clients: All its clients, if they are loaded already. If they have no validation examples, and
        `validation_fraction` requests some, these are selected from them.
      model: The clients' model; None for the network of `run_config`.
      algorithm: As in `run`.
      directory: As in `load_clients`.
      **hyper_parameters: The algorithm's hyper-parameters. The rest keep their defaults.

    Raises:
      TypeError: `run_config`, `clients` or `model` has another class, or the algorithm has no such
        hyper-parameter.
      ValueError: The configuration cannot be run.
      ImportError: The engine needs a package that cannot be imported.

    Example, explained in docs/serving.md#a-run-to-begin-with:
      >>> with pfl.build_simulation(settings, clients, model) as built:
      ...     built.run_round()["participants"]
      2
    """
    plan = Plan.of(run_config, algorithm, clients, model, **hyper_parameters)
    return simulation_of(plan, directory)


def simulation_of(plan: Plan, directory: pathlib.Path | None = None) -> Simulation:
    """Returns the simulation of a plan (see `build_simulation`)."""
    settings, model = plan.settings, plan.model
    clients = all_clients(settings, plan.clients, directory)
    refuse_words_of_clients(settings.is_private, clients)  # Before features are written.
    if settings.num_new_clients >= clients.num_clients:
        raise ValueError(
            f"`num_new_clients` must be fewer than the {clients.num_clients} clients; got "
            f"{settings.num_new_clients}. Lower `num_new_clients`."
        )
    num_global_classes = clients.num_global_classes  # Those of new clients count too.
    if settings.num_new_clients:
        clients = clients.part(0, clients.num_clients - settings.num_new_clients)
    participation = settings.participation_of(clients.num_clients)
    if plan.elsewhere is None:
        place = engine_choice.place_of(plan.but(compile=plan.compile).settings)
        facts = facts_of(plan, clients, num_global_classes, directory)
        if model is None and networks.is_file(settings.network):
            model = network_model(settings, facts)
        model, clients = with_frozen_features(model, clients) if model else (None, clients)
    else:
        facts, place = plan.elsewhere
    algorithm = algorithm_of(plan, facts, participation, model)
    if plan.elsewhere is not None and settings.is_private:
        device_settings.refuse_exchanges(algorithm)
    how = settings.seed, settings.max_restarts, settings.num_eval_clients
    return Simulation(algorithm, clients, participation, place, *how)


def algorithm_of(
    plan: Plan,
    facts: ModelFacts,
    participation: Participation,
    model: models.SplitModel | None = None,
) -> Algorithm:
    """Returns the method of a run for a model that is made already, or for the run's network."""
    settings = plan.settings
    network: Any = model
    if model is None:
        network = settings.chosen("network"), facts.example_shape
        model = network_model(settings, facts)
    task = tasks.task_of(model.task, [name for name in settings.statistics.split(",") if name])
    if facts.mean:
        task = dataclasses.replace(task, mean=facts.mean, deviation=facts.deviation)
    model = model._with(task=task)
    if facts.class_mask:
        model = model.with_class_mask()
    most = participation.federation.max_clients_per_round
    model = model.within(settings.activation_gigabytes, facts.most_examples, most)

    def built(model):
        algorithm = algorithms.build(plan.method, model, **plan.of_method)
        return aggregation_settings.wrapped(algorithm, settings, participation)

    algorithm, shared = built(model), _shared.get(None)
    if shared is None or plan.method.is_own:
        return algorithm
    how = aggregation_settings.of_uploads(settings), participation
    # 1 and 1.0 are not the same.
    key = network, model._form, plan.method.name, repr(sorted(plan.of_method.items())), how
    if key not in shared:
        try:
            shared[key] = built(model._without_start())
        except AttributeError:  # It has asked for the seed.
            return algorithm
    return tracing.sharing(algorithm, shared[key])


def network_model(settings: RunConfig, facts: ModelFacts) -> models.SplitModel:
    """Returns the model of a run that is given none, with the network that its settings name."""
    model = models.SplitModel(
        networks.build(settings.chosen("network"), facts.example_shape, settings.seed),
        facts.num_classes,
        settings.seed,
        num_global_classes=facts.num_global_classes,
        task=facts.task,
        personal=settings.personal,
    )
    if facts.task == tasks.REGRESSION:
        return model._with(task=tasks.regression(settings.huber_delta))
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
