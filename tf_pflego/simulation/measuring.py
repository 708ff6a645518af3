"""What clients predict as they would be served, and how good that is, also by a user's measures."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tf_pflego import engines
from tf_pflego.core import seeds
from tf_pflego.core.algorithm import Algorithm
from tf_pflego.core.nests import Structure
from tf_pflego.data.clients import ClientData
from tf_pflego.simulation.evaluation import Evaluation
from tf_pflego.simulation.records import ACCURACIES, METRIC_NAMES
from tf_pflego.system import values

# By name, (labels [n] int32, probabilities [n, K] float32) -> a number, of one client.
Metrics = Mapping[str, Callable[[np.ndarray, np.ndarray], float]]


class Measuring:
    """Measures the clients of one federation."""

    def __init__(self, algorithm: Algorithm, data: ClientData, engine: engines.Engine, seed: int):
        self._algorithm = algorithm
        self._data = data
        self._engine = engine
        self._seed = seed

    def _seeds(self, ids, round_number):
        identities = self._data.identities[ids]
        return seeds.client_seeds(self._seed, "evaluation", identities, round_number)

    def predict(
        self, server_state: Structure, round_number: int, ids: np.ndarray, split: str, name: str
    ) -> list[np.ndarray]:
        """Returns [n_i, K_i] for each of the clients `ids`; see `Simulation.predict`."""
        split = values.one_of("split", split, tuple(self._data.splits))
        client_seeds = self._seeds(ids, round_number)
        predicted = self._engine.predict(ids, client_seeds, split, name, server_state)
        num_outputs = map(self._algorithm.model.num_outputs, self._data.num_classes[ids])
        return [shares[:, :k] for shares, k in zip(predicted, num_outputs, strict=True)]

    def evaluate(
        self,
        server_state: Structure,
        round_number: int,
        train_loss: bool,
        sample: np.ndarray | None,
        metrics: Metrics | None,
    ) -> dict[str, Evaluation]:
        """Returns what `Simulation.evaluate_all` does, of the clients `sample` [n] or of all."""
        metrics = self._checked(metrics or {})
        ids = np.arange(self._data.num_clients) if sample is None else sample
        client_seeds = self._seeds(ids, round_number)
        counts = self._engine.evaluate(ids, client_seeds, train_loss, server_state)
        return {
            name: Evaluation(
                of_model,
                sample,
                None if sample is None else self._data.num_clients,
                self._data.groups_of(ids),
                self._measure(metrics, server_state, round_number, ids, name),
            )
            for name, of_model in counts.items()
        }

    def _measure(self, metrics, server_state, round_number, ids, name):
        """Returns {metric: [n] float64} of the test examples of the clients."""
        if not metrics:
            return {}
        columns = {metric: np.empty(len(ids)) for metric in metrics}
        predicted = self.predict(server_state, round_number, ids, "test", name)
        for row, (client, probabilities) in enumerate(zip(ids, predicted, strict=True)):
            _, labels = self._data.test.of(client)
            for metric, function in metrics.items():
                columns[metric][row] = _number(metric, client, function(labels, probabilities))
        return columns

    def _checked(self, metrics):
        """Returns the user's metrics, after a check of their names and functions."""
        values.instance("metrics", metrics, Mapping, "Give `{'name': function}`.")
        taken = METRIC_NAMES | set(self._algorithm.served) | set(self._data.client_groups)
        for name, function in metrics.items():
            if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
                must = "have names that are one word of letters, digits and _"
            elif name in taken or any(accuracy in f"{name}/" for accuracy in ACCURACIES):
                must = "have other names than what a run measures already"
            elif not callable(function):
                must = "be functions of labels and probabilities"
                name = f"{function!r} for {name}"
            else:
                continue
            raise ValueError(f"`metrics` must {must}; got {name!s:.80}. Correct `metrics`.")
        return metrics


def _number(metric: str, client: int, value: Any) -> float:
    """Returns what a user's function gave as a float."""
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(
            f"`metrics` {metric} must return a finite number for each client; got {value!r:.60} "
            f"for client {client}. Let it return a number also where it is not defined."
        )
    return number
