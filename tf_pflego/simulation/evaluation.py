"""Loss (equation 1) and statistics of the clients' present models, also of non-participants.

With many clients, a sample of them is tested. It is sampled uniformly without replacement from the
run's seed, before the first round, and stays the same over the run. docs/metrics.md gives the
reason.

Source of the standard errors: Cochran, Sampling Techniques, 3rd edition, 1977: section 2.6 for the
finite population correction, section 2.11 for the ratio.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tf_pflego.core import seeds, statistic_names
from tf_pflego.core.statistics import Tallies, Tally, ratio
from tf_pflego.core.tasks import COUNTS, REGRESSION, Task
from tf_pflego.data.clients import ClientData
from tf_pflego.simulation.records import (
    BOOKKEEPING,
    CLIENTS_ABSENT,
    CLIENTS_LEFT_OUT,
    LAST_ROUNDS,
    STANDARD_ERROR,
)

_ROUNDED = 1e-12  # The mean of equal labels may differ from them by less than this part.


class Evaluation(NamedTuple):
    """The counts of n clients, all or a sample, for one model of each client."""

    tallies: Tallies  # by split and by name, the sums of n clients
    clients: np.ndarray | None = None  # [n] int64, the ids of a sample, ascending; None for all
    num_clients: int | None = None  # I, if there is a sample
    groups: Mapping[str, np.ndarray] = MappingProxyType({})  # [n] bool by name: who belongs to it
    own_metrics: Mapping[str, np.ndarray] = MappingProxyType({})  # [n] float64 by name

    @property
    def first(self) -> Tally:
        """The tally of the statistic that is shown: the task's first, on the test examples."""
        return next(iter(self.tallies["test"].values()))

    @property
    def test_hits(self) -> np.ndarray:
        """[n] int64, the test examples that each client's model classifies correctly."""
        return self.tallies["test"]["accuracy"].sums[:, 0].astype(np.int64)

    @property
    def test_examples(self) -> np.ndarray:
        """[n] int64, the test examples of each client."""
        return self.tallies["test"]["accuracy"].sums[:, 1].astype(np.int64)

    @property
    def train_loss(self) -> np.ndarray | None:
        """[n] float64, l_i, if it was requested."""
        return self.of_clients().get("train_loss")

    def of_clients(self) -> dict[str, np.ndarray]:
        """Returns [n] float64, the value of each client, by names such as `test_accuracy`."""
        return {
            f"{split}_{name}": tally.of_clients()
            for split, named in self.tallies.items()
            for name, tally in named.items()
        }

    def metrics(self) -> dict[str, float]:
        """Returns the metrics of all clients together.

        The training loss is a mean over all training examples, as in equation 1. Statistics on
        other splits have a mean over clients and a value for all examples, and each of the user's
        own measures has the mean over clients. Each mean comes with the mean over the
        clients of each group and over the others and, for a sample, standard errors. Clients for
        which a statistic is not defined do not count.
        """
        means: dict[str, float] = {}
        for split, named in self.tallies.items():
            for statistic, tally in named.items():
                name = f"{split}_{statistic}"
                if split == "train":
                    some = tally.sums[:, 1] > 0  # Clients on other machines may be away.
                    values, counts = tally.of_clients()[some], tally.sums[some, 1]
                    if some.any():
                        means[name] = float(np.average(values, weights=counts))
                else:
                    means |= self._means(name, tally.of_clients(), tally)
        for name, values in self.own_metrics.items():
            means |= self._means(name, values)
        return means

    def _means(self, name, values, tally=None):
        """Returns the mean of a statistic over clients and, of a tally, its value for all."""
        defined = ~np.isnan(values)
        if not defined.any():
            return {}
        means = {"client_mean": np.mean(values[defined])}
        if tally:
            means["example_mean"] = tally.of_all()
        for group, members in self.groups.items():
            for whose, some in ((group, members), (f"not_{group}", ~members)):
                if (some & defined).any():
                    means[f"client_mean/{whose}"] = np.mean(values[some & defined])
        if self.num_clients is not None:
            n = len(values)
            correction = np.sqrt((1 - n / self.num_clients) / n)
            means[f"client_mean/{STANDARD_ERROR}"] = correction * np.std(values[defined], ddof=1)
            if tally and tally.statistic.value is ratio:
                sums, counts = tally.sums.T
                spread = np.std(sums - tally.of_all() * counts, ddof=1) / np.mean(counts)
                means[f"example_mean/{STANDARD_ERROR}"] = correction * spread
        return {f"{name}/{mean}": float(value) for mean, value in means.items()}


def tallies(task: Task, sums: Mapping[str, Mapping[str, np.ndarray]]) -> Tallies:
    """Returns the tallies of an engine's counts, by split and by statistic."""
    return {
        split: {name: Tally(task.counted(split)[name], one) for name, one in named.items()}
        for split, named in sums.items()
    }


def sample_of_clients(seed: int, num_clients: int, size: int) -> np.ndarray | None:
    """Returns the ids of the `size` clients that are tested, [n] int64, ascending, None for all."""
    if not size:
        return None
    if not 2 <= size <= num_clients:
        raise ValueError(
            f"`num_eval_clients` must be 0 for all clients, or from 2 to {num_clients}, the number "
            f"of clients; got {size}. Correct `num_eval_clients`."
        )
    drawn = seeds.generator(seed, "evaluated clients").choice(num_clients, size, replace=False)
    return np.sort(drawn)


def label_scales(data: ClientData) -> dict[str, np.ndarray]:
    """Returns [I] `mean` and `deviation` of each client's labels, over all its examples.

    With several outputs, these are the mean and the root of the mean variance. The dictionary is
    empty if labels are no quantities and no counts, or are on other machines.
    """
    if data.is_elsewhere or data.task not in (REGRESSION, COUNTS):
        return {}
    splits, ids = data.splits.values(), np.arange(data.num_clients)
    owners = np.concatenate([np.repeat(ids, one.sizes) for one in splits])
    labels = np.concatenate([one.labels for one in splits]).astype(np.float64)
    counts = np.bincount(owners)

    def means(columns):
        return np.stack([np.bincount(owners, column) / counts for column in columns.T], axis=1)

    mean = means(labels)  # Then no client's digits are lost beside another's.
    deviation = np.sqrt(means(np.square(labels - mean[owners])).mean(axis=1))
    mean = mean.mean(axis=1)
    deviation[deviation <= _ROUNDED * np.abs(mean)] = 0.0
    return {"mean": mean, "deviation": deviation}


def metrics_of(evaluations: dict[str, Evaluation]) -> dict[str, float]:
    """Returns the metrics of all models that are served.

    The metrics of the first model have plain names. Those for another model are NAME/train_loss and
    the like.
    """
    metrics: dict[str, float] = {}
    for position, (name, evaluation) in enumerate(evaluations.items()):
        prefix = f"{name}/" if position else ""
        metrics |= {f"{prefix}{metric}": value for metric, value in evaluation.metrics().items()}
    return metrics


def summarize(records: list[dict[str, Any]]) -> dict[str, float]:
    """Returns the summary of a run.

    Returns:
      The last value of each metric, the mean of each statistic and each measure of the user's own
      over the last ten rounds (`/last10`), the best value of each statistic in any evaluated round
      (`/best`), the sums over all rounds of the bytes and of the participants that dropped out or
      were excluded as not finite, and the median of the rounds' seconds. The mean of standard
      errors over the last ten rounds is a bound of the standard error of the mean, since the rounds
      test the same clients. A best round has none.
    """
    summary = {
        "round": records[-1]["round"],
        "seconds_per_round/median": float(np.median([record["seconds"] for record in records])),
        "bytes_down": sum(record["bytes_down"] for record in records),
        "bytes_up": sum(record["bytes_up"] for record in records),
        "dropped": sum(record["dropped"] for record in records),
        "not_finite": sum(record["not_finite"] for record in records),
    }
    last = records[-LAST_ROUNDS:]
    for name in dict.fromkeys(name for record in last for name in record):
        if name in BOOKKEEPING or name in (CLIENTS_LEFT_OUT, CLIENTS_ABSENT):
            continue
        values = [record[name] for record in last if name in record]
        summary[name] = values[-1]
        statistic = statistic_names.of_metric(name)
        if statistic.name or "/client_mean" in name:
            # None stands for one that was not finite when it was written.
            summary[f"{name}/last10"] = float(np.mean(np.array(values, float)))
        if statistic.name and not name.endswith(STANDARD_ERROR):
            every = np.array([record[name] for record in records if name in record], float)
            better = np.fmax if statistic.higher_is_better else np.fmin
            summary[f"{name}/best"] = float(better.reduce(every))
    return summary
