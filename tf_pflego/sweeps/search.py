"""A search for the settings of a cell, one trial after the other, by Optuna.

It proposes settings by a tree-structured Parzen estimator (Bergstra et al., "Algorithms for
Hyper-Parameter Optimization", 2011). The same answers give the same proposals, so that a search
which was interrupted is repeated from its results up to where it was.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tf_pflego.core.statistic_names import first_of
from tf_pflego.runs.callbacks import Callback
from tf_pflego.sweeps.choice import Trial
from tf_pflego.sweeps.definition import Cell, Range
from tf_pflego.sweeps.store import VALIDATION

_SEED = 0
# A trial goes on at least for this share of its rounds, and until so many others have ended.
_WARM_UP, _FEWEST = 0.2, 4


class Search:
    """Proposes a number of settings of a cell.

    Attributes:
      pending: The settings that were proposed last, until their result is told; None before.
    """

    def __init__(self, cell: Cell, trials: int):
        try:
            import optuna
        except ImportError as error:
            raise ImportError(
                "a range is searched by Optuna, which is not installed. Install "
                "`tf_pflego[search]`, or write the values as a list"
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        # A random start of a third, since the default of ten would leave few trials nothing else.
        sampler = optuna.samplers.TPESampler(n_startup_trials=max(2, trials // 3), seed=_SEED)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._choices, self._left = cell.choices, trials
        self.pending: dict[str, Any] | None = None

    def ask(self) -> dict[str, Any] | None:
        """Returns the settings of the next trial, or None if all trials are done."""
        if self.pending is None and self._left:
            self._left -= 1
            self._trial = self._study.ask()
            self.pending = {name: self._suggested(name) for name in self._choices}
        return self.pending

    def tell(self, ended: Trial) -> None:
        """Takes the result of a trial; without a value, pruned or not finite, it is the worst."""
        self.pending = None
        value = -math.inf if ended.value is None else ended.first.sign * ended.value
        self._study.tell(self._trial, value)

    def _suggested(self, name):
        among = self._choices[name]
        if not isinstance(among, Range):
            return self._trial.suggest_categorical(name, among)
        kind = "int" if isinstance(among.low, int) else "float"
        suggest = getattr(self._trial, f"suggest_{kind}")
        return suggest(name, among.low, among.high, log=among.log)


class MedianPruning(Callback):
    """Ends a trial whose best validation statistic is worse than the median of others at a round.

    Args:
      curves: The rounds and values, [[round, value], ...], of the trials that have ended.
      num_rounds: How many rounds a trial has.
    """

    def __init__(self, curves: Sequence[Sequence[Sequence[float]]], num_rounds: int):
        self._curves = [{number: value for number, value in curve} for curve in curves]
        self._from = _WARM_UP * num_rounds
        self._best = -math.inf  # of values times the sign of the statistic

    def on_run_begin(self, simulation, records: Sequence[Mapping[str, Any]]) -> bool:
        """Takes account of the rounds that are done."""
        self._best = -math.inf
        return any([self.after_round(simulation, record) for record in records])

    def after_round(self, simulation, record: Mapping[str, Any]) -> bool:
        """Returns whether the trial ends here."""
        first = first_of(record)
        value = record.get(first.metric(VALIDATION))
        if value is not None:
            self._best = max(self._best, first.sign * value)
        number = record["round"]
        others = [first.sign * curve[number] for curve in self._curves if number in curve]
        is_measured = (
            first.metric(VALIDATION) in record and number >= self._from and len(others) >= _FEWEST
        )
        return is_measured and self._best < statistics.median(others)
