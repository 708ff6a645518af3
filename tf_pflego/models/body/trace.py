"""A Keras model traced: its features and their gradient, checked, as graphs without variables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.models.body import graphs, normalization, pooling, rectifiers
from tf_pflego.models.body.live import OF_SEED, Live
from tf_pflego.system import texts, values

# Stateful operations that leave a body a function of nothing but its weights and the examples.
_HARMLESS_STATEFUL_OPS = frozenset(
    {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "Assert"}
    | {"While", "If", "Case", "StatefulPartitionedCall"}
)
# Parts of the names of all operations that draw random numbers; many are not marked as stateful.
_RANDOM_OPS = ("Random", "Multinomial", "TruncatedNormal", "Shuffle", "Rng")


class Traced(NamedTuple):
    """A model's features and their gradient by its trainable weights, traced."""

    function: Any  # ConcreteFunction
    features: Any  # what the model returned
    features_gradient: str  # name of the node that takes their gradient; "" if they are no vectors
    gradient: list[tf.Tensor | None]  # of each weight, or None if the features do not depend on it
    moments: list[tf.Tensor]  # in training, those of the batch that live normalisation uses
    more: list[str]  # names of further arguments: in training of the seed, if there is dropout
    bytes_per_example: int


class ForwardAndBackward(NamedTuple):
    """Two GraphDefs, and the names of the tensors that go in and out."""

    forward: Any  # from examples and theta to the features and what is saved
    backward: Any  # from all these and the gradient of the features to the gradient of theta
    examples: str
    theta: list[str]
    more: list[str]  # the seed of live dropout; in inference the statistics of normalisation
    features: str
    moments: list[str]
    feature_shape: tuple[int, ...]  # (M,) or (T, M)
    features_gradient: str
    saved: list[str]
    gradient: list[str]


def example_spec(model: Any, example_shape: Sequence[int] | None) -> tf.TensorSpec:
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
            f"`body` must take floats or integers; it takes {dtype.name}. Apply layers such as "
            "TextVectorization to the examples before `from_arrays`, and start the body after them."
        )
    shape = inputs[0].shape[1:] if inputs and example_shape is None else example_shape
    if shape is None or None in tuple(shape):
        known = "" if shape is None else f"; got {tuple(shape)}"
        raise ValueError(
            f"`body` must define the shape of an example{known}. Give `example_shape`."
        )
    return tf.TensorSpec([None, *map(int, shape)], tf.int32 if dtype.is_integer else tf.float32)


def check_weights(model: tf.keras.Model) -> None:
    """Raises ValueError unless a model has weights to train, all float32, and all are finite."""
    if not model.trainable_variables:
        raise ValueError(
            "`body` has no trainable weights to share. Set `trainable = True` on layers that have "
            "weights, or add such a layer."
        )
    for weight in model.trainable_variables:
        if isinstance(_tf_variable(weight), tf.distribute.DistributedValues):
            raise ValueError(
                f"`body` must be built outside of the scope of a `tf.distribute` strategy; "
                f"{name_of(weight)} is a variable of one. Build it again outside."
            )
        dtype = tf.as_dtype(weight.dtype)
        if dtype != tf.float32:
            raise ValueError(
                f"`body` must have float32 weights; {name_of(weight)} is {dtype.name}. Build its "
                'layers with dtype="float32", which is the default.'
            )
        if getattr(weight, "constraint", None) is not None:
            raise ValueError(
                f"`body` must have weights without constraints; {name_of(weight)} has one "
                f"({type(weight.constraint).__name__}), which means of several clients' weights "
                "would not keep. Leave it out."
            )
    for weight in model.weights:
        if tf.as_dtype(weight.dtype).is_floating and not np.isfinite(np.array(weight)).all():
            raise ValueError(
                f"`body` must have finite weights; {name_of(weight)} has infinite numbers or NaN. "
                "Load or initialise them again, or lower the learning rate of their training."
            )


def traced(
    model: tf.keras.Model, example: tf.TensorSpec, live: Live, training: bool = True
) -> Traced:
    """Returns a model's trace, which is a function of theta and examples, or raises ValueError."""
    weights = [_tf_variable(weight) for weight in model.trainable_variables]
    noted: dict[str, Any] = {"features_gradient": "", "more": [], "adds_losses": False}

    @tf.function
    def features_and_gradient(examples):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            if training:
                with live.training():
                    features = model(examples, training=True)
            else:
                features = model(examples, training=False)
            noted["adds_losses"] = _depend(model.losses, weights)
        noted["features"] = features
        moments = live.moments if training else []
        if any(moment.graph is not features.graph for moment in moments):
            raise ValueError("batch normalisation must not be trained in a loop or a tf.function")
        if training and live.seed is not None:
            noted["more"] = [live.seed.op.name]
        operations = tf.compat.v1.get_default_graph().get_operations()
        tensors = [tensor for operation in operations for tensor in operation.outputs]
        noted["bytes_per_example"] = bytes_per_example(tensors)
        gradient = [None] * len(weights)
        if _is_feature_batch(features):
            features_gradient = tf.compat.v1.placeholder(tf.float32, features.shape)
            gradient = tape.gradient(features, weights, features_gradient)
            noted["features_gradient"] = features_gradient.op.name
        return features, [g if g is None else tf.convert_to_tensor(g) for g in gradient], moments

    try:
        function = features_and_gradient.get_concrete_function(example)
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        raise ValueError(
            f"`body` cannot be called with training=True on {example.dtype.name} examples of "
            f"shape {tuple(example.shape[1:])}. If it takes others, put an Input of their shape "
            "before it: tf.keras.Sequential([tf.keras.Input(shape, dtype=dtype), body]). "
            f"TensorFlow says: {texts.reason(error, 2000)}"
        ) from error
    if noted.pop("adds_losses"):
        raise ValueError(
            f"`body` must add no losses{_owner_of_losses(model)}. Methods share, mix and correct "
            "the clients' losses in different ways, and would not count these. Remove "
            "regularizers and `add_loss`. Set `server_weight_decay` for smaller shared weights."
        )
    _, gradient, moments = function.structured_outputs
    trace = Traced(function, gradient=gradient, moments=moments, **noted)
    _check(trace, model)
    return trace


def _depend(tensors, weights):
    """Returns whether any of some tensors of the graph that is being built depends on weights."""
    graph, handles = tf.compat.v1.get_default_graph(), {id(weight.handle) for weight in weights}
    learnt = {inside.op.name for outside, inside in graph.captures if id(outside) in handles}
    waiting, seen = [tensor.op for tensor in tensors], set()
    while waiting:
        operation = waiting.pop()
        if operation.name not in seen:
            seen.add(operation.name)
            waiting += [tensor.op for tensor in operation.inputs]
    return bool(seen & learnt)


def _owner_of_losses(model):
    """Returns the layer with a regularizer or a loss, if any."""
    for layer in model._flatten_layers(include_self=False):
        has = [name for name, one in vars(layer).items() if name.endswith("_regularizer") and one]
        if has:
            return f"; the layer {layer.name} has {has[0].lstrip('_')}"
    return ""


def _is_feature_batch(features):
    return (
        isinstance(features, tf.Tensor)
        and features.dtype == tf.float32
        and features.shape.rank in (2, 3)
        and None not in features.shape[1:]
    )


def bytes_per_example(tensors: Sequence[tf.Tensor | tf.TensorSpec]) -> int:
    """Returns the bytes that an example takes in all tensors with one unknown size, which is n."""
    total = 0
    for tensor in tensors:
        sizes = tensor.shape.as_list() if tensor.shape.rank else []
        if sizes.count(None) == 1:
            total += math.prod(size for size in sizes if size is not None) * tensor.dtype.size
    return total


def _check(traced, model):
    """Raises ValueError unless the traced graph is a function of theta and examples to [n, M]."""
    nodes = list(graphs.nodes_and_called(traced.function.graph.as_graph_def()))
    for node in nodes:
        if any(part in node.op for part in _RANDOM_OPS) and OF_SEED not in node.name:
            raise ValueError(
                "`body` must use no random numbers except the masks of Dropout and of "
                f"SpatialDropout; in training it does ({node.op}, {node.name}). Remove other "
                "noise. If it is part of a frozen backbone, call the backbone with training=False "
                "in the `call` of your own layer."
            )
    for node in nodes:
        if "Assign" in node.op or node.op.startswith("ResourceScatter"):
            raise ValueError(
                f"`body` must not change its variables; in training it does ({node.op}, "
                f"{node.name}). Set `trainable = False` on the layer that does. Keras's only "
                "exception is BatchNormalization without `renorm`."
            )
    for node in nodes:
        definition = graphs.definition_of(node.op)  # None if it is the name of a function.
        if definition and definition.is_stateful and node.op not in _HARMLESS_STATEFUL_OPS:
            raise ValueError(
                "`body` must be a function of only its weights and the examples; it has an "
                f"operation with a state or a side effect ({node.op}, {node.name}). Leave it out, "
                "or apply it before the body."
            )
    handles = {id(_tf_variable(variable).handle) for variable in model.variables}
    for variable in traced.function.graph.variables:
        if variable.trainable and id(variable.handle) not in handles:
            raise ValueError(
                f"`body` must own its weights; it reads {variable.name}, which is not among its "
                "variables. Make it with `add_weight`, or keep the layer that has it as an "
                "attribute."
            )
    half = {tf.float16.as_datatype_enum, tf.bfloat16.as_datatype_enum}
    attributes = (value for node in nodes for value in node.attr.values())
    if any(half & {value.type, *value.list.type} for value in attributes):
        raise ValueError(
            "`body` must compute in float32; some of it computes in half precision. Build it under "
            'tf.keras.mixed_precision.set_global_policy("float32").'
        )
    if not _is_feature_batch(traced.features):
        raise ValueError(
            "`body` must end in one feature vector per example, [n, M] float32, or per "
            "position of a sequence of a known length, [n, T, M]; got "
            f"{traced.features}. End it with Flatten or with pooling."
        )
    pairs = zip(model.trainable_variables, traced.gradient, strict=True)
    if unused := [name_of(weight) for weight, gradient in pairs if gradient is None]:
        raise ValueError(
            "`body` has trainable weights that no gradient of its features reaches: "
            f"{', '.join(unused)}. Remove the layers that have them, or set `trainable = False` on "
            "these layers."
        )


def forward_and_backward(
    traced: Traced, model: tf.keras.Model, statistics: Sequence[Any] = ()
) -> ForwardAndBackward:
    """Returns the traced function as two graphs with theta as an argument.

    The variables of some `statistics`, as normalisation reads them in inference, are too.
    """
    graph_def = graphs.freeze(traced.function)
    rectifiers.keep_nan(graph_def)
    pooling.pull_back_rectified(graph_def)
    _check_last_operation(graph_def, traced)
    captured = {id(source): inside.op.name for source, inside in traced.function.graph.captures}
    theta = _captures_of(model.trainable_variables, captured)
    more = [*traced.more, *_captures_of(statistics, captured)]
    examples = traced.function.inputs[0].op.name
    features, *others = [output.name for output in traced.function.outputs]
    gradient, moments = others[: len(theta)], others[len(theta) :]
    arguments = {examples, *theta, *more}
    forward = graphs.ancestors(graph_def, [features, *moments], arguments)
    graphs.replace_by_calls(graph_def, normalization.BUILDERS | pooling.BUILDERS)
    graphs.register_functions(graph_def)
    # Constants such as shapes and axes stand in both graphs, so that both know them; weights don't.
    repeated = {node.name for node in graph_def.node if node.op == "Const"} - set(captured.values())
    computed = forward - repeated
    known = arguments | computed | {traced.features_gradient}
    backward = graphs.ancestors(graph_def, gradient, known)
    saved = {
        graphs.full_name(source)
        for node in graph_def.node
        if node.name in backward
        for source in graphs.data_inputs(node)
        if graphs.node_of(source) in computed
    }
    return ForwardAndBackward(
        forward=graphs.part(graph_def, forward),
        backward=graphs.part(graph_def, backward),
        examples=f"{examples}:0",
        theta=[f"{name}:0" for name in theta],
        more=[f"{name}:0" for name in more],
        features=features,
        moments=moments,
        feature_shape=tuple(traced.features.shape[1:]),
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
    if last.op == "Softmax" or (last.op == "Sigmoid" and traced.features.shape[-1] == 1):
        raise ValueError(
            f"`body` ends in a classifier ({last.op}, {last.name}); each client gets its own "
            "classifier. Leave the classifier out: end the body in the features."
        )


class OneExample(NamedTuple):
    """A body with loops on one example, as a graph for TFLite.

    It is traced without its gradient, since a loop stores values of each step for it in lists that
    no file can contain, and for one example, since TFLite needs lists with items of a known size.
    """

    graph: Any  # GraphDef
    example: str  # the names of its tensors
    theta: list[str]  # and then the statistics of live normalisation
    features: str

    @classmethod
    def of(cls, model: tf.keras.Model, example: tf.TensorSpec, statistics: Sequence[Any]):
        """Returns the graph of a model which takes batches of examples with this spec."""
        function = tf.function(lambda examples: model(examples, training=not statistics))
        traced = function.get_concrete_function(
            tf.TensorSpec([1, *example.shape[1:]], example.dtype)
        )
        graph_def = graphs.freeze(traced)
        rectifiers.keep_nan(graph_def)
        graphs.register_functions(graph_def)
        captured = {id(source): inside.name for source, inside in traced.graph.captures}
        theta = _captures_of([*model.trainable_variables, *statistics], captured)
        return cls(graph_def, traced.inputs[0].name, theta, traced.outputs[0].name)

    def __call__(self, theta: Sequence[tf.Tensor], example: tf.Tensor) -> tf.Tensor:
        """Returns the features of an example, [M] or [T, M]."""
        # The theta of another graph, such as that around a loop, gets a name in this one.
        weights = map(tf.identity, theta)
        arguments = {self.example: example[None], **dict(zip(self.theta, weights, strict=True))}
        (features,) = graphs.call(self.graph, arguments, [self.features])
        return features[0]


def _captures_of(variables, captured):
    """Returns a graph's names of captured variables."""
    return [captured[id(_tf_variable(variable).handle)] for variable in variables]


def name_of(weight: Any) -> str:
    """Returns the name of a Keras variable, with its layer's."""
    return getattr(weight, "path", weight.name)


def _tf_variable(variable):
    """Returns the tf.Variable of a Keras variable, which in Keras 2 it is itself."""
    return variable if isinstance(variable, tf.Variable) else variable.value
