"""The evaluation of clients, drawn or not, as served now: loss (equation 1) and accuracy.

With many clients, a sample of them is tested. It is drawn uniformly without replacement from the
run's seed, before the first round, and stays the same over the run:

* Over the draw of the sample, the mean accuracy of its clients is an unbiased estimate of that of
  all clients, in every round. The mean over examples and the loss are ratios of two such means,
  with a bias of order 1 / n.
* Rounds, and methods with the same seed, are compared on the same clients. A difference is
  estimated better than either value: what makes some clients harder than others cancels. With a new
  sample for every round, a curve would show the draws, and its best round would be the luckiest.

In exchange, the mean over several rounds has the error of one sample: it does not average out.

Source of the standard errors: Cochran, Sampling Techniques, 3rd edition, 1977: section 2.6 for the
finite population correction, section 2.11 for the ratio.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from tf_pflego.core import seeds
from tf_pflego.simulation.records import STANDARD_ERROR


class Evaluation(NamedTuple):
    """Mergeable statistics of n clients, all or a sample, under one of the models served."""

    train_loss: np.ndarray | None  # [n] float64, l_i, if it was requested
    train_examples: np.ndarray  # [n] int64, N_i
    test_hits: np.ndarray  # [n] int64
    test_examples: np.ndarray  # [n] int64
    clients: np.ndarray | None = None  # [n] int64, the ids of a sample, ascending; None for all
    num_clients: int | None = None  # I, if there is a sample
    groups: Mapping[str, np.ndarray] | None = None  # [n] bool by name, who belongs to each
    validation_hits: np.ndarray | None = None  # [n] int64, if there are validation examples
    validation_examples: np.ndarray | None = None  # [n] int64
    own_metrics: Mapping[str, np.ndarray] = MappingProxyType({})  # [n] float64 by name

    def metrics(self) -> dict[str, float]:
        """Returns the loss of equation 1, the two means of the test accuracy and, if there are
        validation examples, of the validation accuracy, and the mean over clients of each measure
        of the user's own: with each, the mean over the clients of each group and over the others
        and, of a sample, standard errors.
        """
        loss = {}
        if self.train_loss is not None:
            loss["train_loss"] = float(np.average(self.train_loss, weights=self.train_examples))
        counts = {"test_accuracy": (self.test_hits, self.test_examples)}
        if self.validation_hits is not None and self.validation_examples is not None:
            counts["validation_accuracy"] = (self.validation_hits, self.validation_examples)
        found = dict(loss)
        for name, (hits, examples) in counts.items():
            found |= accuracies(name, hits, examples, self.groups or {})
            if self.num_clients is not None:
                found |= _standard_errors(name, hits, examples, self.num_clients)
        for name, values in self.own_metrics.items():
            found |= client_means(name, values, self.groups or {})
            if self.num_clients is not None:
                error = _correction(len(values), self.num_clients) * np.std(values, ddof=1)
                found[f"{name}/client_mean/{STANDARD_ERROR}"] = float(error)
        return found


def sample_of_clients(seed: int, num_clients: int, size: int) -> np.ndarray | None:
    """Returns the ids of the clients that are tested, [n] int64, ascending; None for all.

    Args:
      seed: The seed of the run.
      num_clients: I.
      size: n; 0 for all.

    Raises:
      ValueError: There are not so many clients, or too few are asked for.
    """
    if not size:
        return None
    if not 2 <= size <= num_clients:
        raise ValueError(
            f"`eval_clients` must be 0 for all clients, or from 2 to {num_clients}, the number of "
            f"clients; got {size}. Correct `eval_clients`."
        )
    drawn = seeds.generator(seed, "evaluated clients").choice(num_clients, size, replace=False)
    return np.sort(drawn)


def metrics_of(evaluations: dict[str, Evaluation]) -> dict[str, float]:
    """Returns the metrics of all models that are served.

    The metrics of the first model have plain names; those of another model are NAME/train_loss and
    so on.
    """
    metrics: dict[str, float] = {}
    for position, (name, evaluation) in enumerate(evaluations.items()):
        prefix = f"{name}/" if position else ""
        metrics |= {f"{prefix}{metric}": value for metric, value in evaluation.metrics().items()}
    return metrics


def accuracies(
    name: str, hits: np.ndarray, examples: np.ndarray, groups: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Returns the accuracy of n clients as a mean over clients and as a mean over examples.

    Args:
      name: What the accuracy is called.
      hits: [n] of each client.
      examples: [n] of each client.
      groups: [n] bool by name. Of each group there are also the mean over its clients and, as
        `not_` and its name, over the others; of nobody there is none.
    """
    mean, *of_groups = client_means(name, hits / examples, groups).items()
    return dict([mean, (f"{name}/example_mean", float(hits.sum() / examples.sum())), *of_groups])


def client_means(
    name: str, values: np.ndarray, groups: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Returns the mean over n clients, and over those of groups; see `accuracies`."""
    means = {f"{name}/client_mean": float(np.mean(values))}
    for group, members in groups.items():
        for whose, own in ((group, values[members]), (f"not_{group}", values[~members])):
            if len(own):
                means[f"{name}/client_mean/{whose}"] = float(np.mean(own))
    return means


def _correction(count, num_clients):
    """Returns by what the deviation of `count` values is multiplied for the error of their mean."""
    return np.sqrt((1 - count / num_clients) / count)


def _standard_errors(name, hits, examples, num_clients):
    """Returns those of the two means of an accuracy of a sample."""
    correction = _correction(len(hits), num_clients)
    shares = hits / examples
    residuals = hits - hits.sum() / examples.sum() * examples
    spreads = {
        "client": np.std(shares, ddof=1),
        "example": np.std(residuals, ddof=1) / np.mean(examples),
    }
    return {
        f"{name}/{mean}_mean/{STANDARD_ERROR}": float(correction * spread)
        for mean, spread in spreads.items()
    }
