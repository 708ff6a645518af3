"""A run in a directory: its configuration, its metrics and its weights.

Reading changes nothing in the directory and takes no lock, so a run can be read while it trains:
its metrics as far as they are written, and its weights at the newest checkpoint.

A directory may come from a stranger. It describes the run, and never determines the data or
computers that are used: the caller gives these.
"""

import contextlib
import functools
import os
import pathlib
from collections.abc import Callable
from typing import Any, overload

import numpy as np

from tf_pflego import algorithms, data, models
from tf_pflego.core import statistic_names
from tf_pflego.core.settings import Role, names_with
from tf_pflego.data.datasets.catalogue import NAMES
from tf_pflego.data.tables import AUTO
from tf_pflego.runs import build, earlier_run, loading, methods, partition_file, reader
from tf_pflego.runs.client_table import personalized_columns
from tf_pflego.runs.config import RunConfig
from tf_pflego.runs.plan import OWN_NETWORK, Plan, is_own, parts_of
from tf_pflego.runs.resumption import RunDirectoryError, is_private
from tf_pflego.runs.settings_read import changed, read_of
from tf_pflego.simulation import engine_choice
from tf_pflego.simulation.checkpoint import CheckpointError, Checkpoints
from tf_pflego.simulation.evaluation import Evaluation
from tf_pflego.simulation.measuring import Metrics
from tf_pflego.simulation.personalizing import Personalized
from tf_pflego.simulation.records import PERSONALIZED, PERSONALIZING
from tf_pflego.simulation.simulation import Simulation
from tf_pflego.system import durable, lock, texts, values

# How often a checkpoint is looked for anew, if a run that trains has replaced the one being read.
_ATTEMPTS = 5
_DONE_WITH = f".{PERSONALIZING}.partial"  # blocks of a pass that has ended


class StoredRun(contextlib.AbstractContextManager["StoredRun"]):
    """A run in a directory. `load_run` makes it.

    The data and the newest checkpoint are read when they are first needed, and then kept, so
    `client_model` and `evaluate` belong to one round even if the run trains on. Close it after use,
    or use it in a `with` statement.

    Attributes:
      path: The directory.
      configuration: Every flag and hyper-parameter of the run, by name.
      run_config: The settings, with the places of this machine and no output directory.
      hyper_parameters: The hyper-parameters of the method, by name.
      versions: The versions of the program and of its packages.
      summary: The contents of summary.json, or None if the run has not ended.
      is_of_program: Whether it had neither arrays nor a model from a user, which need Python.

    Example, explained in docs/tracking.md#save-and-restore:
      >>> with pfl.load_run("runs/small", clients=clients, model=model) as stored:
      ...     predictions = stored.predict()  # an array [n, K] per client
      >>> stored.round_number, predictions[0].shape
      (2, (20, 2))
    """

    def __init__(self, directory, data_dir, clients, model, algorithm, network):
        place = values.path("directory", directory, may_be_empty=False)
        self.path = pathlib.Path(place).expanduser()
        if not (self.path / "config.json").is_file():
            what = "does not exist" if not self.path.exists() else "has no config.json"
            raise RunDirectoryError(
                f"`run` must be the output directory of a run; {self.path} {what}. Give the "
                "`output_dir` of the run."
            )
        with self._reading("config.json"):
            self.configuration = read_of(reader.configuration(self.path / "config.json"))
        self.versions = self.configuration.pop("versions", {})
        self.configuration.pop(reader.OWN_STATISTICS, None)
        self.summary = None
        if (self.path / "summary.json").is_file():
            with self._reading("summary.json"):
                self.summary = reader.json_object(self.path / "summary.json")
        self._data_dir = None if data_dir is None else values.path("data_dir", data_dir)
        about = self.configuration
        self._has_own_model = about.get("network") == OWN_NETWORK
        is_known = about.get("dataset") in NAMES or bool(about.get("client_column"))
        self._has_dataset = is_known and about.get("partition") != reader.OWN_CLIENTS
        self.is_of_program = self._has_dataset and not self._has_own_model
        with self._reading("config.json"):
            self.run_config, self.hyper_parameters = self._configured()
        self._given_clients, self._given_model = clients, model
        self._given_algorithm, self._given_network = algorithm, network

    def __repr__(self) -> str:
        state = f"{self.configuration.get('num_rounds')} rounds, not ended"
        if self.summary is not None:
            first = statistic_names.first_of(self.summary)
            last = self.summary.get(first.metric("test_accuracy/client_mean"))
            state = f"{self.summary.get('round')} rounds, ended"
            state += "" if last is None else f" with {first.title} {first.written(last)}"
        about = self.configuration
        return f"StoredRun({self.path}: {about['algorithm']} on {about['dataset']}, {state})"

    def __exit__(self, *unused):
        self.close()

    def close(self) -> None:
        """Frees all memory of the run."""
        if "_restored" in self.__dict__:
            self._restored.close()

    @functools.cached_property
    def partition(self) -> data.Partition:
        """The clients' examples, as indices into the dataset, or into own arrays end to end."""
        with self._reading(partition_file.NAME):
            return data.Partition.load(self.path / partition_file.NAME)

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """The table of metrics.jsonl as it is now: for each name a column [T], one row per round.

        Numbers are float64, and NaN in rounds without evaluation. `round`, `participants` and the
        bytes are int64.
        """
        with self._reading("metrics.jsonl"):
            records = reader.records(self.path / "metrics.jsonl")
        names = dict.fromkeys(name for record in records for name in record)
        rows = {name: [record.get(name, np.nan) for record in records] for name in names}
        return {name: np.array(row) for name, row in rows.items()}

    @functools.cached_property
    def clients(self) -> data.ClientData:
        """The data of all clients, new ones too, loaded again by the configuration."""
        if self._given_clients is not None:
            remedy = "Make them with `from_arrays`."
            values.instance("clients", self._given_clients, data.ClientData, remedy)
            clients = loading.all_clients(self.run_config, self._given_clients, self.path)
            partition_file.refuse_others(self.path, clients)
            return clients
        if not self._has_dataset:
            raise RunDirectoryError(
                f"`clients` must be given for the run in {self.path}, which is on your own arrays "
                f"({self.configuration['dataset']}). Call load_run(directory, clients=...) with "
                "the run's own clients."
            )
        try:
            clients = loading.load_clients(self.run_config, self.path)
            if self.run_config.client_column:
                partition_file.refuse_others(self.path, clients, of_table=True)
            return clients
        except data.DatasetError as error:
            name, place = self.run_config.dataset, self.configuration.get("data_dir")
            if self.run_config.table:
                raise RunDirectoryError(
                    f"`data_dir` must be the directory with {name}, the table of the run in "
                    f"{self.path}, or its file; it is not where it was ({error}). Name it."
                ) from error
            if self._data_dir is not None or not place or not isinstance(place, str):
                raise
            raise RunDirectoryError(
                f"`data_dir` must be given for the run in {self.path}; your own TFDS directory "
                f"has no {name} that can be read, and the run's was {place!r}. Give "
                f"`data_dir={place!r}` if you trust its files."
            ) from error

    @property
    def round_number(self) -> int:
        """The number of rounds at the checkpoint that is read."""
        return self._restored.round_number

    def client_model(self, client: int | str, served_model: str | None = None) -> Any:
        """Returns a client's model as a Keras model (see `Simulation.client_model`)."""
        return self._restored.client_model(client, served_model)

    @overload
    def predict(self, split: str = ..., served_model: str | None = ...) -> list[np.ndarray]: ...

    @overload
    def predict(
        self, split: Any, served_model: str | None = ..., missing: str = ...
    ) -> dict[str, np.ndarray]: ...

    def predict(
        self, split: Any = "test", served_model: str | None = None, missing: str = AUTO
    ) -> Any:
        """Returns all clients' predictions for their examples or a table's (see `Simulation`)."""
        return self._restored.predict(split, served_model, missing=missing)

    def evaluate(self, train_loss: bool = True, metrics: Metrics | None = None) -> Evaluation:
        """Returns the statistics of all clients (see `Simulation.evaluate`)."""
        return self._restored.evaluate(train_loss, metrics=metrics)

    def planned(self, clients: data.ClientData | None = None, **settings: Any) -> Plan:
        """Returns the plan of the run for its clients or others, with other settings.

        A model, a method and a network file of the user's own have to be given as in the run.
        """
        if self._has_own_model != (self._given_model is not None):
            is_own = self._has_own_model
            expected, trained = ("given", "your own") if is_own else ("empty", "the program's")
            raise RunDirectoryError(
                f"`model` must be {expected} for the run in {self.path} with {trained} model. "
                "Call load_run(directory, ...) with the arguments of the run."
            )
        about = self.configuration
        if not self._has_own_model:
            settings["network"] = methods.network_of_stored(about, self._given_network, self.path)
        method = methods.method_of_stored(about, self._given_algorithm, self.path)
        run_config = changed(self.run_config, **settings)
        clients = self.clients if clients is None else clients
        return Plan.of(run_config, method, clients, self._given_model, **self.hyper_parameters)

    def simulation(
        self, engine: str = "in_process", clients: data.ClientData | None = None
    ) -> Simulation:
        """Returns a simulation at the newest checkpoint, which can continue; close it after use.

        It changes nothing in the directory, and saves elsewhere.

        Args:
          engine: tff or in_process, independently of the run's engine; ray for a new cluster on
            this machine.
          clients: Other clients in the place of the run's, such as next month's, with its
            preprocessing and classes. Clients with the name of one of the run begin with its state,
            and others as new clients. Rounds are counted from 1.

        Raises:
          RunDirectoryError: There is no checkpoint, or data, a model or a method must be given.
          CheckpointError: The checkpoints are damaged, or the data are not the run's.
          DatasetError, ImportError: The data or the engine cannot be loaded.
        """
        checkpoints = Checkpoints(self.path / "checkpoints")
        if not checkpoints.exist():
            raise self._no_checkpoint()
        values.one_of("engine", engine, engine_choice.NAMES)
        changes: dict[str, Any] = {"engine": engine}
        if clients is not None:
            values.instance("clients", clients, data.ClientData, "Make them with `from_table`.")
            drawn = min(self.run_config.clients_per_round, clients.num_clients)
            changes |= {"start_from": str(self.path), "num_new_clients": 0, "num_eval_clients": 0}
            changes |= {"clients_per_round": drawn, "participation": "fixed"}
        simulation = build.simulation_of(self.planned(clients, **changes), self.path)
        try:
            if clients is None:
                self._restore(simulation, checkpoints)
            else:
                earlier_run.take_over(simulation, changes["start_from"])
                earlier_run.warn_of_trained_rows(changes["start_from"], clients)
        except BaseException:
            simulation.close()
            raise
        return simulation

    def personalize(
        self,
        steps: int = 1000,
        learning_rate: float | str = "auto",
        tolerance: float = 0.03,
        toward_mean: float = 0.0,
        served_model: str | None = None,
        on_block: Callable[[int, int], None] | None = None,
    ) -> Personalized:
        """Fits every client's head to the final body; the run keeps the heads and serves them.

        When the pass has ended, the newest checkpoint has the new heads, and personalized.csv a row
        for each client. Until then only the blocks of clients that are done are new. If it is
        interrupted, the next call goes on to the same weights. See `Simulation.personalize`.

        Raises:
          RunDirectoryError: There is no checkpoint, data, model or method, or the run is in use.
        """
        place, done_with = (self.path / name for name in (PERSONALIZING, _DONE_WITH))
        with lock.taken(self.path, "run", RunDirectoryError), self.simulation() as simulation:
            if place.is_symlink():
                raise RunDirectoryError(
                    f"`run` must have its own directory for blocks of clients; {place} is a link. "
                    "Remove it."
                )
            durable.remove(done_with)
            how = steps, learning_rate, tolerance, toward_mean, served_model
            done = simulation.personalize(*how, place, on_block)
            content: Any = (checkpoints := Checkpoints(self.path / "checkpoints")).newest()
            about = {name: content[name] for name in ("configuration", "metrics")}
            simulation.save_to(checkpoints, about)
            columns = personalized_columns(done, simulation.data)
            rows = zip(*columns.values(), strict=True)
            mode = 0o600 if is_private(self.configuration) else 0o666
            with durable.batch() as files:
                files.csv(self.path / PERSONALIZED, columns, rows, mode)
            # At once: a pass that finds a part of the blocks would fit the other heads again.
            durable.remove(place.rename(done_with))
        self.close()
        self.__dict__.pop("_restored", None)
        return done

    @functools.cached_property
    def _restored(self):
        """The simulation at the checkpoint that is read."""
        return self.simulation()

    def _restore(self, simulation, checkpoints):
        for attempt in range(1, _ATTEMPTS + 1):
            seen = self._checkpoint_files()
            try:
                content = checkpoints.newest()
                if content is None:
                    raise self._no_checkpoint()
                return simulation.restore_from(checkpoints, content)
            except (CheckpointError, OSError):
                if attempt == _ATTEMPTS or self._checkpoint_files() == seen:
                    raise

    def _checkpoint_files(self):
        return sorted(os.listdir(self.path / "checkpoints"))

    def _no_checkpoint(self):
        reason = "it is not finished and has not written one yet"
        remedy = "Wait for its first checkpoint, or let it go on"
        if not self.configuration.get("checkpoint_every"):
            reason = "it was made with checkpoint_every=0"
            remedy = "Run it again with another number"
        return RunDirectoryError(
            f"the run in {self.path} must have a checkpoint, which holds what its clients have "
            f"learnt; {reason}. {remedy}."
        )

    def _configured(self):
        """Returns the RunConfig and the algorithm's hyper-parameters."""
        stored = self.configuration
        if missing := {*names_with(Role.ALIKE, RunConfig)} - stored.keys():
            raise ValueError(f"it has no {', '.join(sorted(missing))}")
        settings, others = parts_of(stored)
        if stored.get("table"):  # Wherever it is, other rows than those of the run are refused.
            settings["table"] = place = self._data_dir or stored["table"]
            name = settings.pop("dataset")  # Which a file that was renamed has no more.
            if os.path.isdir(place):
                settings["table"] = os.path.join(place, name)
        else:
            settings["data_dir"] = self._data_dir or ""
        run_config = RunConfig(**settings)
        if not is_own(stored):  # What hyper-parameters an own method has, its source says.
            algorithms.check(stored["algorithm"], others)
        return run_config, others

    @contextlib.contextmanager
    def _reading(self, name):
        """Adds the name of the file to any error that NumPy and zipfile raise."""
        try:
            yield
        except Exception as error:
            raise RunDirectoryError(
                f"{name} in {self.path} must be as a run wrote it; it is damaged or missing "
                f"({texts.printable(str(error))}). Get it from a copy, or make the run again."
            ) from error


def load_run(
    directory: str | os.PathLike,
    data_dir: str | os.PathLike | None = None,
    clients: data.ClientData | None = None,
    model: models.SplitModel | None = None,
    algorithm: algorithms.Named | None = None,
    network: str | None = None,
) -> StoredRun:
    """Returns the run with this output directory, finished or not.

    Args:
      directory: The directory, which does not change.
      data_dir: The TFDS directory with the run's dataset; None for TFDS' default, also if the run
        had another: its directory does not decide the data that are read here. For a run on a
        table, the table or its directory; None for its old path, which is read if it has the run's
        rows.
      clients: The clients that `run` was given, for a run on a user's own arrays, or loaded data.
      model: The model of a run with the user's model. The directory contains the learnt weights.
        Layers and frozen weights must be the same as at the start of the run.
      algorithm: The user's own method in the run: its builder, or FILE.py:FUNCTION. A run's
        directory never determines the code that is loaded.
      network: The unchanged Keras file of a run with a file as `network`.

    Raises:
      RunDirectoryError: It is not a run's directory, or its configuration is damaged.

    Example, explained in docs/tracking.md#save-and-restore:
      >>> stored = pfl.load_run("runs/small", clients=clients, model=model)
      >>> stored.run_config.num_rounds, len(stored.metrics["round"])
      (2, 2)
    """
    return StoredRun(directory, data_dir, clients, model, algorithm, network)
