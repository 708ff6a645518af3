"""Trains a run from its configuration, and writes its directory."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_pflego import algorithms, data, engines, models, version
from tf_pflego.runs import build, earlier_run, loading, partition_file, reader
from tf_pflego.runs import callbacks as callbacks_lib
from tf_pflego.runs.callbacks import Callback, SpendsAtMost
from tf_pflego.runs.client_table import client_columns, predicted_columns
from tf_pflego.runs.config import RunConfig
from tf_pflego.runs.plan import Plan
from tf_pflego.runs.progress import Progress, say_decline
from tf_pflego.runs.run_directory import TENSORBOARD, RunDirectory
from tf_pflego.runs.tensorboard import EventFiles
from tf_pflego.serving.new_clients import NewClients
from tf_pflego.simulation import engine_choice, feature_files
from tf_pflego.simulation.evaluation import metrics_of, sample_of_clients, summarize
from tf_pflego.simulation.measuring import Metrics
from tf_pflego.system import log, values
from tf_pflego.system.source import source_commit


def run(
    run_config: RunConfig,
    on_round: Callable[[dict], None] | None = None,
    clients: data.ClientData | None = None,
    model: models.SplitModel | None = None,
    algorithm: algorithms.Named | None = None,
    metrics: Metrics | None = None,
    callbacks: Sequence[Callback] = (),
    **hyper_parameters: Any,
) -> dict[str, Any]:
    """Trains, writes the output directory if there is one, shows progress, returns the summary.

    Args:
      run_config: The run.
      on_round: Called with the metrics of each round, when they are written. A `Callback` can do
        more.
      clients: All its clients, such as the result of `from_arrays`; None for the clients of its
        dataset. The output directory has their names, their partition and their fingerprints, which
        a resumed run compares. Validation examples are selected as in `build_simulation`.
      model: The clients' model; None for the network of `run_config`. The output directory has the
        learnt weights, and not the layers.
      algorithm: Your own method: its builder, or FILE.py:FUNCTION; None for the method of
        `run_config`. The output directory has a checksum of its source, and not the source.
      metrics: Your own measures for evaluated rounds and clients.csv, as in `Simulation.evaluate`.
      callbacks: Callbacks, called before, between and after the rounds in this order. Each may end
        the run, as `EarlyStopping` does. See `Callback`.
      **hyper_parameters: The algorithm's hyper-parameters. The rest keep their defaults.

    Raises:
      TypeError, ValueError, ImportError: As in `build_simulation`, or the output directory cannot
        be used.
      WorkerError: The TFF worker failed repeatedly. The run can be resumed.
      NotFiniteError: As in `Simulation.run_round`. The earlier rounds are in a checkpoint.
      Exception: A function or callback has raised it. The earlier rounds are in a checkpoint.

    Example, explained in docs/program.md#output-of-a-run:
      >>> summary = pfl.run(settings, clients=clients, model=model, client_learning_rate=0.1)
      >>> summary["round"], "test_accuracy/client_mean" in summary
      (2, True)
    """
    plan = Plan.of(run_config, algorithm, clients, model, **hyper_parameters)
    callbacks = callbacks_lib.checked(callbacks)
    if on_round is not None:
        values.function("on_round", on_round)
        callbacks.insert(0, _Calls(on_round))
    return train(plan, callbacks, metrics=metrics)


def train(
    plan: Plan,
    callbacks: Sequence[Callback] = (),
    between_steps: Callable[[], None] = lambda: None,
    on_clients: Callable[[Mapping[str, Sequence[Any]]], None] | None = None,
    metrics: Metrics | None = None,
) -> dict[str, Any]:
    """Trains a planned run, and returns its summary (see `run`)."""
    settings = plan.settings
    with contextlib.ExitStack() as closing:
        directory: RunDirectory | None = None
        if settings.output_dir:
            directory = closing.enter_context(RunDirectory(plan))
            plan = directory.plan
            if plan.clients is not None and settings.resume:
                clients = loading.all_clients(settings, plan.clients)
                partition_file.refuse_others(directory.work, clients)
            if directory.finished is not None:
                log.info(
                    f"the run in {directory.path} is finished, with all "
                    f"{directory.finished['round']} rounds. Nothing is done"
                )
                if on_clients is not None:
                    on_clients(reader.columns(directory.path / "clients.csv"))
                return directory.finished
        if settings.start_from and not (directory is not None and directory.goes_on):
            earlier_run.refuse_another(plan)
        features = None if directory is None else directory.path / feature_files.NAME
        closing.enter_context(feature_files.kept_in(features))
        return _Run(plan, list(callbacks), between_steps, metrics, directory).to_its_end(on_clients)


def refuse_early(plan: Plan) -> None:
    """Raises the errors of `train` that need neither its data nor TensorFlow."""
    settings = plan.settings
    engine_choice.refuse_absent(settings.engine)
    refuse_few_clients(plan)
    engine_choice.refuse_unreachable(settings)
    if settings.output_dir and not settings.resume:
        RunDirectory(plan).close()
    if settings.start_from and not settings.resume:
        earlier_run.refuse_another(plan)


def refuse_few_clients(plan: Plan) -> None:
    """Raises ValueError if a run on a dataset asks for more of its clients than there are."""
    settings, count = plan.settings, plan.num_clients
    if count > 0:
        settings.participation_of(count)
        sample_of_clients(settings.seed, count, settings.num_eval_clients)
        engine_choice.refuse_few_clients(settings, count)


class _Ends(Exception):
    """A callback ends the run."""


class _Calls(Callback):
    """Calls a function with the metrics of each round."""

    def __init__(self, function):
        self._function = function

    def on_round_end(self, simulation, record):
        self._function(record)


class _WritesCheckpoints(Callback):
    """Writes a checkpoint before the first round, and after each that `every` divides."""

    def __init__(self, directory, every):
        self._directory, self._every = directory, every

    def on_run_begin(self, simulation, records):
        self._directory.save_checkpoint(simulation)

    def on_round_end(self, simulation, record):
        if record["round"] % self._every == 0:
            self._directory.save_checkpoint(simulation)


@dataclasses.dataclass
class _Run:
    """A run from its first step to its last."""

    plan: Plan
    callbacks: list[Callback]
    between_steps: Callable[[], None]
    metrics: Metrics | None
    directory: RunDirectory | None

    def to_its_end(self, on_clients):
        """Runs all steps, and returns the summary."""
        settings, directory = self.plan.settings, self.directory
        if self.plan.clients is None:
            log.debug(f"loading {settings.dataset} and dealing it out to clients")
        begun = directory.work if directory is not None and directory.goes_on else None
        clients = loading.all_clients(settings, self.plan.clients, begun)
        if directory is not None and settings.resume and settings.client_column:
            if (directory.work / "config.json").exists():  # Its writer must have known these rows.
                partition_file.refuse_others(directory.work, clients, of_table=True)
        self.between_steps()
        log.debug(f"building the model{engine_choice.STARTED.get(settings.engine, '')}")
        loaded = dataclasses.replace(self.plan, clients=clients)
        with build.simulation_of(loaded, begun) as self.simulation:
            self.between_steps()
            if settings.is_private and clients.preprocessing and clients.preprocessing.is_fitted:
                log.warning(
                    "means, deviations and categories of the columns follow from all clients' rows "
                    "without noise, are in each exported model, and are outside of epsilon"
                )
            if settings.start_from and begun is None:  # Before anything is written.
                earlier_run.take_over(self.simulation, settings.start_from)
                earlier_run.warn_of_trained_rows(settings.start_from, clients)
            self.records: list[dict[str, Any]] = []
            if directory is not None:
                self.records = self._despite_losses(
                    lambda: directory.begin(self.simulation, clients, _versions())
                )
            log.debug(f"tracing round {len(self.records) + 1}, which takes longest")
            self._train()
            log.debug(f"evaluating {settings.num_eval_clients or 'all'} clients")
            self.between_steps()
            of_new, summary_of_new = self._despite_losses(lambda: self._train_new_clients(clients))
            self.between_steps()
            ends_early = self.simulation.round_number < settings.num_rounds
            if directory is not None or on_clients is not None or ends_early:
                # Only files have the loss, which takes a pass over all training examples.
                with_loss = directory is not None or ends_early
                evaluations = self._despite_losses(
                    lambda: self.simulation.evaluate_all(with_loss, True, self.metrics)
                )
                self.between_steps()
            records = self.records
            if ends_early:  # Its last rounds may not have been evaluated.
                records = [*records[:-1], metrics_of(evaluations) | records[-1]]
            summary = summarize(records) | summary_of_new
            say_decline(records)
            if directory is not None:
                predicted = self._despite_losses(lambda: predicted_columns(self.simulation))
                directory.finish(summary, evaluations, predicted, self.simulation, of_new, clients)
            if on_clients is not None:
                on_clients(client_columns(evaluations, self.simulation.data))
            for callback in self.callbacks:
                callback.on_run_end(self.simulation, summary)
        return summary

    @property
    def _checkpointed(self):
        """The directory if the run writes checkpoints there."""
        return self.directory if self.plan.settings.checkpoint_every else None

    def _train(self):
        """Runs the rounds, and the callbacks between them. It ends with a checkpoint."""
        settings, directory, checkpointed = self.plan.settings, self.directory, self._checkpointed
        with contextlib.ExitStack() as closing:
            progress = closing.enter_context(contextlib.closing(Progress(settings.num_rounds)))
            callbacks: list[Callback] = [progress]
            if directory is not None:
                if settings.tensorboard:
                    events = EventFiles(directory.work / TENSORBOARD)
                    callbacks.append(closing.enter_context(contextlib.closing(events)))
                callbacks.append(_Calls(directory.add_round))
            callbacks += self.callbacks
            if settings.dp_epsilon:
                callbacks.append(SpendsAtMost(settings))
            if checkpointed is not None:
                callbacks.append(_WritesCheckpoints(checkpointed, settings.checkpoint_every))
            callbacks.append(_Calls(lambda record: self.between_steps()))
            try:
                self.between_steps()
                self._despite_losses(lambda: self._run_rounds(callbacks))
                if checkpointed is not None:
                    checkpointed.save_checkpoint(self.simulation)
            except BaseException:
                if checkpointed is not None:
                    with contextlib.suppress(Exception):  # What ended the run is what is said.
                        checkpointed.save_checkpoint(self.simulation)
                raise

    def _run_rounds(self, callbacks):
        """Runs the rounds that are left, or as many as the callbacks allow."""

        def listen(record):
            self.records.append(record)
            # Each is called, also where another one ends the run.
            if any([one.on_round_end(self.simulation, record) for one in callbacks]):
                raise _Ends

        if any([one.on_run_begin(self.simulation, self.records) for one in callbacks]):
            return
        settings = self.plan.settings
        left = settings.num_rounds - self.simulation.round_number
        if left > 0:
            every = settings.eval_every, settings.train_loss_every
            with contextlib.suppress(_Ends):
                self.simulation.run(left, *every, listen, self.metrics)

    def _despite_losses(self, action):
        """Returns the result of an action. After the loss of a shard, continues from a checkpoint.

        ShardLostError is raised if shards are lost repeatedly without another finished round.
        """
        lost_at, losses = -1, 0
        while True:
            try:
                if losses:
                    self.records = self._checkpointed.go_back(self.simulation)
                return action()
            except engines.ShardLostError as error:
                number = self.simulation.round_number
                losses = losses + 1 if number <= lost_at else 1
                lost_at = max(lost_at, number)
                if self._checkpointed is None or losses > self.simulation.max_restarts:
                    raise
                log.warning(f"{error.what}; the run continues from its last checkpoint")

    def _train_new_clients(self, clients):
        """Returns the evaluations of the new clients, and their part of the summary."""
        settings = self.plan.settings
        if not settings.num_new_clients:
            return [], {}
        new = clients.part(self.simulation.data.num_clients, clients.num_clients)
        rate = settings.new_client_learning_rate
        evaluations = NewClients(self.simulation, new, learning_rate=rate).trained(
            settings.new_client_epochs, engine=self.simulation.place_beside(new.num_clients)
        )
        return evaluations, {
            f"new_clients/{name}/{when}": value
            for when, one in (("before", evaluations[0]), ("after", evaluations[-1]))
            for name, value in one.metrics().items()
            if name.endswith("/client_mean")
        }


def _versions():
    versions = {"tf_pflego": version.__version__, "tensorflow": tf.__version__}
    return {**versions, "commit": source_commit()}
