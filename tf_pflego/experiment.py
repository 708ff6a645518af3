"""Makes a finished run from a configuration: the only place that turns names into objects."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

import tf_pflego
from tf_pflego import (
    algorithms,
    config,
    console,
    data,
    engines,
    given_clients,
    models,
    new_clients,
    run_methods,
)
from tf_pflego.core import values
from tf_pflego.core.server_optimizer import CONSTANT
from tf_pflego.engines import ray_options
from tf_pflego.metrics import (
    Progress,
    RunDirectory,
    client_columns,
    read_client_columns,
    source_commit,
)
from tf_pflego.models import networks
from tf_pflego.training import Metrics, NotFiniteError, Simulation, summarize
from tf_pflego.training.evaluation import sample_of_clients

# What a run's directory has for its network, where the user gave a model.
OWN_NETWORK = "own"


def load_clients(run_config: config.RunConfig) -> data.ClientData:
    """Loads the dataset of a run and deals it out to its clients."""
    _check_config(run_config)
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
    share = run_config.permuted_clients
    partition = data.permute_labels(partition, share, dataset.num_classes, seed)
    share = run_config.shifted_clients
    partition = data.shift_images(partition, share, run_config.shift, seed)
    load = functools.partial(load_clients, run_config)
    class_mask = run_config.class_mask and run_config.label_space == "global"
    return data.federate(dataset, partition, run_config.label_space, load, class_mask)


def all_clients(run_config: config.RunConfig, clients: data.ClientData | None) -> data.ClientData:
    """Returns all clients of a run, which are loaded if none are given.

    Args:
      run_config: The run.
      clients: Those given, or None. If they have no validation examples and the run wants some,
        these are drawn.
    """
    if clients is None:
        return load_clients(run_config)
    _check_clients(clients)
    if run_config.validation_fraction and clients.validation is None:
        return clients.with_validation(run_config.validation_fraction, run_config.seed)
    return clients


def _round_robin(run_config, dataset, num_clients):
    if dataset.test is None:
        raise ValueError(
            f"`partition` must be groups or dirichlet for {dataset.name}, which has no test "
            "examples of its own; got round_robin. Correct `partition`."
        )
    held = run_config.classes_per_client or data.classes_per_client(
        run_config.personalization, dataset.num_classes
    )
    labels = dataset.train.labels, dataset.test.labels
    return data.round_robin(*labels, num_clients, held, dataset.num_classes, run_config.seed)


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
      **hyper_parameters: The algorithm's hyper-parameters; those left out keep their defaults.

    Raises:
      TypeError: `run_config`, `clients` or `model` is something else, or the algorithm has no such
        hyper-parameter.
      ValueError: The configuration cannot be run; the message says what was expected.
      ImportError: The engine needs a package that cannot be imported.
    """
    _check_config(run_config)
    _check_clients(clients)
    _check_model(run_config, model)
    method = run_methods.method_of(run_config, algorithm)
    hyper_parameters = _with_schedule_rounds(run_config, method, hyper_parameters)
    clients = all_clients(run_config, clients)
    if run_config.new_clients >= clients.num_clients:
        raise ValueError(
            f"`new_clients` must be fewer than the {clients.num_clients} clients; got "
            f"{run_config.new_clients}. Lower `new_clients`."
        )
    num_global_classes = clients.num_global_classes  # Those of new clients count too.
    clients = _who_take_part(run_config, clients)
    participation = run_config.participation_of(clients.num_clients)
    if model is None:
        body = networks.build(run_config.chosen("network"), clients.example_shape, run_config.seed)
        model = models.SplitModel(
            body,
            clients.num_classes.max(),
            run_config.seed,
            num_global_classes=num_global_classes,
        )
    if clients.class_mask:
        model = model.with_class_mask()
    largest = clients.train.sizes.max()
    model = model.within(
        run_config.activation_gigabytes, largest, participation.federation.max_clients_per_round
    )
    return Simulation(
        algorithms.build(method, model, **hyper_parameters),
        clients,
        participation,
        run_config.place(),
        run_config.seed,
        run_config.max_restarts,
        run_config.eval_clients,
    )


def _with_schedule_rounds(run_config, method, hyper_parameters):
    """Returns the hyper-parameters; a schedule without rounds of its own has those of the run."""
    checked = algorithms.check(method, hyper_parameters)
    if getattr(checked, "server_schedule", CONSTANT) == CONSTANT:
        return hyper_parameters
    if 0 < checked.schedule_rounds < run_config.num_rounds:
        raise ValueError(
            f"`schedule_rounds` must be 0 or at least the {run_config.num_rounds} rounds of the "
            f"run, since the learning rate is 0 after them; got {checked.schedule_rounds}. Raise "
            "`schedule_rounds`, or leave it out."
        )
    return hyper_parameters | {"schedule_rounds": checked.schedule_rounds or run_config.num_rounds}


def _check_config(run_config):
    values.instance("run_config", run_config, config.RunConfig, "Make one: `RunConfig(...)`.")


def _check_clients(clients):
    if clients is not None:
        values.instance("clients", clients, data.ClientData, "Make them with `from_arrays`.")


def _check_model(run_config, model):
    if model is None:
        return
    values.instance("model", model, models.SplitModel, "Make one: `SplitModel(body, num_classes)`.")
    if run_config.network != "auto":
        raise ValueError(
            f"`network` must be left out where `model` is given; got {run_config.network}. Leave "
            "out one of them."
        )


def _who_take_part(run_config, clients):
    """Returns the clients that may be drawn: all but the new ones."""
    if not run_config.new_clients:
        return clients
    return clients.part(0, clients.num_clients - run_config.new_clients)


def _train_new_clients(run_config, simulation, clients):
    """Returns the evaluations of the new clients, and what the summary says of them."""
    if not run_config.new_clients:
        return [], {}
    new = clients.part(simulation.data.num_clients, clients.num_clients)
    found = new_clients.fine_tune(
        simulation,
        new,
        run_config.new_client_epochs,
        run_config.new_client_learning_rate,
        engine=simulation.place_beside(new.num_clients),
    )
    return found, {
        f"new_clients/{name}/{when}": value
        for when, one in (("before", found[0]), ("after", found[-1]))
        for name, value in one.metrics().items()
        if name.endswith("accuracy/client_mean")
    }


def run(
    run_config: config.RunConfig,
    on_round: Callable[[dict], None] | None = None,
    clients: data.ClientData | None = None,
    between_steps: Callable[[], None] = lambda: None,
    model: models.SplitModel | None = None,
    on_clients: Callable[[Mapping[str, Sequence[Any]]], None] | None = None,
    algorithm: algorithms.Named | None = None,
    metrics: Metrics | None = None,
    **hyper_parameters: Any,
) -> dict[str, Any]:
    """Trains, writes the output directory if there is one, shows progress, returns the summary.

    Args:
      run_config: The run.
      on_round: Called with the metrics of each round, when they are written.
      clients: All its clients, such as those of `from_arrays`; None for those of the run's dataset.
        The output directory has their names, their partition, and fingerprints by which they are
        known again; its configuration has what they are. Validation examples are drawn from them as
        in `build_simulation`.
      between_steps: Called where nothing is half done: between the steps before the first round and
        after the last, and after each round when it is written. It may raise `KeyboardInterrupt`,
        which ends the run; a checkpoint is written first.
      model: The model that the clients train; None for the network of `run_config`. The output
        directory has the weights that are learnt, and not the layers.
      on_clients: Called at the end with the columns of clients.csv, by name; also of a run without
        an output directory.
      algorithm: A method of your own: its builder, or FILE.py:FUNCTION; None for the method that
        `run_config` names. The output directory has a checksum of its source, and not the source.
      metrics: Measures of your own for evaluated rounds and clients.csv, as in
        `Simulation.evaluate`.
      **hyper_parameters: Those of the algorithm; any that are left out keep their defaults.

    Raises:
      TypeError, ValueError, ImportError: As in `build_simulation`, or the output directory cannot
        be used.
      WorkerError: The TFF worker failed again and again; the run can be resumed.
      NotFiniteError: As in `Simulation.run_round`; the rounds before are in a checkpoint.
    """
    between_steps()
    _check_config(run_config)
    _check_model(run_config, model)
    method = run_methods.method_of(run_config, algorithm)
    _with_schedule_rounds(run_config, method, hyper_parameters)
    hyper_parameters = dataclasses.asdict(algorithms.check(method, hyper_parameters))
    if on_round is not None:
        values.function("on_round", on_round)
    if on_clients is not None:
        values.function("on_clients", on_clients)
    listeners = on_round, between_steps, on_clients, metrics
    if not run_config.output_dir:
        return _run(run_config, method, hyper_parameters, *listeners, clients, model)
    with _directory(run_config, method, hyper_parameters, clients, model) as directory:
        if clients is not None and run_config.resume:
            clients = all_clients(run_config, clients)
            directory.refuse_other_clients(clients)
        if directory.finished is not None:
            console.note(
                f"tf_pflego: the run in {directory.path} is finished, with all "
                f"{run_config.num_rounds} rounds; nothing is done"
            )
            if on_clients is not None:
                on_clients(read_client_columns(directory.path / "clients.csv"))
            return directory.finished
        return _run(run_config, method, hyper_parameters, *listeners, clients, model, directory)


def refuse_early(run_config: config.RunConfig, **hyper_parameters: Any) -> None:
    """Raises errors of `run` that are known without its data, and without TensorFlow.

    Args:
      run_config: The run.
      **hyper_parameters: Those of the algorithm.

    Raises:
      ValueError: More clients take part in a round, or are evaluated, than there are, or a Ray
        cluster would have more shards than clients, or a schedule has fewer rounds than the run, or
        the output directory cannot be used.
      ImportError: The engine is not installed.
      WorkerError: There is no Ray cluster at the address.
    """
    engines.refuse_absent(run_config.engine)
    method = run_methods.method_of(run_config)
    _with_schedule_rounds(run_config, method, hyper_parameters)
    # If the data's groups are the clients, their number is not known yet.
    count = run_config.chosen("num_clients") - run_config.new_clients
    if count > 0 and run_config.chosen("partition") != "groups":
        run_config.participation_of(count)
        sample_of_clients(run_config.seed, count, run_config.eval_clients)
        if run_config.engine == "ray":
            ray_options.refuse_empty_shards(run_config.num_shards, count)
    if run_config.engine == "ray":
        ray_options.refuse_unreachable(run_config.ray_address)
    if run_config.output_dir and not run_config.resume:
        _directory(run_config, method, hyper_parameters).close()


def _directory(run_config, method, hyper_parameters, clients=None, model=None):
    configuration = dataclasses.asdict(run_config) | run_methods.recorded(method)
    configuration |= dict(sorted(hyper_parameters.items()))
    if clients is not None:
        configuration |= given_clients.recorded(run_config, clients, load_clients)
    if model is not None:
        configuration["network"] = OWN_NETWORK
    return RunDirectory(
        run_config.output_dir,
        configuration,
        run_config.overwrite,
        run_config.resume,
        run_config.checkpoints_kept,
        run_config.tensorboard,
        {field.name: field.default for field in dataclasses.fields(method.settings)},
    )


def _run(*arguments):
    try:
        return _run_in_steps(*arguments)
    finally:
        console.done()


def _run_in_steps(
    run_config,
    method,
    hyper_parameters,
    on_round,
    between_steps,
    on_clients,
    metrics,
    clients,
    model,
    directory=None,
):
    if clients is None:
        console.doing(f"loading {run_config.dataset} and dealing it out to clients")
    clients = all_clients(run_config, clients)
    between_steps()
    worker = " and starting the TFF worker" if run_config.engine == "tff" else ""
    console.doing(f"building the model{worker}")
    every = run_config.checkpoint_every if directory is not None else 0
    with build_simulation(run_config, clients, model, method, **hyper_parameters) as simulation:
        between_steps()
        records: list[dict[str, Any]] = []

        def despite_losses(action):
            return _despite_losses(action, simulation, directory if every else None, records)

        if directory is not None:
            records[:] = despite_losses(lambda: directory.begin(simulation, clients, _versions()))
            if every:
                directory.save_checkpoint(simulation)
        console.doing(f"tracing round {len(records) + 1}, which takes longest")
        progress = Progress(run_config.num_rounds)

        def listen(record):
            progress.add_round(record)
            records.append(record)
            if directory is not None:
                directory.add_round(record)
            if every and (record["round"] % every == 0 or record["round"] == run_config.num_rounds):
                directory.save_checkpoint(simulation)
            if on_round is not None:
                on_round(record)
            between_steps()

        def train():
            if simulation.round_number < run_config.num_rounds:
                simulation.run(
                    run_config.num_rounds - simulation.round_number,
                    run_config.eval_every,
                    run_config.train_loss_every,
                    listen,
                    metrics,
                )

        try:
            between_steps()
            despite_losses(train)
        except (KeyboardInterrupt, SystemExit, engines.WorkerError, NotFiniteError):
            if every:
                with contextlib.suppress(engines.WorkerError):  # States may be lost.
                    directory.save_checkpoint(simulation)
            raise
        finally:
            progress.close()
        summary = summarize(records)
        console.doing(f"evaluating {run_config.eval_clients or 'all'} clients")
        between_steps()
        of_new, summary_of_new = despite_losses(
            lambda: _train_new_clients(run_config, simulation, clients)
        )
        summary |= summary_of_new
        between_steps()
        if directory is not None or on_clients is not None:
            # Only files have the loss, which takes a pass over all training examples.
            evaluations = despite_losses(
                lambda: simulation.evaluate_all(directory is not None, True, metrics)
            )
            between_steps()
        if directory is not None:
            state = simulation.server_state
            directory.finish(summary, evaluations, simulation.data, state, of_new)
        if on_clients is not None:
            on_clients(client_columns(evaluations, simulation.data))
    return summary


def _despite_losses(action, simulation, directory, records):
    """Returns what an action does; after the loss of a shard it goes on from a checkpoint.

    Args:
      action: What to do.
      simulation: The simulation.
      directory: Of the run; None if it has no checkpoints.
      records: Of the rounds that are done; they become those up to the checkpoint.

    Raises:
      ShardLostError: Shards were lost again and again before the action got beyond one round.
    """
    lost_at, losses, goes_back = -1, 0, False
    while True:
        try:
            if goes_back:
                records[:] = directory.go_back(simulation)
                goes_back = False
            return action()
        except engines.ShardLostError as error:
            losses = losses + 1 if simulation.round_number <= lost_at else 1
            lost_at = max(lost_at, simulation.round_number)
            if directory is None or losses > simulation.max_restarts:
                raise
            console.say(f"tf_pflego: {error.what}; the run goes on from its last checkpoint")
            goes_back = True


def _versions():
    return {
        "tf_pflego": tf_pflego.__version__,
        "commit": source_commit(),
        "tensorflow": tf.__version__,
    }
