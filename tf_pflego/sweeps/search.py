"""A search for the settings of a cell, one trial after the other, by Optuna.

It proposes settings by a tree-structured Parzen estimator (Bergstra et al., "Algorithms for
Hyper-Parameter Optimization", 2011). The same answers give the same proposals, so that a search
which was interrupted is repeated from its results up to where it was.
"""

import math
from typing import Any

from tf_pflego.sweeps.choice import Trial
from tf_pflego.sweeps.experiments import Cell, Range

_SEED = 0


class Search:
    """Proposes a number of settings of a cell.

    Attributes:
      pending: The last proposed settings, until `tell` gets their result; None before.
    """

    def __init__(self, cell: Cell, trials: int):
        try:
            import optuna
        except ImportError as error:
            raise ImportError(
                "a range is searched by Optuna, which is not installed. Install it by "
                "`pip install '.[search]'` in a checkout, or write the values as a list"
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
        """Takes the result of a trial. A result that is not finite is the worst."""
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
