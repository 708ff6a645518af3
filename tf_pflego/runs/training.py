"""Makes a finished run from a configuration, and its directory."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_pflego import algorithms, data, engines, models, version
from tf_pflego.engines.ray import ray_options
from tf_pflego.runs import build, config, given_clients, methods
from tf_pflego.runs.client_table import client_columns, read_client_columns
from tf_pflego.runs.progress import Progress
from tf_pflego.runs.run_directory import RunDirectory
from tf_pflego.runs.source import source_commit
from tf_pflego.serving import fine_tuning
from tf_pflego.simulation.evaluation import sample_of_clients
from tf_pflego.simulation.measuring import Metrics
from tf_pflego.simulation.not_finite import NotFiniteError
from tf_pflego.simulation.summary import summarize
from tf_pflego.system import terminal, values

# What a run's directory has for its network, where the user gave a model.
OWN_NETWORK = "own"


def _train_new_clients(run_config, simulation, clients):
    """Returns the evaluations of the new clients, and what the summary says of them."""
    if not run_config.new_clients:
        return [], {}
    new = clients.part(simulation.data.num_clients, clients.num_clients)
    found = fine_tuning.fine_tune(
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
    build.check_config(run_config)
    build.check_model(run_config, model)
    method = methods.method_of(run_config, algorithm)
    build.with_schedule_rounds(run_config, method, hyper_parameters)
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
            clients = build.all_clients(run_config, clients)
            directory.refuse_other_clients(clients)
        if directory.finished is not None:
            terminal.note(
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
    method = methods.method_of(run_config)
    build.with_schedule_rounds(run_config, method, hyper_parameters)
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
    configuration = dataclasses.asdict(run_config) | methods.recorded(method)
    configuration |= dict(sorted(hyper_parameters.items()))
    if clients is not None:
        configuration |= given_clients.recorded(run_config, clients, build.load_clients)
    if model is not None:
        configuration["network"] = OWN_NETWORK
    return RunDirectory(
        run_config.output_dir,
        configuration,
        run_config.overwrite,
        run_config.resume,
        run_config.checkpoints_kept,
        run_config.tensorboard,
        dataclasses.asdict(method.settings()),
    )


def _run(*arguments):
    try:
        return _run_in_steps(*arguments)
    finally:
        terminal.done()


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
        terminal.doing(f"loading {run_config.dataset} and dealing it out to clients")
    clients = build.all_clients(run_config, clients)
    between_steps()
    worker = " and starting the TFF worker" if run_config.engine == "tff" else ""
    terminal.doing(f"building the model{worker}")
    every = run_config.checkpoint_every if directory is not None else 0
    with build.build_simulation(
        run_config, clients, model, method, **hyper_parameters
    ) as simulation:
        between_steps()
        records: list[dict[str, Any]] = []

        def despite_losses(action):
            return _despite_losses(action, simulation, directory if every else None, records)

        if directory is not None:
            records[:] = despite_losses(lambda: directory.begin(simulation, clients, _versions()))
            if every:
                directory.save_checkpoint(simulation)
        terminal.doing(f"tracing round {len(records) + 1}, which takes longest")
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
        terminal.doing(f"evaluating {run_config.eval_clients or 'all'} clients")
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
            terminal.say(f"tf_pflego: {error.what}; the run goes on from its last checkpoint")
            goes_back = True


def _versions():
    return {
        "tf_pflego": version.__version__,
        "commit": source_commit(),
        "tensorflow": tf.__version__,
    }
