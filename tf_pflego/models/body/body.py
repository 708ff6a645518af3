"""A Keras model as a pure function of its trainable weights and of the examples.

The model is traced once, together with the gradient that TensorFlow gives it. In the traced graph
every weight becomes a constant, and the constants of the trainable weights, theta, become
arguments. What remains has no variable in it: it serves inside tf.function and in TFF computations,
for Keras 2 and 3 alike, whatever the model does inside loops and nested functions.

Two limits: only first derivatives by theta are right for every model, and XLA does not compile a
body that has a loop in it, as recurrent layers have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import specs_of
from tf_pflego.models.body import cloning, graphs, normalization, pooling, rectifiers
from tf_pflego.models.body.one_example import OneExample
from tf_pflego.system import values

# Stateful operations that leave a body a function of nothing but its weights and the examples.
_HARMLESS_STATEFUL_OPS = frozenset(
    {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "Assert"}
    | {"While", "If", "Case", "StatefulPartitionedCall"}
)
# Parts of the names of all operations that draw random numbers; many are not marked as stateful.
_RANDOM_OPS = ("Random", "Multinomial", "TruncatedNormal", "Shuffle", "Rng")


class Body:
    """The function phi(x; theta) that a Keras model computes, with its gradient by theta.

    Weights of the model that are not trainable are constants of the function, with the values that
    they have now. The model itself is left as it is.

    Args:
      model: A built Keras model from one batch of examples, [n, ...] floats or integers, to
        features, [n, M] float32. It is called with training=True, and must compute the same in
        training and in inference. Losses that it adds, such as those of regularizers, are no part
        of the function.
      example_shape: Shape of one example, for a model that has no Input or leaves sizes open.

    Attributes:
      initial_theta: The values of the model's trainable weights, a list of float32 arrays.
      theta_names: Their names.
      num_features: M.
      example_shape: Shape of one example.
      example_dtype: tf.int32 if the model's Input takes integers, else tf.float32.
      bytes_per_example: Size of all that the model computes from one example. Of loops and nested
        functions, only what enters and leaves them is counted.
      saved_specs: For each tensor that `forward` saves, its `tf.TensorSpec`; sizes that depend on
        the number of examples are unknown.
      has_loops: Whether there are loops among what it computes, which save variants.

    Raises:
      TypeError: `model` is not a Keras model.
      ValueError: The model cannot serve as a body; the message says why, and what to do.
    """

    def __init__(self, model: tf.keras.Model, example_shape: Sequence[int] | None = None):
        example = _example_spec(model, example_shape)
        self.example_shape, self.example_dtype = tuple(example.shape[1:]), example.dtype
        weights = model.trainable_variables
        self._cloning = cloning.Cloning(model, example)
        self.theta_names = tuple(getattr(weight, "path", weight.name) for weight in weights)
        _check_weights(weights, self.theta_names)
        _check_finite(model)
        self.initial_theta = [np.array(weight) for weight in weights]
        traced = _trace(model, example)
        _check(traced, model, self.theta_names)
        self.num_features = int(traced.features.shape[-1])
        self._graphs = _without_variables(traced, weights)
        self.bytes_per_example = traced.bytes_per_example
        self._functions = _Functions.of(self)
        passed = self._functions.forward.get_concrete_function(
            specs_of(self.initial_theta), example
        )
        self.saved_specs = specs_of(passed.structured_outputs[1])
        self.has_loops = any(spec.dtype == tf.variant for spec in self.saved_specs)
        self._of_one = None
        if self.has_loops:
            self._of_one = OneExample.of(model, [_tf_variable(w) for w in weights], example)

    def __getstate__(self):
        """What another process needs; it traces the functions anew."""
        return {name: value for name, value in vars(self).items() if name != "_functions"}

    def __setstate__(self, state):
        vars(self).update(state)
        self._functions = _Functions.of(self)

    def __call__(self, theta: Sequence[tf.Tensor], examples: tf.Tensor) -> tf.Tensor:
        """Returns phi(x; theta), [n, M] float32, differentiable by theta.

        Args:
          theta: Tensors like `initial_theta`.
          examples: [n, *example_shape] of dtype `example_dtype`.

        Raises:
          TypeError: The examples have another dtype.
        """
        examples = tf.convert_to_tensor(examples)
        if examples.dtype != self.example_dtype:
            raise TypeError(
                f"`examples` must be {self.example_dtype.name}, which the body takes; got "
                f"{examples.dtype.name}. Cast them first."
            )
        return self._functions.features(list(theta), examples)

    def served(
        self, theta: Sequence[tf.Tensor], examples: tf.Tensor, one_by_one: bool
    ) -> tf.Tensor:
        """Returns phi(x; theta), [n, M] float32, as files hold it: without its gradient.

        Args:
          theta: Tensors like `initial_theta`.
          examples: [n, *example_shape].
          one_by_one: Whether a body with loops takes one example after the other, as TFLite asks.
        """
        if not one_by_one or self._of_one is None:
            return self._forward(theta, examples)[0]
        of_one = self._of_one
        spec = tf.TensorSpec([self.num_features])
        return tf.map_fn(lambda x: of_one(theta, x), examples, fn_output_signature=spec)

    def forward(
        self, theta: Sequence[tf.Tensor], examples: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns phi(x; theta), [n, M] float32, and what `backward` needs of this pass."""
        return self._functions.forward(list(theta), examples)

    def backward(
        self,
        theta: Sequence[tf.Tensor],
        examples: tf.Tensor,
        saved: Sequence[tf.Tensor],
        features_gradient: tf.Tensor,
    ) -> list[tf.Tensor]:
        """Returns the gradient by theta of a scalar in phi.

        Args:
          theta: What `forward` was given.
          examples: The same.
          saved: What it has saved.
          features_gradient: The gradient of the scalar by phi, [n, M].
        """
        return self._functions.backward(list(theta), examples, list(saved), features_gradient)

    def clone(self, theta: Sequence[Any]) -> tf.keras.Model:
        """Returns a Keras model of its own that computes phi(x; theta).

        It is made of layers as the body's, which is left as it is.

        Args:
          theta: Arrays or tensors like `initial_theta`.

        Raises:
          ValueError: The body cannot be copied; the message says why, and what to do.
        """
        return self._cloning(theta)

    def refuse_lambda_layers(self, what: str) -> None:
        """Raises ValueError if the model has layers that hold code; `what` would have them."""
        self._cloning.refuse_lambda_layers(what)

    def _forward(self, theta, examples):
        parts = self._graphs
        arguments = {parts.examples: examples, **dict(zip(parts.theta, theta, strict=True))}
        features, *saved = graphs.call(parts.forward, arguments, [parts.features, *parts.saved])
        return tf.ensure_shape(features, [examples.shape[0], self.num_features]), saved

    def _backward(self, theta, examples, saved, features_gradient):
        parts = self._graphs
        given = {parts.examples: examples, parts.features_gradient: features_gradient}
        given.update(zip(parts.theta, theta, strict=True))
        given.update(zip(parts.saved, saved, strict=True))
        gradient = graphs.call(parts.backward, given, parts.gradient)
        return [tf.ensure_shape(g, w.shape) for g, w in zip(gradient, theta, strict=True)]

    def _differentiable(self, theta, examples):

        @tf.custom_gradient
        def features(*theta):
            features, saved = self._forward(theta, examples)

            def pull_back(features_gradient):
                # The gradient may be built in another graph than the features were.
                given = (theta, examples, saved, features_gradient)
                return self._backward(*tf.nest.map_structure(tf.identity, given))

            return features, pull_back

        return features(*theta)


class _Functions(NamedTuple):
    """What a body computes, as functions that TensorFlow traces where it needs them."""

    features: Any
    forward: Any
    backward: Any

    @classmethod
    def of(cls, body):
        """Returns those of a body."""
        traced = (body._differentiable, body._forward, body._backward)
        return cls(*(tf.function(function, autograph=False) for function in traced))


class _Traced(NamedTuple):
    """A model's features and their gradient by its trainable weights, traced."""

    function: Any  # ConcreteFunction
    features: Any  # what the model returned
    features_gradient: str | None  # name of the node that takes their gradient, if they are vectors
    gradient: list[tf.Tensor | None]  # of each weight; None if the features do not depend on it
    bytes_per_example: int


class _ForwardAndBackward(NamedTuple):
    """Two GraphDefs, and the names of the tensors that go in and out."""

    forward: Any  # from examples and theta to the features and what is saved
    backward: Any  # from all these and the gradient of the features to the gradient of theta
    examples: str
    theta: list[str]
    features: str
    features_gradient: str
    saved: list[str]
    gradient: list[str]


def _example_spec(model, example_shape):
    """Returns the tf.TensorSpec of a batch of examples."""
    if not (callable(model) and hasattr(type(model), "trainable_variables")):
        raise TypeError(f"`body` must be a Keras model; got {values.shown(model)}.")
    if not model.built:
        raise ValueError(
            "`body` has not made its weights yet. Start it with an Input, or call it once on a "
            "batch of examples, such as tf.zeros([1, *example_shape])."
        )
    inputs = getattr(model, "inputs", None)  # A subclassed model has none.
    if inputs and (len(inputs) > 1 or isinstance(getattr(model, "input", None), dict)):
        raise ValueError(
            f"`body` must take one tensor of examples; it takes {inputs}. Concatenate its inputs "
            "to one tensor, and let the body slice it."
        )
    dtype = tf.as_dtype(inputs[0].dtype) if inputs else tf.float32
    if not (dtype.is_integer or dtype.is_floating):
        raise ValueError(
            f"`body` must take floats or integers; it takes {dtype.name}. Turn the examples into "
            "numbers when the clients' data is made."
        )
    shape = inputs[0].shape[1:] if inputs and example_shape is None else example_shape
    if shape is None or None in tuple(shape):
        known = "" if shape is None else f"; it says {tuple(shape)}"
        raise ValueError(
            f"`body` must say which shape an example has{known}. Give `example_shape`.",
        )
    return tf.TensorSpec([None, *map(int, shape)], tf.int32 if dtype.is_integer else tf.float32)


def _check_weights(weights, names):
    if not names:
        raise ValueError(
            "`body` has no trainable weights, so there is nothing to share. Set `trainable = True` "
            "on layers that have weights, or add such a layer."
        )
    for weight, name in zip(weights, names, strict=True):
        dtype = tf.as_dtype(weight.dtype)
        if dtype != tf.float32:
            raise ValueError(
                f"`body` must have float32 weights; {name} is {dtype.name}. Build its layers with "
                'dtype="float32", which is the default.'
            )


def _check_finite(model):
    for weight in model.weights:
        if tf.as_dtype(weight.dtype).is_floating and not np.isfinite(np.array(weight)).all():
            raise ValueError(
                "`body` must have finite weights; "
                f"{getattr(weight, 'path', weight.name)} has infinite numbers or NaN. Load or "
                "initialise them again; if training made them so, lower its learning rate."
            )


def _trace(model, example) -> _Traced:
    weights = [_tf_variable(weight) for weight in model.trainable_variables]
    noted: dict[str, Any] = {"features_gradient": None}

    @tf.function
    def features_and_gradient(examples):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            features = model(examples, training=True)
        noted["features"] = features
        noted["bytes_per_example"] = _bytes_per_example(tf.compat.v1.get_default_graph())
        gradient = [None] * len(weights)
        if _is_feature_batch(features):
            features_gradient = tf.compat.v1.placeholder(tf.float32, features.shape)
            gradient = tape.gradient(features, weights, features_gradient)
            noted["features_gradient"] = features_gradient.op.name
        return features, [g if g is None else tf.convert_to_tensor(g) for g in gradient]

    try:
        function = features_and_gradient.get_concrete_function(example)
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        raise ValueError(
            f"`body` cannot be called with training=True on {example.dtype.name} examples of shape "
            f"{tuple(example.shape[1:])}. If it takes others, put an Input that says so before it: "
            "tf.keras.Sequential([tf.keras.Input(shape, dtype=dtype), body]). "
            f"TensorFlow says: {' '.join(str(error).split())}"
        ) from error
    return _Traced(function, gradient=function.structured_outputs[1], **noted)


def _is_feature_batch(features):
    return (
        isinstance(features, tf.Tensor)
        and features.dtype == tf.float32
        and features.shape.rank == 2
        and features.shape[1] is not None
    )


def _bytes_per_example(graph):
    """Returns the bytes that an example takes in all tensors with one unknown size, which is n."""
    total = 0
    for tensor in (tensor for op in graph.get_operations() for tensor in op.outputs):
        sizes = tensor.shape.as_list() if tensor.shape.rank else []
        if sizes.count(None) == 1:
            total += math.prod(size for size in sizes if size is not None) * tensor.dtype.size
    return total


def _check(traced, model, names):
    """Raises ValueError unless what was traced is a function of theta and examples to [n, M]."""
    nodes = list(graphs.nodes_and_called(traced.function.graph.as_graph_def()))
    for node in nodes:
        if any(part in node.op for part in _RANDOM_OPS):
            raise ValueError(
                "`body` must compute the same in training and in inference; in training it draws "
                f"random numbers ({node.op}, {node.name}). Leave out layers such as dropout and "
                "noise. If they are part of a frozen backbone, call the backbone with "
                "training=False in the `call` of a layer of your own."
            )
    for node in nodes:
        if "Assign" in node.op or node.op.startswith("ResourceScatter"):
            raise ValueError(
                "`body` must not change its variables; in training it does, as batch normalisation "
                f"does with its statistics ({node.op}, {node.name}). Set `trainable = False` on "
                "that layer: batch normalisation then uses the statistics that it has. Or use "
                "LayerNormalization or GroupNormalization."
            )
    for node in nodes:
        definition = graphs.definition_of(node.op)  # None if it is the name of a function.
        if definition and definition.is_stateful and node.op not in _HARMLESS_STATEFUL_OPS:
            raise ValueError(
                "`body` must be a function of its weights and the examples alone; it has an "
                f"operation with a state or an effect of its own ({node.op}, {node.name}). Leave "
                "it out, or do what it does before the body."
            )
    owned = {id(_tf_variable(variable).handle) for variable in model.variables}
    for variable in traced.function.graph.variables:
        if variable.trainable and id(variable.handle) not in owned:
            raise ValueError(
                f"`body` must own its weights; it reads {variable.name}, which is not among its "
                "variables. Make it with `add_weight`, or keep the layer that has it as an "
                "attribute."
            )
    half = {tf.float16.as_datatype_enum, tf.bfloat16.as_datatype_enum}
    if any(half & set(_types(node)) for node in nodes):
        raise ValueError(
            "`body` must compute in float32; some of it computes in half precision. Build it under "
            'tf.keras.mixed_precision.set_global_policy("float32").'
        )
    if not _is_feature_batch(traced.features):
        raise ValueError(
            "`body` must end in one feature vector per example, [n, M] float32; got "
            f"{traced.features}. End it with Flatten or with pooling."
        )
    unused = [name for name, g in zip(names, traced.gradient, strict=True) if g is None]
    if unused:
        raise ValueError(
            "`body` has trainable weights that no gradient of its features reaches: "
            f"{', '.join(unused)}. Remove the layers that have them, or set `trainable = False` on "
            "these layers."
        )


def _types(node):
    """Returns the numbers of all dtypes that the attributes of a node name."""
    return [t for value in node.attr.values() for t in (value.type, *value.list.type)]


def _without_variables(traced, weights) -> _ForwardAndBackward:
    graph_def = graphs.freeze(traced.function)
    rectifiers.keep_nan(graph_def)
    _check_last_operation(graph_def, traced)
    captured = {id(source): inside.op.name for source, inside in traced.function.graph.captures}
    theta = [captured[id(_tf_variable(weight).handle)] for weight in weights]
    examples = traced.function.inputs[0].op.name
    features, *gradient = [output.name for output in traced.function.outputs]
    given = {examples, *theta}
    forward = graphs.ancestors(graph_def, [features], given)
    normalization.replace_fused(graph_def)
    pooling.replace_gradients(graph_def)
    graphs.register_functions(graph_def)
    # Constants such as shapes and axes stand in both graphs, so that both know them; weights don't.
    repeated = {node.name for node in graph_def.node if node.op == "Const"} - set(captured.values())
    computed = forward - repeated
    backward = graphs.ancestors(graph_def, gradient, given | computed | {traced.features_gradient})
    saved = {
        graphs.full_name(source)
        for node in graph_def.node
        if node.name in backward
        for source in graphs.data_inputs(node)
        if graphs.node_of(source) in computed
    }
    return _ForwardAndBackward(
        forward=graphs.part(graph_def, forward),
        backward=graphs.part(graph_def, backward),
        examples=f"{examples}:0",
        theta=[f"{name}:0" for name in theta],
        features=features,
        features_gradient=f"{traced.features_gradient}:0",
        saved=sorted(saved),
        gradient=gradient,
    )


def _check_last_operation(graph_def, traced):
    nodes = {node.name: node for node in graph_def.node}
    last = nodes[traced.function.outputs[0].op.name]
    while last.op == "Identity":
        last = nodes[graphs.node_of(last.input[0])]
    # One sigmoid is a classifier of two classes; a layer of them may be features.
    if last.op == "Softmax" or (last.op == "Sigmoid" and traced.features.shape[1] == 1):
        raise ValueError(
            f"`body` ends in a classifier ({last.op}, {last.name}); each client gets one of its "
            "own. Leave the classifier out: end the body in the features."
        )


def _tf_variable(variable):
    """Returns the tf.Variable of a Keras variable, which in Keras 2 it is itself."""
    return variable if isinstance(variable, tf.Variable) else variable.value
