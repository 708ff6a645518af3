"""A client's model that predicts and learns further without this package, as functions.

The run uses the same functions, so an exported model predicts and learns like the run's client.
docs/serving.md lists the signatures.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Weights
from tf_pflego.core.tasks import MULTI_LABEL, REGRESSION
from tf_pflego.data.labels import NO_LABEL
from tf_pflego.data.model_inputs import as_model_inputs
from tf_pflego.data.tables import raw_columns
from tf_pflego.models.personalization import learning_on
from tf_pflego.models.split_model import SplitModel
from tf_pflego.simulation.client_models import EXAMPLES, ServedClient, lone_client


def learning_specs(model: SplitModel) -> list[tf.TensorSpec]:
    """Returns the specs of the labels, the steps and the rate of learning on."""
    has_classes = model.task.has_classes
    of_label = model.positions if has_classes else (model.num_classes,)
    dtype = tf.int32 if has_classes or model.task.labels == MULTI_LABEL else tf.float32
    return [
        tf.TensorSpec([None, *of_label], dtype, "labels"),
        tf.TensorSpec([], tf.int32, "steps"),
        tf.TensorSpec([], tf.float32, "learning_rate"),
    ]


class PersonalModel(tf.Module):
    """A client's body and head, which predict, and learn further by the rule of its method.

    With `one_by_one`, a body with loops takes one example after the other, as TFLite asks.
    """

    def __init__(self, client: ServedClient, one_by_one: bool = False):
        super().__init__("personal_model")
        self._model = client.model._to_be_served(one_by_one)
        self._names = tf.constant(client.class_names)
        self._rows, self._classes = len(client.class_names), client.classes
        self._rule, self._trained = client.rule, client.model._in_one_pass()
        moves_body = client.rule is None
        # Weights that do not change are constants, so that converters may quantise them.
        keep = tf.Variable if moves_body else tf.constant
        self._theta = [keep(np.asarray(leaf)) for leaf in client.weights.theta]
        self._head = tf.Variable(np.asarray(client.weights.head)[: self._rows], name="head")
        self._learnt = [*(self._theta if moves_body else []), self._head]
        self._inputs, self._examples_of = inputs_of(client)

    def signatures(self, learning: bool = True) -> dict[str, Callable]:
        """Returns the concrete functions by signature. Without `learning` it only predicts."""
        of_path = [tf.TensorSpec([], tf.string, "path")]
        functions: dict[str, tuple[Callable, list]] = {
            "class_names": (lambda: {"class_names": tf.identity(self._names)}, [])
        }
        if learning:
            functions |= {
                "personalize": (self._personalize, [*self._inputs, *learning_specs(self._model)]),
                "save": (self._save, of_path),
                "restore": (self._restore, of_path),
            }
        # Kept, since a loaded model finds its variables through what the module holds.
        self._functions = {
            name: tf.function(function, input_signature=specs, autograph=False)
            for name, (function, specs) in functions.items()
        }
        self.predict, serve = served_function(self._predictions, *self._inputs)
        return {"serve": serve} | {
            name: function.get_concrete_function() for name, function in self._functions.items()
        }

    def _predictions(self, *inputs):
        examples = self._examples_of(*inputs)
        logits = self._model.predict(self._weights(), examples, tf.constant(self._classes))
        task = self._model.task
        return {task.output: task.predicted(logits[..., : self._rows])}

    def _client(self, inputs, labels):
        """Returns the client with examples of the file and with labels, which are checked."""
        task, checks = self._model.task, []
        if task.labels != REGRESSION:
            least = tf.constant(NO_LABEL if self._model.positions else 0, labels.dtype)
            message = "labels must not be negative, but for -1 at positions without one"
            checks.append(tf.debugging.assert_greater_equal(labels, least, message))
        if labels.dtype == tf.int32:
            # A label that the client does not have would count as an error of all its classes.
            below = self._rows if task.has_classes else 2
            message = f"labels must be below {below}, the number of classes"
            checks.append(tf.debugging.assert_less(labels, below, message))
        if self._model.class_mask:
            classes_of_labels = tf.gather(tf.constant(self._classes), labels)
            message = "labels must be of classes that the client has"
            checks.append(tf.debugging.assert_non_negative(classes_of_labels, message))
        with tf.control_dependencies([check for check in checks if check is not None]):
            labels = tf.identity(labels)
        return lone_client(self._examples_of(*inputs), labels, tf.constant(self._classes))

    def _personalize(self, *arguments):
        *inputs, labels, steps, learning_rate = arguments
        client, start = self._client(inputs, labels), self._weights()
        if self._rule is None:
            end = learning_on(self._trained, None)(start, client, steps, learning_rate)
            end = _if_finite(end, start)
            before, after = (self._trained.loss(weights, client) for weights in (start, end))
            learnt = [*end.theta, end.head[: self._rows]]
        else:
            features = self._model.features(start.theta, client._replace(seed=None))
            client = client._replace(examples=features)
            head = _if_finite(self._rule(start.head, client, steps, learning_rate), start.head)
            before, after = (self._model.head_loss(h, client) for h in (start.head, head))
            learnt = [head[: self._rows]]
        with tf.control_dependencies([before]):
            assigned = [v.assign(new) for v, new in zip(self._learnt, learnt, strict=True)]
        with tf.control_dependencies([a.op if hasattr(a, "op") else a for a in assigned]):
            return {"loss_before": before, "loss_after": tf.identity(after)}

    def _weights(self):
        rows = self._model.num_classes - self._rows
        head = tf.pad(tf.convert_to_tensor(self._head), [(0, rows), (0, 0)])
        return Weights([tf.convert_to_tensor(leaf) for leaf in self._theta], head)

    def _save(self, path):
        names = [f"learnt_{k}" for k in range(len(self._learnt))]
        values = [variable.read_value() for variable in self._learnt]
        tf.raw_ops.Save(filename=path, tensor_names=names, data=values)
        return {"path": path}

    def _restore(self, path):
        for k, variable in enumerate(self._learnt):
            value: Any = tf.raw_ops.Restore(
                file_pattern=path, tensor_name=f"learnt_{k}", dt=tf.float32
            )
            variable.assign(tf.ensure_shape(value, variable.shape))
        return {"path": path}


def inputs_of(client: ServedClient) -> tuple[list[tf.TensorSpec], Callable[..., tf.Tensor]]:
    """Returns the specs of the inputs of a client's file, and the function to a model's examples.

    The inputs are examples as in the client's data, or the columns of a table.
    """
    if client.preprocessing is not None:
        to_examples = functools.partial(raw_columns.examples, client.preprocessing)
        return raw_columns.specs(client.preprocessing), to_examples
    shape, dtype = [None, *client.model.example_shape], tf.as_dtype(client.test_examples.dtype)
    return [tf.TensorSpec(shape, dtype, EXAMPLES)], _as_model_inputs


def _as_model_inputs(examples):
    """Returns examples in the form that a model takes (see `served_function`)."""
    return as_model_inputs(tf.cast(examples, tf.int32) if examples.dtype == tf.int64 else examples)


def served_function(function: Callable, examples: tf.TensorSpec, *others: tf.TensorSpec) -> tuple:
    """Returns a function, which a loaded model has as `predict`, and its concrete function.

    If the examples are int32, `predict` takes int64 as well, which NumPy makes of whole numbers.
    """
    served = tf.function(function, autograph=False)
    concrete = served.get_concrete_function(examples, *others)
    if examples.dtype == tf.int32:
        served.get_concrete_function(
            tf.TensorSpec(examples.shape, tf.int64, examples.name), *others
        )
    return served, concrete


def _if_finite(new, old):
    """Returns the new weights if all of them are finite, else the old ones."""
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(w)) for w in tf.nest.flatten(new)])
    return tf.nest.map_structure(lambda n, o: tf.where(finite, n, o), new, old)
