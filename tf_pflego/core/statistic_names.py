"""How the statistics of tasks are shown, and which of two of their values is better.

Nothing heavy is imported here, so that reports, sweeps and the command line read this without
starting TensorFlow.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple


class Shown(NamedTuple):
    """How a statistic is shown."""

    name: str  # its metrics are test_{name}/client_mean and so on
    title: str  # in tables, axes and lines of the terminal
    higher_is_better: bool = True
    is_share: bool = False  # a number in [0, 1], which reports show in percent

    @property
    def sign(self) -> int:
        """1, or -1 if lower is better: of values times this the largest is the best."""
        return 1 if self.higher_is_better else -1

    def best(self, values: Iterable[float]) -> float:
        """Returns the best of some values."""
        return max(values, key=lambda value: self.sign * value)

    def written(self, value: float | None) -> str:
        """Returns a value with the digits of a line; None stands for one that was not finite."""
        if value is None:
            return "-"
        return f"{value:.4f}" if self.is_share else f"{value:.4g}"


CATALOGUE = {
    one.name: one
    for one in (
        Shown("accuracy", "accuracy", is_share=True),
        Shown("top_5_accuracy", "top-5 accuracy", is_share=True),
        Shown("balanced_accuracy", "balanced accuracy", is_share=True),
        Shown("macro_f1", "macro F1", is_share=True),
        Shown("calibration_error", "calibration error", higher_is_better=False, is_share=True),
        Shown("area_under_roc", "AUROC", is_share=True),
        Shown("f1", "F1", is_share=True),
        Shown("exact_match", "exact match", is_share=True),
        Shown("root_mean_squared_error", "RMSE", higher_is_better=False),
        Shown("mean_absolute_error", "mean absolute error", higher_is_better=False),
        Shown("r_squared", "R²"),
        Shown("poisson_deviance", "Poisson deviance", higher_is_better=False),
        Shown("perplexity", "perplexity", higher_is_better=False),
    )
}
# A column of clients, or a metric of all clients with their first model; not what a sample of
# clients or a group of them has besides.
_OF_STATISTIC = re.compile(
    r"test_(?!examples$)(\w+)|(?:test|validation)_(\w+)/client_mean(?:/last10|/best)?"
)


def shown(name: str) -> Shown:
    """Returns how a statistic is shown; one that is not in the catalogue by its own words."""
    return CATALOGUE.get(name) or Shown(name, name.replace("_", " "))


def first_of(names: Iterable[str]) -> Shown:
    """Returns the first statistic of a run; accuracy if there is none.

    The names are those of its metrics, or of the columns of its clients, in their order.
    """
    matches = filter(None, map(_OF_STATISTIC.fullmatch, names))
    return shown(next((match[1] or match[2] for match in matches), "accuracy"))
