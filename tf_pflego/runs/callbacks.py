"""Callbacks, which a run calls between its rounds: the package's own, and users'."""

import math
from collections.abc import Sequence
from typing import Any

from tf_pflego.core import statistic_names
from tf_pflego.runs import aggregation_settings
from tf_pflego.simulation.simulation import Simulation
from tf_pflego.system import log, values

Record = dict[str, Any]
_MORE = 1.001  # Other versions of dp-accounting may round otherwise.


class Callback:
    """The base of callbacks, which a run calls between rounds; define the methods you need.

    A method may read, evaluate and save the simulation, and may not run, restore or close it. An
    exception in it ends the run, after a checkpoint, and the run can be resumed.

    Example, explained in docs/tracking.md#callbacks-and-early-stopping:
      >>> class OneRound(pfl.Callback):
      ...     def on_round_end(self, simulation, record):
      ...         return True  # ends the run
      >>> pfl.run(settings, clients=clients, model=model, callbacks=[OneRound()])["round"]
      1
    """

    def on_run_begin(self, simulation: Simulation, records: Sequence[Record]) -> bool | None:
        """Called before the first round that is run.

        It is called again, without the rounds that were lost, if a run on a Ray cluster goes back
        to its last checkpoint.

        Args:
          simulation: The simulation.
          records: The metrics of the finished rounds, which are empty unless the run continues an
            earlier run. A callback with state about rounds has to compute it from these.

        Returns:
          True if the run is to end here.
        """

    def on_round_end(self, simulation: Simulation, record: Record) -> bool | None:
        """Called after each round, when its metrics are written.

        Args:
          simulation: The simulation.
          record: The metrics of the round, as in metrics.jsonl. Only evaluated rounds have
            statistics such as accuracy.

        Returns:
          True if the run is to end here, as it does after its last round.
        """

    def on_run_end(self, simulation: Simulation, summary: dict[str, Any]) -> None:
        """Called when the run is complete and its files are written.

        Args:
          simulation: The simulation, after the last round.
          summary: The summary that `run` returns.
        """


class EarlyStopping(Callback):
    """Ends a run when a metric has not improved for some evaluated rounds.

    The run ends with the model of its last round, not of its best round. A resumed run stops at the
    same round as without the interruption.

    Args:
      metric: The metric, by its name in metrics.jsonl. None for the mean over clients of the run's
        first statistic, such as `validation_accuracy/client_mean`, on validation examples, which a
        run has with `validation_fraction`.
      patience: The number of evaluated rounds without improvement after which the run ends.
      min_delta: The amount, at least 0, by which a value must exceed the best value.
      mode: Whether a larger value is better (max) or a smaller value (min). None for the
        statistic's own mode, such as min for `test_root_mean_squared_error/client_mean`, or max for
        metrics without a statistic.

    Attributes:
      best: The best value.
      best_round: The round of the best value; 0 before the first.

    Raises:
      ValueError: An argument does not take its value.

    Example, explained in docs/tracking.md#callbacks-and-early-stopping:
      >>> stopping = pfl.EarlyStopping("test_accuracy/client_mean", patience=3)
      >>> summary = pfl.run(settings, clients=clients, model=model, callbacks=[stopping])
      >>> stopping.best == summary["test_accuracy/client_mean/best"]
      True
    """

    def __init__(
        self,
        metric: str | None = None,
        patience: int = 10,
        min_delta: float = 0.0,
        mode: str | None = None,
    ):
        self.metric = None if metric is None else values.text("metric", metric)
        self.patience = values.whole("patience", patience, 1)
        self.min_delta = values.number("min_delta", min_delta, at_least=0)
        self.mode = None if mode is None else values.one_of("mode", mode, ("max", "min"))
        self._forget()

    def _forget(self, first="accuracy"):
        """Resets the best value. The metric defaults to the run's first statistic."""
        self._watched = self.metric or str(statistic_names.Metric("validation", first, "client"))
        self._shown = statistic_names.of_metric(self._watched)
        if self.mode is not None:
            self._shown = self._shown._replace(higher_is_better=self.mode == "max")
        self.best = -self._shown.sign * math.inf
        self.best_round = self._waited = 0

    def on_run_begin(self, simulation: Simulation, records: Sequence[Record]) -> bool:
        """Processes the finished rounds (see `Callback.on_run_begin`).

        Raises:
          ValueError: The metric is on validation examples, which the run does not have.
        """
        if self.metric is None:
            self._forget(simulation.algorithm.model.task.statistics[0].name)
        else:
            self._forget()
        watched = statistic_names.Metric.read(self._watched)
        on_validation = watched is not None and watched.split == "validation"
        if on_validation and simulation.data.validation is None:
            raise ValueError(
                f"`metric` must be one that the run has; got {self._watched}, and there are no "
                "validation examples. Set `validation_fraction`, or name another metric."
            )
        for record in records:
            self._take(record)
        return self._waited >= self.patience

    def on_round_end(self, simulation: Simulation, record: Record) -> bool:
        """Compares a round with the best round (see `Callback.on_round_end`).

        Raises:
          ValueError: The run has no such metric.
        """
        # The first round is evaluated. Without participants it lacks theirs, and the loss may wait.
        has_all = record["round"] == 1 and record["participants"]
        if has_all and self._watched not in {*record, "train_loss"}:
            raise ValueError(
                f"`metric` must be one that evaluated rounds have; got {self._watched!r}. They "
                f"have {', '.join(name for name in record if '/' in name)}, train_loss."
            )
        self._take(record)
        if self._waited < self.patience:
            return False
        log.info(
            f"the run ends after round {record['round']}: {self._watched} has not "
            f"become better than {self.best:.4f}, that of round {self.best_round}"
        )
        return True

    def _take(self, record):
        if self._watched not in record:
            return
        value = record[self._watched]
        if value is None:  # It was not finite when it was written.
            value = math.nan
        if self._shown.sign * (value - self.best) > self.min_delta:
            self.best, self.best_round, self._waited = value, record["round"], 0
        else:
            self._waited += 1


def checked(callbacks: Any) -> list[Callback]:
    """Returns a user's callbacks; raises TypeError for objects of other types."""
    if not isinstance(callbacks, list | tuple):
        raise TypeError(
            f"`callbacks` must be a list of `Callback`; got {values.shown(callbacks)}. Put them in "
            "a list."
        )
    for callback in callbacks:
        values.instance("callbacks", callback, Callback, "Derive its class from `pfl.Callback`.")
    return list(callbacks)


class SpendsAtMost(Callback):
    """Ends a private run before the round that would exceed its epsilon."""

    def __init__(self, run_config):
        self._run_config = run_config

    def on_run_begin(self, simulation, records):  # noqa: D102
        return simulation.round_number < self._run_config.num_rounds and self._is_spent(simulation)

    def on_round_end(self, simulation, record):  # noqa: D102
        return self.on_run_begin(simulation, ())

    def _is_spent(self, simulation):
        most, after = self._run_config.dp_epsilon, simulation.round_number
        then = aggregation_settings.epsilon_after(self._run_config, simulation, 1)
        if then <= most * _MORE:
            return False
        log.warning(
            f"the run ends after round {after}: with another one, epsilon would be {then:.3f}, "
            f"and `dp_epsilon` is {most:g}; to go on, raise `dp_epsilon`"
        )
        return True
