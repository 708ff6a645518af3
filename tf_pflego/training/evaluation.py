"""The evaluation of all clients, drawn or not, as served now: loss (equation 1) and accuracy."""

from typing import NamedTuple

import numpy as np


class Evaluation(NamedTuple):
    """Mergeable statistics of every client under one of the models that are served."""

    train_loss: np.ndarray | None  # [I] float64, l_i, if it was requested
    train_examples: np.ndarray  # [I] int64, N_i
    test_hits: np.ndarray  # [I] int64
    test_examples: np.ndarray  # [I] int64

    def metrics(self) -> dict[str, float]:
        """Returns the loss of equation 1 and the two means of the test accuracy."""
        loss = {}
        if self.train_loss is not None:
            loss["train_loss"] = float(np.average(self.train_loss, weights=self.train_examples))
        return loss | accuracies("test_accuracy", self.test_hits, self.test_examples)


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


def accuracies(name: str, hits: np.ndarray, examples: np.ndarray) -> dict[str, float]:
    """Returns the accuracy as a mean over clients and as a mean over examples."""
    return {
        f"{name}/client_mean": float(np.mean(hits / examples)),
        f"{name}/example_mean": float(hits.sum() / examples.sum()),
    }
