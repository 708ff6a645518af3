"""The names of metrics, the titles and formats of statistics, and which value is better.

Nothing heavy is imported here, so that reports, sweeps and the command line read this without
starting TensorFlow.
"""

import functools
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Shown(NamedTuple):
    """The title and format of a statistic, and which of two values is better."""

    name: str  # its metrics are test_{name}/client_mean and so on
    title: str  # in tables, axes and lines of the terminal
    higher_is_better: bool = True
    is_share: bool = False  # a number in [0, 1], which reports show in percent

    @property
    def plural(self) -> str:
        """The title for the values of many clients."""
        return self.title.replace("accuracy", "accuracies")

    @property
    def scale(self) -> int:
        """100 for shares, which are shown in percent, else 1."""
        return 100 if self.is_share else 1

    @property
    def unit(self) -> str:
        """The unit after the title of an axis that has values times the scale."""
        return ", percent" if self.is_share else ""

    @property
    def sign(self) -> int:
        """1 if higher is better, else -1. Choices maximise `sign * value`."""
        return 1 if self.higher_is_better else -1

    def best(self, values: Iterable[float]) -> float:
        """Returns the best of some values."""
        return max(values, key=lambda value: self.sign * value)

    @property
    def in_units(self) -> bool:
        """Whether it is an error in the units of the labels, which differ between clients."""
        return self.name in ("root_mean_squared_error", "mean_absolute_error")

    def metric(self, of_accuracy: str) -> str:
        """Returns the metric of this statistic, from the name of accuracy's metric."""
        metric = Metric.read(of_accuracy)
        return of_accuracy if metric is None else str(metric.of_statistic(self.name))

    def written(self, value: float | None) -> str:
        """Returns a value in its printed form; None means infinity or NaN."""
        if value is None:
            return "-"
        return f"{value:.4f}" if self.is_share else significant(value)


def significant(value: float, digits: int = 4, sign: str = "") -> str:
    """Returns a number with `digits` significant digits, and all digits before the point."""
    if not 1e-4 <= abs(value) < 1e15:
        return f"{value:{sign}.{digits}g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:{sign}.{decimals}f}"


def over(errors: Iterable[float], deviations: Iterable[float]) -> list[float]:
    """Returns clients' errors over the deviations of their labels; NaN for a deviation of 0."""
    pairs = zip(errors, deviations, strict=True)
    return [error / deviation if deviation else math.nan for error, deviation in pairs]


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
_METRIC = re.compile(
    r"(?:(?P<model>.+?)/)??(?:(?P<whose>participant_)?(?P<split>test|validation)|(?P<loss>train)"
    r"(?=_loss(?:/|$)))_(?!examples$)(?P<statistic>\w+)"
    r"(?:/(?P<mean>client|example)_mean)?(?:/(?P<group>.+?))??(?:/(?P<rounds>last10|best))?",
    re.DOTALL,
)


class Metric(NamedTuple):
    """A statistic at a test, or the training loss; its text is its name in the files of a run."""

    split: str  # test, validation, or train for the loss alone
    statistic: str
    mean: str = ""  # client or example, each of which counts alike; none for a column of clients
    group: str = ""  # of the clients, or what else there is of a mean, such as standard_error
    rounds: str = ""  # last10 or best, in the summary of a run
    model: str = ""  # another one than the first that the method serves
    whose: str = ""  # participant_ for the participants of the round

    @classmethod
    @functools.lru_cache(maxsize=1000)
    def read(cls, name: str) -> "Metric | None":
        """Returns the metric that has this name, or None if it is none."""
        match = _METRIC.fullmatch(name)
        if match is None:
            return None
        loss, *parts = match.group("loss", *cls._fields)
        return cls(*(part or "" for part in (parts[0] or loss, *parts[1:])))

    def __str__(self) -> str:
        measured = f"{self.whose}{self.split}_{self.statistic}"
        parts = self.model, measured, self.mean and f"{self.mean}_mean", self.group, self.rounds
        return "/".join(filter(None, parts))

    def of_statistic(self, name: str) -> "Metric":
        """Returns the same metric of another statistic; the training loss has no other."""
        return self if self.split == "train" else self._replace(statistic=name)


_OWN: dict[str, Shown] = {}


def learn(own: Mapping[str, Mapping[str, Any]]) -> None:
    """Registers users' own statistics, as the config.json of a run has them."""
    _OWN.update({name: Shown(name, **about) for name, about in own.items()})


def shown(name: str) -> Shown:
    """Returns the title and format of a statistic; the title of an unknown one is its name."""
    return CATALOGUE.get(name) or _OWN.get(name) or Shown(name, name.replace("_", " "))


def of_metric(name: str) -> Shown:
    """Returns the statistic of a metric or a column of clients; its name may be empty."""
    metric = Metric.read(name)
    if metric is None or metric.split == "train":
        return Shown("", "")
    return shown(metric.statistic)


def first_of(names: Iterable[str]) -> Shown:
    """Returns the first statistic of a run, by default accuracy.

    The names are the run's metrics, or the columns of its clients, in order.
    """
    every = [metric for metric in map(Metric.read, names) if metric is not None]
    kinds = [(split, "client") for split in ("test", "validation")], [("test", "")]
    first = (
        metric.statistic
        for kind in kinds
        for metric in every
        if (metric.split, metric.mean) in kind
        and not (metric.model or metric.whose or metric.group)
    )
    return shown(next(first, "accuracy"))
