"""A client and all that belongs to what it is served: what an export writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Weights
from tf_pflego.data import client_names
from tf_pflego.data.model_inputs import copied_as_model_inputs
from tf_pflego.engines.tracing import Traced
from tf_pflego.models.personalization import Rule
from tf_pflego.models.split import SplitModel
from tf_pflego.simulation.client_models import (
    assemble,
    head_of_outputs,
    names_of_outputs,
    own_classes,
)
from tf_pflego.system import values

if TYPE_CHECKING:
    from tf_pflego.serving.personal_model import PersonalModel


@dataclasses.dataclass(frozen=True)
class ServedClient:
    """What one client is served with.

    Attributes:
      number: The client's id.
      model: The split model of the run.
      weights: Body and head.
      class_names: The names of its model's outputs.
      classes: [K] int32, the class of each row of its head; see `Client`.
      test_examples: [n, ...] as the data have them.
      test_labels: [n] int32.
      rule: How it learns on; see `Served.personalize`.
      predict: `model.predict`, traced.
      name: What the client is called; None if it has no name.
    """

    number: int
    model: SplitModel
    weights: Weights
    class_names: tuple[str, ...]
    classes: np.ndarray
    test_examples: np.ndarray
    test_labels: np.ndarray
    rule: Rule | None
    predict: Traced
    name: str | None = None

    def personal_model(self, one_by_one: bool = False) -> PersonalModel:
        """Returns the client's model as functions with signatures; see `PersonalModel`."""
        from tf_pflego.serving.personal_model import PersonalModel  # It starts TensorFlow.

        return PersonalModel(
            self.model,
            self.weights,
            self.class_names,
            self.classes,
            self.test_examples.dtype,
            self.rule,
            one_by_one,
        )

    def keras_model(self) -> tf.keras.Model:
        """Returns the client's model as `Simulation.client_model` does."""
        return assemble(
            self.model.keras_body(self.weights.theta),
            head_of_outputs(self.model, self.weights.head, self.classes, len(self.class_names)),
            self.model.example_shape,
            self.test_examples.dtype,
            self.class_names,
        )

    def probabilities(self) -> np.ndarray:
        """Returns [n, K] what the run predicts for the test examples."""
        count = len(self.class_names)
        examples = copied_as_model_inputs(tf.constant(self.test_examples))
        logits = self.predict(self.weights, examples, tf.constant(self.classes))
        return tf.nn.softmax(logits[:, :count]).numpy()


def refuse_other_than_simulation(simulation: Any) -> None:
    """Raises TypeError unless an object is a simulation."""
    from tf_pflego.simulation.simulation import Simulation  # It imports this package.

    values.instance("simulation", simulation, Simulation, "Make it with `build_simulation`.")


def served_clients(
    simulation: Any, clients: Iterable[int | str], name: str | None = None
) -> Iterator[ServedClient]:
    """Yields what clients of a simulation are served with now.

    Args:
      simulation: The `Simulation`.
      clients: The clients' ids or names.
      name: Which of the models that the algorithm serves; None for the first.

    Raises:
      ValueError: There is no such client or model, or the algorithm serves something else than
        body and head.
    """
    model, data = simulation.algorithm.model, simulation.data
    predict = traced_predict(model.predict)
    for client in clients:
        client = client_names.id_of(client, data.client_names, data.num_clients)
        weights = simulation.served_weights(client, name)
        served = simulation.algorithm.served[name or next(iter(simulation.algorithm.served))]
        if not isinstance(weights, Weights) or served.predict != model.predict:
            raise ValueError(
                "a model that is served must be a body and a head, to be exported; that of "
                f"{simulation.algorithm.name} is not. Use `served_weights` and its `predict`."
            )
        names, classes = names_of_outputs(model, data, client), own_classes(model, data, client)
        examples, labels = data.test.of(client)
        rule = served.personalize
        called = None if data.client_names is None else data.client_names[client]
        yield ServedClient(
            int(client), model, weights, names, classes, examples, labels, rule, predict, called
        )


def traced_predict(predict: Callable) -> Traced:
    """Returns `Served.predict`, traced once for any number of examples."""
    return Traced(predict, any_number=(1,))
