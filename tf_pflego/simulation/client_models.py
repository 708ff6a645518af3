"""The model that serves a client: a body and a head, and the Keras model that they make.

Every method serves a body and a head: `Served.weights` and `Served.fine_tune` return theta and a
head, and `SplitModel.predict` makes logits from them. The Keras model is a copy of the user's body
with this theta, and a dense layer with this head.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Algorithm, Client, Weights
from tf_pflego.core.nests import Structure
from tf_pflego.data.clients import ClientData
from tf_pflego.data.features import raw_test
from tf_pflego.data.model_inputs import copied_as_model_inputs
from tf_pflego.data.tables import raw_columns
from tf_pflego.models.divided import whole
from tf_pflego.models.heads.head import ABSENT_LOGIT
from tf_pflego.models.personalization import Rule
from tf_pflego.models.split_model import SplitModel
from tf_pflego.system import values

if TYPE_CHECKING:
    from tf_pflego.data.tables.preprocessing import Preprocessing  # It takes pyarrow.

# Names of layers of a client's model.
LOGITS, CLASS_NAMES = "logits", "class_names"
EXAMPLES = "examples"  # The name of a model's input, where it is not one for each column.

# How many test examples a client's model is compared on with the run, and by how much their logits
# may differ in relation to the largest: Keras adds up in another order, in float32.
_COMPARED = 8
_TOLERANCE = 1e-3


@dataclasses.dataclass(frozen=True)
class ServedClient:
    """The body and the head that serve one client."""

    number: int  # its id
    name: str | None  # what it is called, or None if it has no name
    model: SplitModel  # that of the run, or the one that its method extends it to
    weights: Weights
    # The names of its model's outputs. Classes that the client does not have, where all clients
    # share a classifier, are called `absent_K`.
    class_names: tuple[str, ...]
    classes: np.ndarray  # [K] int32, the class of each row of its head; see `Client`
    test_examples: np.ndarray  # [n, ...] as the data have them
    test_labels: np.ndarray  # as the task has them; [n] int32 of classes
    rule: Rule | None  # how it learns on; see `Served.personalize`
    predict: Callable[..., tf.Tensor]  # `model.predict`, or the same traced
    preprocessing: Preprocessing | None = None  # by which its files take the columns of a table

    def logits(self, examples: np.ndarray) -> tf.Tensor:
        """Returns the run's logits [n, outputs] for examples of the data.

        Logits of sequences are [n, T, outputs].
        """
        inputs = copied_as_model_inputs(tf.constant(examples))
        logits = self.predict(self.weights, inputs, tf.constant(self.classes))
        return logits[..., : len(self.class_names)]

    def predictions(self) -> np.ndarray:
        """Returns [n, outputs], the run's predictions for the test examples."""
        return self.model.task.predicted(self.logits(self.test_examples)).numpy()

    def raw(self, examples: np.ndarray) -> dict[str, tf.Tensor]:
        """Returns the inputs of the client's file, by name, for examples of the data."""
        if self.preprocessing is None:
            return {EXAMPLES: tf.constant(examples)}
        return raw_columns.raw(self.preprocessing, examples)

    def head(self) -> np.ndarray:
        """Returns [outputs, M + 1], a head that predicts without the client's classes as an input.

        If classes are masked, the rows of absent classes are 0, and their biases exclude them.
        """
        rows = len(self.class_names)
        head = np.array(self.weights.head[:rows])
        if self.model.class_mask:
            head[self.classes[:rows] < 0] = [0] * self.model.num_features + [ABSENT_LOGIT]
        return head

    def keras_model(self) -> tf.keras.Model:
        """Returns the model from raw examples to predictions, of standard layers and the body."""
        layers, head, stored_as = tf.keras.layers, self.head(), self.test_examples.dtype
        task = self.model.task
        inputs: Any = tf.keras.Input(self.model.example_shape, dtype=stored_as.name, name=EXAMPLES)
        outputs = inputs
        if self.preprocessing is not None:
            inputs, outputs = raw_columns.keras_inputs(self.preprocessing)
        if stored_as == np.uint8:  # Images, which the body sees as floats in [0, 1].
            outputs = layers.Rescaling(1 / 255, dtype="float32", name="scaled")(outputs)
        features = self.model.body.clone(self.weights.theta)(outputs)
        dense = layers.Dense(len(self.class_names), dtype="float32", name=LOGITS)
        logits = dense(features)
        dense.set_weights([head[:, :-1].T, head[:, -1]])
        name = "standardized" if task.mean else task.output
        predicted = layers.Activation(task.keras_activation(), dtype="float32", name=name)(logits)
        if task.mean:
            deviation, mean = map(list, (task.deviation, task.mean))
            units = layers.Rescaling(deviation, mean, dtype="float32", name=task.output)
            predicted = units(predicted)
        model = tf.keras.Model(inputs, predicted, name="client_model")
        # Keras 2 saves a layer that is an attribute of a model with it; Keras 3 does not. A
        # vocabulary that is given later would be among the model's weights.
        model.class_lookup = layers.StringLookup(
            vocabulary=list(self.class_names), num_oov_indices=0, invert=True, name=CLASS_NAMES
        )
        forget_eager_initializers()
        if self.preprocessing is not None:
            columns = functools.partial(raw_columns.predicted, self.preprocessing)
            model.predict = functools.partial(columns, model.predict)
        model.class_names = self.class_names
        return model


def served_client(
    algorithm: Algorithm,
    data: ClientData,
    client: int,
    weights: Structure,
    name: str,
    predict: Callable[..., tf.Tensor],
) -> ServedClient:
    """Returns the body and the head that serve a client, after a check.

    `name` is one of the algorithm's served models. The client predicts with `weights`.
    """
    model, served = split_of_served(algorithm, name), algorithm.served[name]
    if model is None or not isinstance(weights, Weights):
        got = "predicts in a way of its own" if model is None else type(weights).__name__
        raise ValueError(
            "the model of a client must be `Weights` for `SplitModel.predict` of the algorithm's "
            f"model, to leave the run; {name} of {algorithm.name}: {got}. Use `served_weights` "
            "and the algorithm's `predict`."
        )
    class_names, raw_model = data.class_names_of(client), whole(model)
    outputs = model.outputs_of(data.num_classes[client])
    return ServedClient(
        client,
        None if data.client_names is None else data.client_names[client],
        raw_model,
        weights,
        class_names + tuple(f"absent_{k}" for k in range(len(class_names), outputs)),
        classes_of(algorithm, data, client),
        *raw_test(data).of(client),
        served.personalize,
        predict if model is raw_model else raw_model.predict,
        data.preprocessing,
    )


def checked_model(served: ServedClient) -> tf.keras.Model:
    """Returns the client's Keras model, after a check that it computes the same as the run.

    It would not if the user has changed layers of the body since the run was made from it.
    """
    model = served.keras_model()
    raw = served.test_examples[:_COMPARED]
    expected = served.logits(raw).numpy()
    got = logits_model(model)(keras_inputs(model, served.raw(raw)), training=False).numpy()
    absent = expected < ABSENT_LOGIT / 2
    if np.array_equal(absent, got < ABSENT_LOGIT / 2):
        # Beside logits as large as these, differences of the others would not count.
        expected, got = expected[~absent], got[~absent]
    largest = max(1.0, np.abs(expected).max())
    if not np.allclose(got, expected, rtol=0, atol=_TOLERANCE * largest, equal_nan=True):
        raise ValueError(
            "the body must be as it was when the run was made from it; its copy gives client "
            f"{served.number} logits that differ by {np.abs(got - expected).max():.2g}. Do not "
            "change the Keras model, and let each layer's `get_config` return all its arguments."
        )
    return model


def served_name(algorithm: Algorithm, name: str | None) -> str:
    """Returns the name of a model that an algorithm serves, of the first if `name` is None."""
    if name is None:
        return next(iter(algorithm.served))
    if not isinstance(name, str) or name not in algorithm.served:
        raise ValueError(
            f"`served_model` must be one of {', '.join(algorithm.served)}, the models that "
            f"{algorithm.name} serves; got {values.shown(name)}. Choose one of them."
        )
    return name


def split_model(algorithm: Algorithm) -> SplitModel:
    """Returns an algorithm's model, typed in `core` only as a protocol."""
    return cast(SplitModel, algorithm.model)


def split_of_served(algorithm: Algorithm, name: str) -> SplitModel | None:
    """Returns the `SplitModel` of a served model's predictions, or None."""
    predict = algorithm.served[name].predict
    model = getattr(predict, "__self__", None)
    return model if isinstance(model, SplitModel) and predict == model.predict else None


def classes_of(algorithm: Algorithm, data: ClientData, client: int) -> np.ndarray:
    """Returns [K] int32, the class of each row of a client's head (see `Client`)."""
    return data.head_classes([client], algorithm.model.num_classes)[0]


def lone_client(examples: tf.Tensor, labels: tf.Tensor, classes: tf.Tensor) -> Client:
    """Returns a client that learns outside of a federation, with weight 1."""
    count, weight = tf.shape(labels)[0], tf.constant(1.0)
    return Client(examples, labels, count, classes, weight, tf.zeros([2], tf.int32))


def forget_eager_initializers() -> None:
    """Removes from the default graph the initializer of a table that is made eagerly.

    It is None, and brings up a warning whenever a graph is exported later.
    """
    initializers = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS)
    initializers[:] = [operation for operation in initializers if operation is not None]


def keras_inputs(model: tf.keras.Model, raw: dict[str, tf.Tensor]) -> Any:
    """Returns the inputs of a client's file in the form that its Keras model takes."""
    return raw if isinstance(model.input, dict) else raw[EXAMPLES]


def logits_model(model: tf.keras.Model) -> tf.keras.Model:
    """Returns the part of a client's model, built or loaded, that ends in logits."""
    return tf.keras.Model(model.input, model.get_layer(LOGITS).output)
